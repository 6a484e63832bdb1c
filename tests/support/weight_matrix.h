#pragma once

#include <cstdint>
#include <vector>

#include "convert/formats/format.h"

namespace assay::test {

/// A matrix in some weight format with the storage that its view looks at. Move-only, so that the
/// view stays valid.
struct WeightMatrix {
  WeightMatrix() = default;
  WeightMatrix(WeightMatrix&&) noexcept = default;
  WeightMatrix& operator=(WeightMatrix&&) noexcept = default;

  WeightView view;
  std::vector<std::byte> data;
  Tensor scales;
  std::vector<uint8_t> zero_points;
};

/// Random weights of deviation 0.05: encoded from random values where the format has an encoder,
/// else random codes, scales (of type `scale_dtype`, positive) and zero points. `group_size` is
/// for formats that leave it open; 0 means the whole row. Depends on the arguments alone.
WeightMatrix random_weight_matrix(const WeightFormat& format, int64_t rows, int64_t columns,
                                  int64_t group_size, uint64_t seed,
                                  DType scale_dtype = DType::kBF16);

/// All rows dequantized, row-major.
std::vector<float> decode_all(const WeightView& view);

}  // namespace assay::test
