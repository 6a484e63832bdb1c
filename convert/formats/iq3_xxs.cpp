#include "convert/formats/iq3_xxs.h"

#include "convert/core/dtype.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq_super_block.h"
#include "convert/formats/signed_group_format.h"

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

class IQ3_XXSFormat final : public SignedGroupFormat<IQ3_XXSFormat, BlockIQ3_XXS> {
 public:
  static constexpr int kGroup = 4, kSubBlock = 32, kCodeBits = 7, kCodeZero = 62, kParts = 4;

  std::string_view name() const override { return "IQ3_XXS"; }
  std::optional<uint32_t> gguf_type() const override { return 18; }
  std::optional<uint32_t> gguf_file_type() const override { return 23; }
  bool mix_needs_importance() const override { return true; }

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
