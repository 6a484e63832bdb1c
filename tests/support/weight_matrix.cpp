#include "tests/support/weight_matrix.h"

#include <cmath>
#include <cstring>

#include "convert/formats/packed_integer.h"
#include "tests/support/random.h"

namespace assay::test {
namespace {

void set_scalar(Tensor& tensor, int64_t index, float value) {
  const WeightFormat& format = scalar_format(tensor.dtype);
  const size_t n = dtype_bytes(tensor.dtype);
  format.encode_row(std::span<const float>(&value, 1), {},
                    std::span(tensor.bytes).subspan(static_cast<size_t>(index) * n, n));
}

void fill_encoded(const WeightFormat& format, Random& random, WeightMatrix& out) {
  const auto n = static_cast<size_t>(format.row_bytes(out.view.columns));
  std::vector<float> row(static_cast<size_t>(out.view.columns));
  const std::vector<float> ones(format.needs_importance() ? row.size() : 0, 1.0f);
  for (int64_t r = 0; r < out.view.rows; ++r) {
    for (float& x : row) x = 0.05f * random.bell();
    format.encode_row(row, ones, std::span(out.data).subspan(static_cast<size_t>(r) * n, n));
  }
}

void fill_integers(const WeightFormat& format, Random& random, DType scale_dtype,
                   WeightMatrix& out) {
  const int bits = format.code_bits();
  const auto n = static_cast<size_t>(format.row_bytes(out.view.columns));
  std::vector<uint8_t> codes(static_cast<size_t>(out.view.columns));
  for (int64_t r = 0; r < out.view.rows; ++r) {
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(uint64_t{1} << bits));
    pack_codes(bits, codes, std::span(out.data).subspan(static_cast<size_t>(r) * n, n));
  }
  const int64_t n_scales = out.view.rows * out.view.n_groups();
  out.scales.dtype = scale_dtype;
  out.scales.shape = {out.view.rows, out.view.n_groups()};
  out.scales.bytes.resize(static_cast<size_t>(n_scales) * dtype_bytes(scale_dtype));
  for (int64_t i = 0; i < n_scales; ++i) {
    set_scalar(out.scales, i, (bits == 4 ? 0.01f : 0.001f) * (1.0f + 0.5f * random.uniform()));
    if (format.has_zero_points()) {
      out.zero_points.push_back(static_cast<uint8_t>(random.below(uint64_t{1} << bits)));
    }
  }
  out.view.scales = out.scales.view();
  out.view.zero_points = out.zero_points;
}

}  // namespace

WeightMatrix random_weight_matrix(const WeightFormat& format, int64_t rows, int64_t columns,
                                  int64_t group_size, uint64_t seed, DType scale_dtype) {
  Random random(seed);
  WeightMatrix out;
  out.data.resize(static_cast<size_t>(format.row_bytes(columns)) * static_cast<size_t>(rows));
  out.view.format = &format;
  out.view.rows = rows;
  out.view.columns = columns;
  if (format.can_encode()) {
    out.view.group_size = format.fixed_group();
    fill_encoded(format, random, out);
  } else {
    out.view.group_size = group_size == 0 ? columns : group_size;
    fill_integers(format, random, scale_dtype, out);
  }
  out.view.data = out.data;
  return out;
}

std::vector<float> decode_all(const WeightView& view) {
  std::vector<float> values(static_cast<size_t>(view.rows * view.columns));
  for (int64_t r = 0; r < view.rows; ++r) {
    view.format->decode_row(view, r,
                            std::span(values).subspan(static_cast<size_t>(r * view.columns),
                                                      static_cast<size_t>(view.columns)));
  }
  return values;
}

}  // namespace assay::test
