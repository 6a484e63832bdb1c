#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "convert/core/dtype.h"
#include "convert/core/error.h"
#include "convert/formats/block_format.h"

namespace assay {

/// Value `index` of a tensor of F32, F16 or BF16 at any alignment, as f32.
inline float scalar_at(const TensorView& view, int64_t index) {
  const std::byte* at =
      view.bytes.data() + static_cast<size_t>(index) * (view.dtype == DType::kF32 ? 4 : 2);
  if (view.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return view.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

/// Fewest codes that fill 32-bit words.
constexpr int64_t codes_per_unit(int bits) { return 32 / std::gcd(32, bits); }

/// Weights as unsigned codes with a scale (and a zero point) per group of columns:
///   w = scale · (code − zero),  zero = 2^(bits−1) where symmetric.
/// `data`: per row the codes packed little-endian along the row, kBits each, in 32-bit words, as in
/// `weight_packed` of compressed-tensors: code = q + 2^(bits−1) (compressed-tensors,
/// pack-quantized). Codes whose bits do not divide 32 lie across words. Rows hold whole words:
/// columns are a multiple of codes_per_unit(). `scales` (rows, n_groups); `zero_points` (rows,
/// n_groups), unsigned domain, only where asymmetric.
template <int kBits, bool kSymmetric>
class PackedIntegerFormat final : public WeightFormat {
 public:
  static_assert(kBits >= 2 && kBits <= 8);
  explicit PackedIntegerFormat(std::string_view name) : name_(name) {}

  std::string_view name() const override { return name_; }
  Fold fold() const override { return Fold::kGroup; }
  int code_bits() const override { return kBits; }
  bool has_zero_points() const override { return !kSymmetric; }
  int64_t block_columns() const override { return codes_per_unit(kBits); }
  int64_t block_bytes() const override { return codes_per_unit(kBits) * kBits / 8; }

  void read_integers(const WeightView& view, int64_t row, IntegerRow& out) const override {
    resize_integer_row(*this, view.columns, view.group_size, out);
    unpack(view, row, out.codes);
    const int64_t n_groups = view.n_groups();
    for (int64_t g = 0; g < n_groups; ++g) {
      out.scales[static_cast<size_t>(g)] = scalar_at(view.scales, row * n_groups + g);
      out.zeros[static_cast<size_t>(g)] = zero_point(view, row * n_groups + g);
    }
  }

  void decode_row(const WeightView& view, int64_t row, std::span<float> out) const override {
    ASSAY_CHECK(static_cast<int64_t>(out.size()) == view.columns);
    const auto* bytes = reinterpret_cast<const uint8_t*>(row_bytes_of(view, row).data());
    const int64_t n_groups = view.n_groups();
    for (int64_t g = 0; g < n_groups; ++g) {
      const float scale = scalar_at(view.scales, row * n_groups + g);
      const int zero = zero_point(view, row * n_groups + g);
      const int64_t begin = g * view.group_size;
      const int64_t end = std::min(view.columns, begin + view.group_size);
      decode_group(bytes, begin, end, scale, zero, out.data());
    }
  }

  std::optional<std::string> find_fault(const WeightView& view, int64_t row) const override {
    const int64_t n_groups = view.n_groups();
    for (int64_t g = 0; g < n_groups; ++g) {
      const float scale = scalar_at(view.scales, row * n_groups + g);
      if (std::isfinite(scale) && scale >= 0.0f) continue;
      return "the scale of group " + std::to_string(g) + " is " + std::to_string(scale) +
             "; scales must be finite and not negative";
    }
    return std::nullopt;
  }

 private:
  static int code_at(const uint8_t* bytes, int64_t column) {
    if constexpr (kBits == 8) return bytes[column];
    const int64_t bit = kBits * column;
    const int shift = static_cast<int>(bit % 8);
    int code = bytes[bit / 8] >> shift;
    if constexpr (8 % kBits != 0) {
      if (shift > 8 - kBits) code |= bytes[bit / 8 + 1] << (8 - shift);
    }
    return code & ((1 << kBits) - 1);
  }

  /// Columns [begin, end) of one group.
  static void decode_group(const uint8_t* bytes, int64_t begin, int64_t end, float scale, int zero,
                           float* out) {
    int64_t k = begin;
    if constexpr (kBits == 4) {
      if (k % 2 != 0 && k < end) {
        out[k] = scale * static_cast<float>(code_at(bytes, k) - zero);
        ++k;
      }
      for (; k + 1 < end; k += 2) {
        const int both = bytes[k / 2];
        out[k] = scale * static_cast<float>((both & 15) - zero);
        out[k + 1] = scale * static_cast<float>((both >> 4) - zero);
      }
    }
    for (; k < end; ++k) out[k] = scale * static_cast<float>(code_at(bytes, k) - zero);
  }

  static int zero_point(const WeightView& view, int64_t index) {
    if constexpr (kSymmetric) return 1 << (kBits - 1);
    return view.zero_points[static_cast<size_t>(index)];
  }

  static void unpack(const WeightView& view, int64_t row, std::span<uint8_t> codes) {
    const std::span<const std::byte> bytes = row_bytes_of(view, row);
    if constexpr (kBits == 8) {
      std::memcpy(codes.data(), bytes.data(), codes.size());
      return;
    }
    if constexpr (kBits == 4) {
      // Rows hold whole words, so that the number of codes is even.
      const auto* packed = reinterpret_cast<const uint8_t*>(bytes.data());
      for (size_t i = 0; i < codes.size() / 2; ++i) {
        codes[2 * i] = packed[i] & 15;
        codes[2 * i + 1] = packed[i] >> 4;
      }
      return;
    }
    for (size_t i = 0; i < codes.size(); i += 8) {  // kBits bytes
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i / 8 * kBits, kBits);
      for (size_t k = 0; k < 8; ++k) {
        codes[i + k] = static_cast<uint8_t>((word >> (kBits * k)) & ((1u << kBits) - 1));
      }
    }
  }

  std::string_view name_;
};

/// Packs one row of unsigned codes the way PackedIntegerFormat reads them. `out` holds
/// ⌈codes·bits/32⌉ words; unused bits are zero. At most 8 bits; a code that does not fit is our own
/// mistake (case B37).
void pack_codes(int bits, std::span<const uint8_t> codes, std::span<std::byte> out);

/// Code `index` of a stream of codes in 32-bit words, word w of which stands at words + 4·w·stride.
inline uint32_t packed_code(const std::byte* words, int64_t stride, int bits, int64_t index) {
  const int64_t bit = bits * index;
  const auto shift = static_cast<uint32_t>(bit % 32);
  uint32_t word = 0;
  std::memcpy(&word, words + 4 * (bit / 32) * stride, 4);
  uint32_t code = word >> shift;
  if (shift + static_cast<uint32_t>(bits) > 32) {
    std::memcpy(&word, words + 4 * (bit / 32 + 1) * stride, 4);
    code |= word << (32 - shift);
  }
  return code & ((1u << bits) - 1u);
}

}  // namespace assay
