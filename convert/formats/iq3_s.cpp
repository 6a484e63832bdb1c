#include "convert/formats/iq3_s.h"

#include <cstring>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq_super_block.h"
#include "convert/formats/signed_groups.h"

namespace assay {
namespace {

/// The IqRecipe of this type; its codebook is made at first use.
const IqRecipe& recipe() {
  static const IqRecipe recipe{.search = {.book = &iq3_s_codebook(),
                                          .n_columns = 32,
                                          .n_steps = 9,
                                          .step = 0.2f,
                                          .refine = Refine::kAllIfMissing},
                               .even_signs = false,
                               .first_by_search = false,
                               .sigma_factor = 2.0f,
                               .plain_sigma = 0.0f,
                               .tiny = 0.0f};
  return recipe;
}

class IQ3_SFormat final : public BlockFormat<IQ3_SFormat, BlockIQ3_S, 256> {
 public:
  std::string_view name() const override { return "IQ3_S"; }
  std::optional<uint32_t> gguf_type() const override { return 21; }
  std::optional<uint32_t> gguf_file_type() const override { return 26; }
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 5; }
  int64_t sub_block() const override { return 32; }
  int code_zero() const override { return 15; }

  static void decode(const BlockIQ3_S& block, float* out) {
    const float d = f16_to_f32(block.d);
    for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_floats<4>(magnitudes, signs, d * static_cast<float>(scale), out + 4 * n);
    });
  }

  static void integers(const BlockIQ3_S& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = 0.0f;
    uint8_t* codes = out.codes.data() + 256 * b;
    for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_codes<4>(magnitudes, signs, 15, codes + 4 * n);
      const size_t sub = 8 * b + static_cast<size_t>(4 * n / 32);
      out.sub_scales[sub] = static_cast<int16_t>(scale);
      out.sub_mins[sub] = 0;
    });
  }

  static const char* fault(const BlockIQ3_S& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockIQ3_S& out) {
    IqSuperBlock found;
    search_iq_super_block(recipe(), input.x, input.importance, found);
    for (int n = 0; n < 64; ++n) {
      const int position = codebook_position(iq3_s_codebook(), found.levels + 4 * n);
      out.qs[n] = static_cast<uint8_t>(position & 255);
      out.qh[n / 8] = static_cast<uint8_t>(out.qh[n / 8] | ((position >> 8) << (n % 8)));
    }
    std::memcpy(out.signs, found.signs, sizeof(out.signs));
    if (found.largest == 0.0f) return;
    out.d = f32_to_f16(found.largest / 31.0f * 1.033f);
    put_scale_nibbles(found, 8, out.scales);
  }

 private:
  /// body(group of 4 columns, its magnitudes, their signs, 2s + 1).
  template <class Body>
  static void for_each_group(const BlockIQ3_S& block, const Body& body) {
    for (int n = 0; n < 64; ++n) {
      const int high = (block.qh[n / 8] >> (n % 8)) & 1;
      const int nibble = (block.scales[n / 16] >> (4 * (n / 8 % 2))) & 15;
      body(n, kIq3SValues[static_cast<size_t>(block.qs[n] | (high << 8))].data(),
           static_cast<uint32_t>(block.signs[n / 2] >> (4 * (n % 2))) & 15, 2 * nibble + 1);
    }
  }
};

}  // namespace

const WeightFormat& iq3_s_format() {
  static const IQ3_SFormat format;
  return format;
}

}  // namespace assay
