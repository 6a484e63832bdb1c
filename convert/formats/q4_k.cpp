#include "convert/formats/q4_k.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "convert/core/dtype.h"
#include "convert/formats/affine_super_block.h"
#include "convert/formats/block_format.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 8;
constexpr int kSubColumns = 32;
constexpr int kLargestSub = 63;  // sub-scales and minima have six bits

// Up to eight numbers as six-bit multiples of one f16.
struct SixBitGrid {
  uint16_t unit = 0;
  uint8_t codes[kSubBlocks] = {};
};

// integer · 2^exponent, integer odd or 0.
struct Binary {
  uint64_t integer = 0;
  int exponent = 0;
};

Binary binary_of(double value) {
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);  // at most 53 bits
  auto integer = static_cast<uint64_t>(std::ldexp(mantissa, 53));
  exponent -= 53;
  for (; integer != 0 && integer % 2 == 0; integer /= 2) ++exponent;
  return {integer, exponent};
}

// The largest unit of which all values (not negative) are multiples by 0 … 63, nullopt if there is
// none. The unit is a common divisor of the values.
std::optional<SixBitGrid> six_bit_grid(std::span<const double> values) {
  Binary parts[kSubBlocks];
  int lowest = 1 << 20;
  for (size_t j = 0; j < values.size(); ++j) {
    if (values[j] == 0.0) continue;
    if (!(values[j] > 0.0 && std::isfinite(values[j]))) return std::nullopt;
    parts[j] = binary_of(values[j]);
    lowest = std::min(lowest, parts[j].exponent);
  }
  uint64_t divisor = 0;
  uint64_t largest = 0;
  for (size_t j = 0; j < values.size(); ++j) {
    if (parts[j].integer == 0) continue;
    // A quotient of more than 2^6 is too large in any case.
    if (parts[j].exponent - lowest > 34 || parts[j].integer >> 29 != 0) return std::nullopt;
    parts[j].integer <<= parts[j].exponent - lowest;
    divisor = std::gcd(divisor, parts[j].integer);
    largest = std::max(largest, parts[j].integer);
  }
  SixBitGrid grid;
  if (divisor == 0) return grid;
  for (uint64_t part = 1; largest / divisor * part <= kLargestSub; ++part) {
    if (divisor % part != 0) continue;
    const uint64_t integer = divisor / part;
    const double unit = std::ldexp(static_cast<double>(integer), lowest);
    grid.unit = f32_to_f16(static_cast<float>(unit));
    if (f16_is_not_finite(grid.unit) || static_cast<double>(f16_to_f32(grid.unit)) != unit) {
      continue;
    }
    for (size_t j = 0; j < values.size(); ++j) {
      grid.codes[j] = static_cast<uint8_t>(parts[j].integer / divisor * part);
    }
    return grid;
  }
  return std::nullopt;
}

std::optional<SixBitGrid> grid_of_scales(std::span<const float> scales) {
  double values[kSubBlocks] = {};
  for (size_t j = 0; j < scales.size(); ++j) values[j] = scales[j];
  return six_bit_grid(std::span(values, scales.size()));
}

std::optional<SixBitGrid> grid_of_minima(std::span<const float> scales,
                                         std::span<const int32_t> zeros) {
  double values[kSubBlocks] = {};
  for (size_t j = 0; j < scales.size(); ++j) {
    values[j] = static_cast<double>(scales[j]) * zeros[j];  // exact
  }
  return six_bit_grid(std::span(values, scales.size()));
}

class Q4_KFormat final : public BlockFormat<Q4_KFormat, BlockQ4_K, 256> {
 public:
  std::string_view name() const override { return "Q4_K"; }
  std::optional<uint32_t> gguf_type() const override { return 12; }
  std::optional<uint32_t> gguf_file_type() const override { return 15; }
  std::string_view fallback_name() const override { return "Q5_0"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 4; }
  int64_t sub_block() const override { return kSubColumns; }

  bool can_repack() const override { return true; }
  int64_t repack_columns() const override { return kSubColumns; }

  std::optional<RepackObstacle> repack_obstacle(int code_bits, float scale,
                                                int zero) const override {
    const int32_t zeros[1] = {zero};
    return block_obstacle(code_bits, std::span(&scale, 1), zeros);
  }

  std::optional<RepackObstacle> block_obstacle(int code_bits, std::span<const float> scales,
                                               std::span<const int32_t> zeros) const override {
    if (code_bits > 4) {
      return RepackObstacle{.only_rounding = false,
                            .reason = std::to_string(code_bits) + "-bit codes; Q4_K has 4 bits"};
    }
    const char* what = !grid_of_scales(scales)          ? "scales"
                       : !grid_of_minima(scales, zeros) ? "scales times zero points"
                                                        : nullptr;
    if (what == nullptr) return std::nullopt;
    return RepackObstacle{
        .only_rounding = false,
        .reason = "the " + std::string(what) +
                  " of its block are no six-bit multiples of one f16 (quantize with --grid q4_k)"};
  }

  void repack_row(const IntegerRow& row, int64_t group_size,
                  std::span<std::byte> out) const override {
    ASSAY_CHECK(out.size() == row_bytes(static_cast<int64_t>(row.codes.size())));
    ASSAY_CHECK(group_size % kSubColumns == 0 && (256 % group_size == 0 || group_size % 256 == 0));
    const int64_t n_together = std::max<int64_t>(1, 256 / group_size);
    for (size_t b = 0; b < row.codes.size() / 256; ++b) {
      const size_t first = 256 * b / static_cast<size_t>(group_size);
      const auto n = static_cast<size_t>(n_together);
      const std::span scales = std::span(row.scales).subspan(first, n);
      const std::optional<SixBitGrid> scale_grid = grid_of_scales(scales);
      const std::optional<SixBitGrid> min_grid =
          grid_of_minima(scales, std::span(row.zeros).subspan(first, n));
      ASSAY_CHECK(scale_grid && min_grid);
      BlockQ4_K block{};
      block.d = scale_grid->unit;
      block.dmin = min_grid->unit;
      for (int j = 0; j < kSubBlocks; ++j) {
        const int64_t g = j * n_together / kSubBlocks;
        q4_k_set_scale_min(block.scales, j, {scale_grid->codes[g], min_grid->codes[g]});
      }
      pack(row.codes.data() + 256 * b, block);
      std::memcpy(out.data() + b * sizeof(block), &block, sizeof(block));
    }
  }

  static void decode(const BlockQ4_K& block, float* out) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      const float scale = d * static_cast<float>(sub.scale);
      const float minimum = dmin * static_cast<float>(sub.min);
      const uint8_t* bytes = block.qs + kSubColumns * (j / 2);
      const int shift = 4 * (j % 2);
      for (int i = 0; i < kSubColumns; ++i) {
        out[kSubColumns * j + i] = scale * static_cast<float>((bytes[i] >> shift) & 15) - minimum;
      }
    }
  }

  static void integers(const BlockQ4_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = f16_to_f32(block.dmin);
    for (int j = 0; j < kSubBlocks; ++j) {
      const SubScale sub = q4_k_scale_min(block.scales, j);
      out.sub_scales[kSubBlocks * b + static_cast<size_t>(j)] = sub.scale;
      out.sub_mins[kSubBlocks * b + static_cast<size_t>(j)] = sub.min;
    }
    uint8_t* codes = out.codes.data() + 256 * b;
    for (int pair = 0; pair < kSubBlocks / 2; ++pair) {
      const uint8_t* bytes = block.qs + kSubColumns * pair;
      uint8_t* first = codes + 2 * kSubColumns * pair;
      for (int i = 0; i < kSubColumns; ++i) first[i] = bytes[i] & 15;
      for (int i = 0; i < kSubColumns; ++i) first[kSubColumns + i] = bytes[i] >> 4;
    }
  }

  static const char* fault(const BlockQ4_K& block) {
    if (f16_is_not_finite(block.d)) return "scale d is not finite";
    return f16_is_not_finite(block.dmin) ? "scale dmin is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ4_K& out) {
    uint8_t codes[256];
    const AffineHead head =
        encode_affine_super_block(15, {-1.0f, 0.1f, 20}, input.x, input.importance, codes);
    out.d = head.d;
    out.dmin = head.dmin;
    std::memcpy(out.scales, head.scales, sizeof(out.scales));
    pack(codes, out);
  }

 private:
  static void pack(const uint8_t* codes, BlockQ4_K& out) {
    for (int chunk = 0; chunk < 4; ++chunk) {
      for (int i = 0; i < 32; ++i) {
        out.qs[32 * chunk + i] =
            static_cast<uint8_t>(codes[64 * chunk + i] | (codes[64 * chunk + 32 + i] << 4));
      }
    }
  }
};

}  // namespace

const WeightFormat& q4_k_format() {
  static const Q4_KFormat format;
  return format;
}

}  // namespace assay
