#pragma once

#include <bit>
#include <cstring>
#include <string>

#include "convert/core/dtype.h"
#include "convert/core/error.h"
#include "convert/formats/block_format.h"

namespace assay {

/// Plain numbers of type `Bits` (their bit patterns), one after another at any alignment. `Traits`
/// has static float widen(Bits), Bits narrow(float), kInfinity (its bits: all of the exponent),
/// kName, kGgufType and kGgufFileType.
template <class Traits, class Bits>
class ScalarFormat final : public WeightFormat {
 public:
  std::string_view name() const override { return Traits::kName; }
  std::optional<uint32_t> gguf_type() const override { return Traits::kGgufType; }
  std::optional<uint32_t> gguf_file_type() const override { return Traits::kGgufFileType; }
  Fold fold() const override { return Fold::kFloat; }
  int code_bits() const override { return 8 * static_cast<int>(sizeof(Bits)); }
  int64_t block_columns() const override { return 1; }
  int64_t block_bytes() const override { return static_cast<int64_t>(sizeof(Bits)); }

  void read_integers(const WeightView& view, int64_t row, IntegerRow& out) const override {
    resize_integer_row(*this, view.columns, 0, out);
    decode_row(view, row, out.values);
  }

  void decode_row(const WeightView& view, int64_t row, std::span<float> out) const override {
    ASSAY_CHECK(static_cast<int64_t>(out.size()) == view.columns);
    const std::byte* bytes = row_bytes_of(view, row).data();
    for (size_t i = 0; i < out.size(); ++i) {
      Bits bits;
      std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
      out[i] = Traits::widen(bits);
    }
  }

  bool can_encode() const override { return true; }

  /// Rounds to nearest even; overflow gives infinity and NaN stays NaN, so that callers can count
  /// what a narrower type loses (case B51).
  void encode_row(std::span<const float> row, std::span<const float>,
                  std::span<std::byte> out) const override {
    ASSAY_CHECK(out.size() == row.size() * sizeof(Bits));
    for (size_t i = 0; i < row.size(); ++i) {
      const Bits bits = Traits::narrow(row[i]);
      std::memcpy(out.data() + i * sizeof(Bits), &bits, sizeof(Bits));
    }
  }

  std::optional<std::string> find_fault(const WeightView& view, int64_t row) const override {
    const std::byte* bytes = row_bytes_of(view, row).data();
    const auto bits_of = [&](int64_t i) {
      Bits bits;
      std::memcpy(&bits, bytes + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
      return bits;
    };
    const auto is_fault = [](Bits bits) {
      return static_cast<Bits>(bits & Traits::kInfinity) == Traits::kInfinity;
    };
    // Without a way out, so that it takes many values at a time.
    Bits faults = 0;
    for (int64_t i = 0; i < view.columns; ++i) {
      faults = static_cast<Bits>(faults | (is_fault(bits_of(i)) ? 1 : 0));
    }
    if (faults == 0) return std::nullopt;
    int64_t first = 0;
    while (!is_fault(bits_of(first))) ++first;
    const float value = Traits::widen(bits_of(first));
    return "the value of column " + std::to_string(first) + " is " + std::to_string(value);
  }
};

}  // namespace assay
