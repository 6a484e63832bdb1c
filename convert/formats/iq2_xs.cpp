#include "convert/formats/iq2_xs.h"

#include "convert/core/dtype.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq_super_block.h"
#include "convert/formats/signed_group_format.h"

namespace assay {
namespace {

/// The IqRecipe of this type; its codebook is made at first use.
const IqRecipe& recipe() {
  static const IqRecipe recipe{.search = {.book = &iq2_xs_codebook(),
                                          .n_columns = 16,
                                          .n_steps = 9,
                                          .step = 0.1f,
                                          .refine = Refine::kMissing},
                               .even_signs = true,
                               .first_by_search = false,
                               .sigma_factor = 1.0f,
                               .plain_sigma = 0.0f,
                               .tiny = 1e-15f};
  return recipe;
}

class IQ2_XSFormat final : public SignedGroupFormat<IQ2_XSFormat, BlockIQ2_XS> {
 public:
  static constexpr int kGroup = 8, kSubBlock = 16, kCodeBits = 7, kCodeZero = 43, kParts = 8;

  std::string_view name() const override { return "IQ2_XS"; }
  std::optional<uint32_t> gguf_type() const override { return 17; }
  std::optional<uint32_t> gguf_file_type() const override { return 20; }
  bool needs_importance() const override { return true; }

  static void encode(const EncoderInput& input, BlockIQ2_XS& out) {
    IqSuperBlock found;
    search_iq_super_block(recipe(), input.x, input.importance, found);
    if (found.largest == 0.0f) return;
    out.d = f32_to_f16(found.largest / 31.0f);
    for (int n = 0; n < 32; ++n) {
      const int position = codebook_position(iq2_xs_codebook(), found.levels + 8 * n);
      out.qs[n] = static_cast<uint16_t>(position | (found.signs[n] << 9));
    }
    put_scale_nibbles(found, 16, out.scales);
  }

  /// body(group of 8 columns, its magnitudes, their signs, 2s + 1).
  template <class Body>
  static void for_each_group(const BlockIQ2_XS& block, const Body& body) {
    for (int n = 0; n < 32; ++n) {
      const int nibble = (block.scales[n / 4] >> (4 * (n / 2 % 2))) & 15;
      body(n, kIq2XsValues[block.qs[n] & 511].data(), with_parity(block.qs[n] >> 9),
           2 * nibble + 1);
    }
  }
};

}  // namespace

const WeightFormat& iq2_xs_format() {
  static const IQ2_XSFormat format;
  return format;
}

}  // namespace assay
