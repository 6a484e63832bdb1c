#include "convert/formats/iq1_s.h"

#include <algorithm>
#include <limits>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/codebook.h"
#include "convert/formats/codebook_search.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq1_search.h"

namespace assay {
namespace {

constexpr int kBlocks = 8;
constexpr int kColumns = 32;

/// One block of 32 columns before its scale is rounded.
struct Found {
  float scale = 0.0f;
  int shift = 0;  // 0 up, 1 down
  int positions[4] = {};
};

class IQ1_SFormat final : public BlockFormat<IQ1_SFormat, BlockIQ1_S, 256> {
 public:
  std::string_view name() const override { return "IQ1_S"; }
  std::optional<uint32_t> gguf_type() const override { return 19; }
  std::optional<uint32_t> gguf_file_type() const override { return 24; }
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  bool needs_importance() const override { return true; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 5; }
  int64_t sub_block() const override { return kColumns; }
  int code_zero() const override { return kIq1Zero; }

  static void decode(const BlockIQ1_S& block, float* out) {
    const float d = f16_to_f32(block.d);
    for (int n = 0; n < 32; ++n) {
      const float scale = d * static_cast<float>(sub_scale(block, n / 4));
      const float* points = kIq1Points[down(block, n / 4) ? 1 : 0];
      const float values[3] = {scale * points[0], scale * points[1], scale * points[2]};
      const int8_t* levels = levels_of(block, n);
      for (int k = 0; k < 8; ++k) out[8 * n + k] = values[levels[k] + 1];
    }
  }

  static void integers(const BlockIQ1_S& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(block.d) * 0.125f;
    out.mins[b] = 0.0f;
    uint8_t* codes = out.codes.data() + 256 * b;
    for (int n = 0; n < 32; ++n) {
      const int shift = down(block, n / 4) ? -1 : 1;
      const int8_t* levels = levels_of(block, n);
      for (int k = 0; k < 8; ++k) {
        codes[8 * n + k] = static_cast<uint8_t>(8 * levels[k] + shift + kIq1Zero);
      }
    }
    for (int j = 0; j < kBlocks; ++j) {
      const size_t at = kBlocks * b + static_cast<size_t>(j);
      out.sub_scales[at] = static_cast<int16_t>(sub_scale(block, j));
      out.sub_mins[at] = 0;
    }
  }

  static const char* fault(const BlockIQ1_S& block) {
    return f16_is_not_finite(block.d) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockIQ1_S& out) {
    const float sigma2 = 2.0f * sum_of_squares(256, input.x) / 256.0f;
    Found found[kBlocks];
    float largest = 0.0f;
    for (int j = 0; j < kBlocks; ++j) {
      const int first = kColumns * j;
      float weights[kColumns];
      weigh_iq1(kColumns, sigma2, input.x + first, input.importance + first, weights);
      found[j] = search(input.x + first, weights);
      largest = std::max(largest, found[j].scale);
      int high = 0;
      for (int k = 0; k < 4; ++k) {
        out.qs[4 * j + k] = static_cast<uint8_t>(found[j].positions[k] & 255);
        high |= (found[j].positions[k] >> 8) << (3 * k);
      }
      out.qh[j] = static_cast<uint16_t>(high);
    }
    if (largest == 0.0f) return;
    const float d = largest / 15.0f;
    out.d = f32_to_f16(d * 1.125f);
    const float inverse = 1.0f / d;
    for (int j = 0; j < kBlocks; ++j) {
      const int code =
          static_cast<int>(nearest_level(0.5f * (inverse * found[j].scale - 1.0f), 7.0f));
      out.qh[j] = static_cast<uint16_t>(out.qh[j] | ((code | (found[j].shift << 3)) << 12));
    }
  }

 private:
  static int sub_scale(const BlockIQ1_S& block, int j) { return 2 * ((block.qh[j] >> 12) & 7) + 1; }
  static bool down(const BlockIQ1_S& block, int j) { return (block.qh[j] & 0x8000) != 0; }
  static const int8_t* levels_of(const BlockIQ1_S& block, int n) {
    const int high = (block.qh[n / 4] >> (3 * (n % 4))) & 7;
    return kIq1Values[static_cast<size_t>(block.qs[n] | (high << 8))].data();
  }

  /// The best two cuts of the sorted columns into three levels, for either shift.
  static Found search(const float* x, const float* weights) {
    Found found;
    float largest = 0.0f;
    for (int i = 0; i < kColumns; ++i) largest = std::max(largest, std::fabs(x[i]));
    if (largest < 1e-12f) return found;
    uint8_t order[kColumns];
    sort_columns(kColumns, x, order);
    float sum_x[kColumns + 1] = {};
    float sum_w[kColumns + 1] = {};
    for (int j = 0; j < kColumns; ++j) {
      const int i = order[j];
      sum_x[j + 1] = sum_x[j] + weights[i] * x[i];
      sum_w[j + 1] = sum_w[j] + weights[i];
    }
    float best = -std::numeric_limits<float>::max();
    int cuts[2] = {-1, -1};
    float scale = largest;
    for (int first = 0; first <= kColumns; ++first) {
      for (int second = first; second <= kColumns; ++second) {
        for (int shift = 0; shift < 2; ++shift) {
          const float* p = kIq1Points[shift];
          const float qx = sum_x[first] * p[0] + (sum_x[second] - sum_x[first]) * p[1] +
                           (sum_x[kColumns] - sum_x[second]) * p[2];
          const float q2 = sum_w[first] * p[0] * p[0] +
                           (sum_w[second] - sum_w[first]) * p[1] * p[1] +
                           (sum_w[kColumns] - sum_w[second]) * p[2] * p[2];
          if (q2 > 0.0f && qx * qx > best * q2) {
            scale = qx / q2;
            best = scale * qx;
            cuts[0] = first;
            cuts[1] = second;
            found.shift = shift;
          }
        }
      }
    }
    if (cuts[0] < 0) return found;
    uint8_t levels[kColumns];
    put_levels(kColumns, order, cuts[0], cuts[1], levels);
    if (scale < 0.0f) {
      for (uint8_t& level : levels) level = static_cast<uint8_t>(2 - level);
      scale = -scale;
      found.shift = 1 - found.shift;
    }
    snap(x, weights, levels, scale, found);
    return found;
  }

  static void snap(const float* x, const float* weights, uint8_t* levels, float scale,
                   Found& found) {
    const float* points = kIq1Points[found.shift];
    bool moved = false;
    for (int k = 0; k < 4; ++k) {
      found.positions[k] =
          snap_iq1(x + 8 * k, weights + 8 * k, scale, points, levels + 8 * k, &moved);
    }
    found.scale = scale;
    if (!moved) return;
    Iq1Fit fit;
    for (int i = 0; i < kColumns; ++i) fit.add(weights[i], points[levels[i]], x[i]);
    if (fit.qx > 0.0f && fit.q2 > 0.0f) found.scale = fit.qx / fit.q2;
  }
};

}  // namespace

const WeightFormat& iq1_s_format() {
  static const IQ1_SFormat format;
  return format;
}

}  // namespace assay
