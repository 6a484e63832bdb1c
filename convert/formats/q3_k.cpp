#include "convert/formats/q3_k.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"
#include "convert/formats/two_bits.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 16;
constexpr int kSubColumns = 16;

class Q3_KFormat final : public BlockFormat<Q3_KFormat, BlockQ3_K, 256> {
 public:
  std::string_view name() const override { return "Q3_K"; }
  std::optional<uint32_t> gguf_type() const override { return 11; }
  std::optional<uint32_t> gguf_file_type() const override { return 12; }
  std::string_view fallback_name() const override { return "Q4_0"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 3; }
  int64_t sub_block() const override { return kSubColumns; }
  int code_zero() const override { return 4; }

  static void decode(const BlockQ3_K& block, float* out) {
    uint8_t codes[256];
    unpack(block, codes);
    const float d = f16_to_f32(block.d);
    for (int j = 0; j < kSubBlocks; ++j) {
      const float scale = d * static_cast<float>(q3_k_scale(block.scales, j) - 32);
      for (int i = kSubColumns * j; i < kSubColumns * (j + 1); ++i) {
        out[i] = scale * static_cast<float>(codes[i] - 4);
      }
    }
  }

  static void integers(const BlockQ3_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack(block, out.codes.data() + 256 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = 0.0f;
    for (int j = 0; j < kSubBlocks; ++j) {
      const size_t at = kSubBlocks * b + static_cast<size_t>(j);
      out.sub_scales[at] = static_cast<int16_t>(q3_k_scale(block.scales, j) - 32);
      out.sub_mins[at] = 0;
    }
  }

  static const char* fault(const BlockQ3_K& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ3_K& out) {
    uint8_t codes[256];
    if (input.importance != nullptr) {
      search_weighted(input, codes, out);
    } else {
      search_plain(input.x, codes, out);
    }
    const float d = f16_to_f32(out.d);
    for (int j = 0; j < kSubBlocks; ++j) {
      recompute_signed_codes(kSubColumns, input.x + kSubColumns * j,
                             d * static_cast<float>(q3_k_scale(out.scales, j) - 32), 4,
                             codes + kSubColumns * j);
    }
    for (int i = 0; i < 256; ++i) {
      out.hmask[i % 32] = static_cast<uint8_t>(out.hmask[i % 32] | ((codes[i] >> 2) << (i / 32)));
      codes[i] &= 3;
    }
    pack_two_bits(codes, out.qs);
  }

 private:
  static void unpack(const BlockQ3_K& block, uint8_t* codes) {
    unpack_two_bits(block.qs, codes);
    for (int part = 0; part < 8; ++part) {
      for (int l = 0; l < 32; ++l) {
        codes[32 * part + l] =
            static_cast<uint8_t>(codes[32 * part + l] | (((block.hmask[l] >> part) & 1) << 2));
      }
    }
  }

  static void search_plain(const float* x, uint8_t* codes, BlockQ3_K& out) {
    float scales[kSubBlocks];
    float extreme = 0.0f;  // scale of largest magnitude, the first one of equals
    for (int j = 0; j < kSubBlocks; ++j) {
      scales[j] = search_signed_scale_by_sweeps(kSubColumns, 4, x + kSubColumns * j,
                                                codes + kSubColumns * j);
      if (std::fabs(scales[j]) > std::fabs(extreme)) extreme = scales[j];
    }
    if (extreme == 0.0f) return;  // scales stay 0, which stands for −32, and d stays 0
    const float inverse = -32.0f / extreme;
    for (int j = 0; j < kSubBlocks; ++j) {
      q3_k_set_scale(out.scales, j, std::clamp(nearest_code(inverse * scales[j]), -32, 31) + 32);
    }
    out.d = f32_to_f16(1.0f / inverse);
  }

  static void search_weighted(const EncoderInput& input, uint8_t* codes, BlockQ3_K& out) {
    const float sigma2 = 2.0f * sum_of_squares(256, input.x) / 256.0f;
    float scales[kSubBlocks];
    float sums[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
      const int first = kSubColumns * j;
      float weights[kSubColumns];
      sums[j] = weigh_by_importance(kSubColumns, sigma2, input.x + first, input.importance + first,
                                    weights);
      scales[j] = search_signed_scale(kSubColumns, 4, input.x + first, weights, codes + first);
    }
    uint8_t scale_codes[kSubBlocks];
    out.d = f32_to_f16(search_signed_scale(kSubBlocks, 32, scales, sums, scale_codes));
    for (int j = 0; j < kSubBlocks; ++j) q3_k_set_scale(out.scales, j, scale_codes[j]);
  }
};

}  // namespace

const WeightFormat& q3_k_format() {
  static const Q3_KFormat format;
  return format;
}

}  // namespace assay
