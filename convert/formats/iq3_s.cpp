#include "convert/formats/iq3_s.h"

#include <cstring>

#include "convert/core/dtype.h"
#include "convert/formats/codebook.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq_super_block.h"
#include "convert/formats/signed_group_format.h"

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

class IQ3_SFormat final : public SignedGroupFormat<IQ3_SFormat, BlockIQ3_S> {
 public:
  static constexpr int kGroup = 4, kSubBlock = 32, kCodeBits = 5, kCodeZero = 15, kParts = 1;

  std::string_view name() const override { return "IQ3_S"; }
  std::optional<uint32_t> gguf_type() const override { return 21; }
  std::optional<uint32_t> gguf_file_type() const override { return 26; }

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
