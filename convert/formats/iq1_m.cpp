#include "convert/formats/iq1_m.h"

#include <algorithm>
#include <limits>

#include "convert/core/dtype.h"
#include "convert/formats/block_format.h"
#include "convert/formats/code_search.h"
#include "convert/formats/codebook.h"
#include "convert/formats/codebook_search.h"
#include "convert/formats/format_list.h"
#include "convert/formats/iq1_s.h"
#include "convert/formats/iq1_search.h"

namespace assay {
namespace {

constexpr int kBlocks = 16;
constexpr int kColumns = 16;
constexpr int kHalf = 8;

/// One block of 16 columns before its scale is rounded.
struct Found {
  float scale = 0.0f;
  int shifts[2] = {};  // of the halves; 0 up, 1 down
  int positions[2] = {};
  uint8_t levels[kColumns] = {};
};

/// Sums over the columns below a cut, in sorted order, of each half.
struct PrefixSums {
  float x[2][kColumns + 1] = {};
  float w[2][kColumns + 1] = {};

  PrefixSums(const float* values, const float* weights, const uint8_t* order) {
    for (int j = 0; j < kColumns; ++j) {
      const int i = order[j];
      const int h = i < kHalf ? 0 : 1;
      x[h][j + 1] = x[h][j] + weights[i] * values[i];
      w[h][j + 1] = w[h][j] + weights[i];
      x[1 - h][j + 1] = x[1 - h][j];
      w[1 - h][j + 1] = w[1 - h][j];
    }
  }
};

class IQ1_MFormat final : public BlockFormat<IQ1_MFormat, BlockIQ1_M, 256> {
 public:
  std::string_view name() const override { return "IQ1_M"; }
  std::optional<uint32_t> gguf_type() const override { return 29; }
  std::optional<uint32_t> gguf_file_type() const override { return 31; }
  bool mix_needs_importance() const override { return true; }
  std::string_view fallback_name() const override { return "IQ4_NL"; }
  Fold fold() const override { return Fold::kSuperBlock; }
  int code_bits() const override { return 5; }
  int64_t sub_block() const override { return kColumns; }
  int code_zero() const override { return kIq1Zero; }

  static void decode(const BlockIQ1_M& block, float* out) {
    const float d = f16_to_f32(scale_bits(block));
    for (int n = 0; n < 32; ++n) {
      const float scale = d * static_cast<float>(sub_scale(block, n / 2));
      const float* points = kIq1Points[(nibble(block, n) & 8) != 0 ? 1 : 0];
      const float values[3] = {scale * points[0], scale * points[1], scale * points[2]};
      const int8_t* levels = levels_of(block, n);
      for (int k = 0; k < 8; ++k) out[8 * n + k] = values[levels[k] + 1];
    }
  }

  static void integers(const BlockIQ1_M& block, int64_t index, IntegerRow& out) {
    const auto b = static_cast<size_t>(index);
    out.scales[b] = f16_to_f32(scale_bits(block)) * 0.125f;
    out.mins[b] = 0.0f;
    uint8_t* codes = out.codes.data() + 256 * b;
    for (int n = 0; n < 32; ++n) {
      const int shift = (nibble(block, n) & 8) != 0 ? -1 : 1;
      const int8_t* levels = levels_of(block, n);
      for (int k = 0; k < 8; ++k) {
        codes[8 * n + k] = static_cast<uint8_t>(8 * levels[k] + shift + kIq1Zero);
      }
    }
    for (int m = 0; m < kBlocks; ++m) {
      const size_t at = kBlocks * b + static_cast<size_t>(m);
      out.sub_scales[at] = static_cast<int16_t>(sub_scale(block, m));
      out.sub_mins[at] = 0;
    }
  }

  static const char* fault(const BlockIQ1_M& block) {
    return f16_is_not_finite(scale_bits(block)) ? "scale d is not finite" : nullptr;
  }

  static void encode(const EncoderInput& input, BlockIQ1_M& out) {
    const float sigma2 = 2.0f * sum_of_squares(256, input.x) / 256.0f;
    float weights[256];
    Found found[kBlocks];
    float largest = 0.0f;
    for (int m = 0; m < kBlocks; ++m) {
      const int first = kColumns * m;
      weigh_iq1(kColumns, sigma2, input.x + first,
                input.importance != nullptr ? input.importance + first : nullptr, weights + first);
      found[m] = search(input.x + first, weights + first);
      largest = std::max(largest, found[m].scale);
      for (int h = 0; h < 2; ++h) {
        out.qs[2 * m + h] = static_cast<uint8_t>(found[m].positions[h] & 255);
        out.qh[m] = static_cast<uint8_t>(out.qh[m] | ((found[m].positions[h] >> 8) << (4 * h)));
      }
    }
    if (largest == 0.0f) return;
    put_scales(input.x, weights, found, largest, out);
  }

 private:
  static uint16_t scale_bits(const BlockIQ1_M& block) {
    return static_cast<uint16_t>((block.scales[0] >> 12) | ((block.scales[1] >> 8) & 0x00f0) |
                                 ((block.scales[2] >> 4) & 0x0f00) | (block.scales[3] & 0xf000));
  }
  static int sub_scale(const BlockIQ1_M& block, int m) {
    return 2 * ((block.scales[m / 4] >> (3 * (m % 4))) & 7) + 1;
  }
  static int nibble(const BlockIQ1_M& block, int n) {
    return (block.qh[n / 2] >> (4 * (n % 2))) & 15;
  }
  static const int8_t* levels_of(const BlockIQ1_M& block, int n) {
    return kIq1Values[static_cast<size_t>(block.qs[n] | ((nibble(block, n) & 7) << 8))].data();
  }

  /// The best two cuts of the sorted columns into three levels, for each pair of shifts.
  static Found search(const float* x, const float* weights) {
    Found found;
    std::fill_n(found.levels, kColumns, uint8_t{1});
    float largest = 0.0f;
    for (int i = 0; i < kColumns; ++i) largest = std::max(largest, std::fabs(x[i]));
    if (largest < 1e-7f) return empty(found);
    uint8_t order[kColumns];
    sort_columns(kColumns, x, order);
    const PrefixSums sums(x, weights, order);
    float best = -std::numeric_limits<float>::max();
    int cuts[2] = {-1, -1};
    float scale = largest;
    for (int first = 0; first <= kColumns; ++first) {
      for (int second = first; second <= kColumns; ++second) {
        float qx[2][2];  // [half][shift]
        float q2[2][2];
        for (int h = 0; h < 2; ++h) {
          // The levels are one apart, so that three groups come to T·p2 − below(first) −
          // below(second).
          const float below = sums.x[h][first] + sums.x[h][second];
          for (int shift = 0; shift < 2; ++shift) {
            const float* p = kIq1Points[shift];
            qx[h][shift] = sums.x[h][kColumns] * p[2] - below;
            q2[h][shift] = sums.w[h][kColumns] * p[2] * p[2] +
                           sums.w[h][first] * (p[0] * p[0] - p[1] * p[1]) +
                           sums.w[h][second] * (p[1] * p[1] - p[2] * p[2]);
          }
        }
        for (int pair = 0; pair < 4; ++pair) {
          const float sum_qx = qx[0][pair / 2] + qx[1][pair % 2];
          const float sum_q2 = q2[0][pair / 2] + q2[1][pair % 2];
          if (sum_q2 > 0.0f && sum_qx * sum_qx > best * sum_q2) {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
            cuts[0] = first;
            cuts[1] = second;
            found.shifts[0] = pair / 2;
            found.shifts[1] = pair % 2;
          }
        }
      }
    }
    if (cuts[0] < 0) return empty(found);
    put_levels(kColumns, order, cuts[0], cuts[1], found.levels);
    if (scale < 0.0f) {
      for (uint8_t& level : found.levels) level = static_cast<uint8_t>(2 - level);
      scale = -scale;
      for (int& shift : found.shifts) shift = 1 - shift;
    }
    snap(x, weights, scale, found);
    return found;
  }

  /// A block of zeros: position 0, as the super-block starts with zero bytes.
  static Found& empty(Found& found) {
    std::copy_n(iq1_codebook().levels(0), kHalf, found.levels);
    std::copy_n(iq1_codebook().levels(0), kHalf, found.levels + kHalf);
    found.shifts[0] = found.shifts[1] = 0;
    return found;
  }

  static void snap(const float* x, const float* weights, float scale, Found& found) {
    bool moved = false;
    for (int h = 0; h < 2; ++h) {
      const int first = kHalf * h;
      found.positions[h] = snap_iq1(x + first, weights + first, scale, kIq1Points[found.shifts[h]],
                                    found.levels + first, &moved);
    }
    found.scale = scale;
    if (!moved) return;
    const Iq1Fit fit = fit_of(x, weights, found, 1.0f, {});
    if (fit.qx > 0.0f && fit.q2 > 0.0f) found.scale = fit.qx / fit.q2;
  }

  /// `fit` and the sums of a block with its levels times `factor`.
  static Iq1Fit fit_of(const float* x, const float* weights, const Found& found, float factor,
                       Iq1Fit fit) {
    for (int i = 0; i < kColumns; ++i) {
      const float point = kIq1Points[found.shifts[i / kHalf]][found.levels[i]];
      fit.add(weights[i], point * factor, x[i]);
    }
    return fit;
  }

  /// Three-bit scales, shifts, and a d that is fitted to all that is stored.
  static void put_scales(const float* x, const float* weights, const Found* found, float largest,
                         BlockIQ1_M& out) {
    float d = largest / 15.0f;
    const float inverse = 1.0f / d;
    Iq1Fit fit;
    for (int m = 0; m < kBlocks; ++m) {
      const int code =
          static_cast<int>(nearest_level(0.5f * (inverse * found[m].scale - 1.0f), 7.0f));
      out.scales[m / 4] = static_cast<uint16_t>(out.scales[m / 4] | (code << (3 * (m % 4))));
      out.qh[m] =
          static_cast<uint8_t>(out.qh[m] | (found[m].shifts[0] << 3) | (found[m].shifts[1] << 7));
      fit = fit_of(x + kColumns * m, weights + kColumns * m, found[m],
                   static_cast<float>(2 * code + 1), fit);
    }
    if (fit.q2 > 0.0f) d = fit.qx / fit.q2;
    const int bits = f32_to_f16(d * 1.1125f);
    for (int i = 0; i < 4; ++i) {
      out.scales[i] = static_cast<uint16_t>(out.scales[i] | (((bits >> (4 * i)) & 15) << 12));
    }
  }
};

}  // namespace

const WeightFormat& iq1_m_format() {
  static const IQ1_MFormat format;
  return format;
}

}  // namespace assay
