#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/signed_groups.h"

namespace assay {

/// What the IQ2 and IQ3 types share: super-blocks of 256 columns with a scale `d`; a codebook gives
/// the magnitudes of kGroup columns, their signs lie beside it, and kSubBlock columns share an odd
/// scale. A value is d / kParts · scale · ± magnitude. `Derived` has these numbers, kCodeBits and
/// kCodeZero of the codes ± magnitude, encode(), and
///   template <class Body> static void for_each_group(const Block&, const Body& body):
///     body(group of kGroup columns, its magnitudes, their signs as bits, the scale of its
///     sub-block)
template <class Derived, class Block>
class SignedGroupFormat : public BlockFormat<Derived, Block, 256> {
 public:
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return Derived::kCodeBits; }
  int64_t sub_block() const override { return Derived::kSubBlock; }
  int code_zero() const override { return Derived::kCodeZero; }

  static void decode(const Block& block, float* out) {
    constexpr int kGroup = Derived::kGroup;
    const float d = scale_of(block);
    Derived::for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_floats<kGroup>(magnitudes, signs, d * static_cast<float>(scale), out + kGroup * n);
    });
  }

  static void integers(const Block& block, int64_t index, IntegerRow& out) {
    constexpr int kGroup = Derived::kGroup, kSubBlock = Derived::kSubBlock;
    const auto b = static_cast<size_t>(index);
    out.scales[b] = scale_of(block);
    out.mins[b] = 0.0f;
    uint8_t* codes = out.codes.data() + 256 * b;
    Derived::for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_codes<kGroup>(magnitudes, signs, Derived::kCodeZero, codes + kGroup * n);
      const size_t sub = 256 / kSubBlock * b + static_cast<size_t>(kGroup * n / kSubBlock);
      out.sub_scales[sub] = static_cast<int16_t>(scale);
      out.sub_mins[sub] = 0;
    });
  }

  static const char* fault(const Block& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

 private:
  static float scale_of(const Block& block) {
    constexpr float kPart = 1.0f / Derived::kParts;  // a power of two: exact
    return f16_to_f32(block.d) * kPart;
  }
};

}  // namespace assay
