#include "convert/formats/iq2_s.h"

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

class IQ2_SFormat final : public BlockFormat<IQ2_SFormat, BlockIQ2_S, 256> {
 public:
  std::string_view name() const override { return "IQ2_S"; }
  std::optional<uint32_t> gguf_type() const override { return 22; }
  std::optional<uint32_t> gguf_file_type() const override { return 28; }
  bool mix_needs_importance() const override { return true; }
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 7; }
  int64_t sub_block() const override { return 16; }
  int code_zero() const override { return 43; }

  static void decode(const BlockIQ2_S& block, float* out) {
    const float d = f16_to_f32(block.d) * 0.125f;
    for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_floats<8>(magnitudes, signs, d * static_cast<float>(scale), out + 8 * n);
    });
  }

  static void integers(const BlockIQ2_S& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d) * 0.125f;
    out.mins[b] = 0.0f;
    uint8_t* codes = out.codes.data() + 256 * b;
    for_each_group(block, [&](int n, const int8_t* magnitudes, uint32_t signs, int scale) {
      put_signed_codes<8>(magnitudes, signs, 43, codes + 8 * n);
      const size_t sub = 16 * b + static_cast<size_t>(8 * n / 16);
      out.sub_scales[sub] = static_cast<int16_t>(scale);
      out.sub_mins[sub] = 0;
    });
  }

  static const char* fault(const BlockIQ2_S& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

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

 private:
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
