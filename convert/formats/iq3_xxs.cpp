#include "convert/formats/iq3_xxs.h"

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
  static const IqRecipe recipe{.search = {.book = &iq3_xxs_codebook(),
                                          .n_columns = 32,
                                          .n_steps = 15,
                                          .step = 0.2f,
                                          .refine = Refine::kMissing},
                               .even_signs = true,
                               .first_by_search = false,
                               .sigma_factor = 2.0f,
                               .plain_sigma = 0.0f,
                               .tiny = 1e-8f};
  return recipe;
}

class IQ3_XXSFormat final : public BlockFormat<IQ3_XXSFormat, BlockIQ3_XXS, 256> {
 public:
  std::string_view name() const override { return "IQ3_XXS"; }
  std::optional<uint32_t> gguf_type() const override { return 18; }
  std::optional<uint32_t> gguf_file_type() const override { return 23; }
  bool mix_needs_importance() const override { return true; }
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 7; }
  int64_t sub_block() const override { return 32; }
  int code_zero() const override { return 62; }

  static void decode(const BlockIQ3_XXS& block, float* out) {
    const float d = f16_to_f32(block.d) * 0.25f;
    for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_floats<4>(magnitudes, signs, d * static_cast<float>(scale), out + 4 * n);
    });
  }

  static void integers(const BlockIQ3_XXS& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d) * 0.25f;
    out.mins[b] = 0.0f;
    uint8_t* codes = out.codes.data() + 256 * b;
    for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_codes<4>(magnitudes, signs, 62, codes + 4 * n);
      const size_t sub = 8 * b + static_cast<size_t>(4 * n / 32);
      out.sub_scales[sub] = static_cast<int16_t>(scale);
      out.sub_mins[sub] = 0;
    });
  }

  static const char* fault(const BlockIQ3_XXS& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockIQ3_XXS& out) {
    IqSuperBlock found;
    search_iq_super_block(recipe(), input.x, input.importance, found);
    if (found.largest == 0.0f) return;
    out.d = f32_to_f16(found.largest / 31.0f * 1.0125f);
    for (int n = 0; n < 64; ++n) {
      out.qs[n] = static_cast<uint8_t>(codebook_position(iq3_xxs_codebook(), found.levels + 4 * n));
    }
    for (int j = 0; j < 8; ++j) {
      uint32_t word = static_cast<uint32_t>(iq_scale_code(found.scales[j], found.largest)) << 28;
      for (int l = 0; l < 4; ++l) {
        word |= static_cast<uint32_t>(found.signs[4 * j + l]) << (7 * l);
      }
      put_word(word, out.words + 2 * j);
    }
  }

 private:
  /// body(group of 4 columns, its magnitudes, their signs, 2s + 1).
  template <class Body>
  static void for_each_group(const BlockIQ3_XXS& block, const Body& body) {
    for (int j = 0; j < 8; ++j) {
      const uint32_t word = word_at(block.words + 2 * j);
      const int scale = static_cast<int>(2 * (word >> 28) + 1);
      for (int l = 0; l < 4; ++l) {
        const uint32_t signs = with_parity((word >> (7 * l)) & 127);
        const int n = 8 * j + 2 * l;
        body(n, kIq3XxsValues[block.qs[n]].data(), signs & 15, scale);
        body(n + 1, kIq3XxsValues[block.qs[n + 1]].data(), signs >> 4, scale);
      }
    }
  }
};

}  // namespace

const WeightFormat& iq3_xxs_format() {
  static const IQ3_XXSFormat format;
  return format;
}

}  // namespace assay
