#include "convert/formats/iq2_s.h"

#include "convert/core/dtype.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq_super_block.h"
#include "convert/formats/signed_group_format.h"

namespace assay {
namespace {

/// The IqRecipe of this type; its codebook is made at first use.
const IqRecipe& recipe() {
  static const IqRecipe recipe{.search = {.book = &iq2_s_codebook(),
                                          .n_columns = 16,
                                          .n_steps = 9,
                                          .step = 0.1f,
                                          .refine = Refine::kMissing},
                               .even_signs = false,
                               .first_by_search = false,
                               .sigma_factor = 2.0f,
                               .plain_sigma = 0.25f,
                               .tiny = 1e-8f};
  return recipe;
}

class IQ2_SFormat final : public SignedGroupFormat<IQ2_SFormat, BlockIQ2_S> {
 public:
  static constexpr int kGroup = 8, kSubBlock = 16, kCodeBits = 7, kCodeZero = 43, kParts = 8;

  std::string_view name() const override { return "IQ2_S"; }
  std::optional<uint32_t> gguf_type() const override { return 22; }
  std::optional<uint32_t> gguf_file_type() const override { return 28; }
  bool mix_needs_importance() const override { return true; }

  static void encode(const EncoderInput& input, BlockIQ2_S& out) {
    IqSuperBlock found;
    search_iq_super_block(recipe(), input.x, input.importance, found);
    for (int n = 0; n < 32; ++n) {
      const int position = codebook_position(iq2_s_codebook(), found.levels + 8 * n);
      out.qs[n] = static_cast<uint8_t>(position & 255);
      out.qh[n / 4] = static_cast<uint8_t>(out.qh[n / 4] | ((position >> 8) << (2 * (n % 4))));
      out.signs[n] = found.signs[n];
    }
    if (found.largest == 0.0f) return;
    out.d = f32_to_f16(found.largest / 31.0f * 0.9875f);
    put_scale_nibbles(found, 16, out.scales);
  }

  /// body(group of 8 columns, its magnitudes, their signs, 2s + 1).
  template <class Body>
  static void for_each_group(const BlockIQ2_S& block, const Body& body) {
    for (int n = 0; n < 32; ++n) {
      const int high = (block.qh[n / 4] >> (2 * (n % 4))) & 3;
      const int nibble = (block.scales[n / 4] >> (4 * (n / 2 % 2))) & 15;
      body(n, kIq2SValues[static_cast<size_t>(block.qs[n] | (high << 8))].data(), block.signs[n],
           2 * nibble + 1);
    }
  }
};

}  // namespace

const WeightFormat& iq2_s_format() {
  static const IQ2_SFormat format;
  return format;
}

}  // namespace assay
