#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/core/dtype.h"

namespace assay {

using Shape = std::vector<int64_t>;

/// Product of the dimensions; 1 for a scalar. Throws ShapeError on overflow or a negative
/// dimension.
int64_t n_elements(const Shape& shape);
/// "[256, 768]"
std::string to_string(const Shape& shape);

/// A tensor somewhere else (a mapped file, a Tensor): never owns. Row-major, little-endian, and
/// possibly unaligned: read elements with memcpy or through the helpers below.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// An owning tensor. Row-major.
struct Tensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;

  TensorView view() const { return {dtype, shape, bytes}; }
};

/// Copies F32, F16 or BF16 elements out as f32 (exact). `out` holds as many elements as the view.
/// Throws UnsupportedError for other dtypes.
void widen_to_f32(const TensorView& view, std::span<float> out);

}  // namespace assay
