#include "convert/formats/q6_k.h"

#include <algorithm>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/format_list.h"

namespace assay {
namespace {

constexpr int kSubBlocks = 16;
constexpr int kSubColumns = 16;

class Q6_KFormat final : public BlockFormat<Q6_KFormat, BlockQ6_K, 256> {
 public:
  std::string_view name() const override { return "Q6_K"; }
  std::optional<uint32_t> gguf_type() const override { return 14; }
  std::optional<uint32_t> gguf_file_type() const override { return 18; }
  std::string_view fallback_name() const override { return "Q8_0"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 6; }
  int64_t sub_block() const override { return kSubColumns; }
  int code_zero() const override { return 32; }

  static void decode(const BlockQ6_K& block, float* out) {
    uint8_t codes[256];
    unpack(block, codes);
    const float d = f16_to_f32(block.d);
    for (int j = 0; j < kSubBlocks; ++j) {
      const float scale = d * static_cast<float>(block.scales[j]);
      for (int i = kSubColumns * j; i < kSubColumns * (j + 1); ++i) {
        out[i] = scale * static_cast<float>(codes[i] - 32);
      }
    }
  }

  static void integers(const BlockQ6_K& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    unpack(block, out.codes.data() + 256 * b);
    out.scales[b] = f16_to_f32(block.d);
    out.mins[b] = 0.0f;
    for (size_t j = 0; j < kSubBlocks; ++j) {
      out.sub_scales[kSubBlocks * b + j] = block.scales[j];
      out.sub_mins[kSubBlocks * b + j] = 0;
    }
  }

  static const char* fault(const BlockQ6_K& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockQ6_K& out) {
    uint8_t codes[256];
    float scales[kSubBlocks];
    float extreme = 0.0f;  // scale of largest magnitude, the first one of equals
    for (int j = 0; j < kSubBlocks; ++j) {
      const int first = kSubColumns * j;
      const float* importance = input.importance != nullptr ? input.importance + first : nullptr;
      float ones[kSubColumns];
      if (importance != nullptr && all_zero(importance, kSubColumns)) {
        std::fill_n(ones, kSubColumns, 1.0f);
        importance = ones;
      }
      scales[j] = search_signed_scale(kSubColumns, 32, input.x + first, importance, codes + first);
      if (std::fabs(scales[j]) > std::fabs(extreme)) extreme = scales[j];
    }
    if (std::fabs(extreme) < kTinyGroup) return;  // stays all zero bytes
    const float inverse = -128.0f / extreme;
    out.d = f32_to_f16(1.0f / inverse);
    for (int j = 0; j < kSubBlocks; ++j) {
      out.scales[j] = static_cast<int8_t>(std::min(127, nearest_code(inverse * scales[j])));
    }
    const float d = f16_to_f32(out.d);
    for (int j = 0; j < kSubBlocks; ++j) {
      recompute_signed_codes(kSubColumns, input.x + kSubColumns * j,
                             d * static_cast<float>(out.scales[j]), 32, codes + kSubColumns * j);
    }
    pack(codes, out);
  }

 private:
  static void unpack(const BlockQ6_K& block, uint8_t* codes) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* low = block.ql + 64 * half;
      const uint8_t* high = block.qh + 32 * half;
      uint8_t* out = codes + 128 * half;
      for (int l = 0; l < 32; ++l) {
        out[l] = static_cast<uint8_t>((low[l] & 15) | ((high[l] & 3) << 4));
        out[l + 32] = static_cast<uint8_t>((low[l + 32] & 15) | (((high[l] >> 2) & 3) << 4));
        out[l + 64] = static_cast<uint8_t>((low[l] >> 4) | (((high[l] >> 4) & 3) << 4));
        out[l + 96] = static_cast<uint8_t>((low[l + 32] >> 4) | ((high[l] >> 6) << 4));
      }
    }
  }

  static void pack(const uint8_t* codes, BlockQ6_K& out) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* in = codes + 128 * half;
      for (int l = 0; l < 32; ++l) {
        const int c0 = in[l];
        const int c1 = in[l + 32];
        const int c2 = in[l + 64];
        const int c3 = in[l + 96];
        out.ql[64 * half + l] = static_cast<uint8_t>((c0 & 15) | ((c2 & 15) << 4));
        out.ql[64 * half + l + 32] = static_cast<uint8_t>((c1 & 15) | ((c3 & 15) << 4));
        out.qh[32 * half + l] = static_cast<uint8_t>((c0 >> 4) | ((c1 >> 4) << 2) |
                                                     ((c2 >> 4) << 4) | ((c3 >> 4) << 6));
      }
    }
  }
};

}  // namespace

const WeightFormat& q6_k_format() {
  static const Q6_KFormat format;
  return format;
}

}  // namespace assay
