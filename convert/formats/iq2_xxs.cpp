#include "convert/formats/iq2_xxs.h"

#include "convert/core/dtype.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq_super_block.h"
#include "convert/formats/signed_group_format.h"

namespace assay {
namespace {

/// The IqRecipe of this type; its codebook is made at first use.
const IqRecipe& recipe() {
  static const IqRecipe recipe{.search = {.book = &iq2_xxs_codebook(),
                                          .n_columns = 32,
                                          .n_steps = 6,
                                          .step = 0.1f,
                                          .refine = Refine::kAlways},
                               .even_signs = true,
                               .first_by_search = true,
                               .sigma_factor = 1.0f,
                               .plain_sigma = 0.0f,
                               .tiny = 1e-15f};
  return recipe;
}

class IQ2_XXSFormat final : public SignedGroupFormat<IQ2_XXSFormat, BlockIQ2_XXS> {
 public:
  static constexpr int kGroup = 8, kSubBlock = 32, kCodeBits = 7, kCodeZero = 43, kParts = 8;

  std::string_view name() const override { return "IQ2_XXS"; }
  std::optional<uint32_t> gguf_type() const override { return 16; }
  std::optional<uint32_t> gguf_file_type() const override { return 19; }
  bool needs_importance() const override { return true; }

  static void encode(const EncoderInput& input, BlockIQ2_XXS& out) {
    IqSuperBlock found;
    search_iq_super_block(recipe(), input.x, input.importance, found);
    if (found.largest == 0.0f) return;
    out.d = f32_to_f16(found.largest / 31.0f);
    for (int j = 0; j < 8; ++j) {
      uint32_t a = 0;
      uint32_t b = static_cast<uint32_t>(iq_scale_code(found.scales[j], found.largest)) << 28;
      for (int l = 0; l < 4; ++l) {
        const int n = 4 * j + l;
        a |= static_cast<uint32_t>(codebook_position(iq2_xxs_codebook(), found.levels + 8 * n))
             << (8 * l);
        b |= static_cast<uint32_t>(found.signs[n]) << (7 * l);
      }
      put_word(a, out.words + 4 * j);
      put_word(b, out.words + 4 * j + 2);
    }
  }

  /// body(group of 8 columns, its magnitudes, their signs, 2s + 1).
  template <class Body>
  static void for_each_group(const BlockIQ2_XXS& block, const Body& body) {
    for (int j = 0; j < 8; ++j) {
      const uint32_t a = word_at(block.words + 4 * j);
      const uint32_t b = word_at(block.words + 4 * j + 2);
      const int scale = static_cast<int>(2 * (b >> 28) + 1);
      for (int l = 0; l < 4; ++l) {
        body(4 * j + l, kIq2XxsValues[(a >> (8 * l)) & 255].data(),
             with_parity((b >> (7 * l)) & 127), scale);
      }
    }
  }
};

}  // namespace

const WeightFormat& iq2_xxs_format() {
  static const IQ2_XXSFormat format;
  return format;
}

}  // namespace assay
