// linear() in plain loops over the packed layout: what CPUs without AVX2 run.
#include <bit>
#include <cmath>
#include <cstring>

#include "convert/core/dtype.h"
#include "runtime/math.h"
#include "runtime/ops/linear_kernels.h"

namespace assay {
namespace {

constexpr int kPanelTokens = 4;
constexpr int kMaxPanels = 64;
constexpr int kSegmentColumns = kSegmentGroups * 128;

/// Code of a row (lane) at a column of a segment; `plane` 1: the low plane of kFloat.
int32_t code_at(const MatrixLayout& matrix, const uint8_t* codes, int lane, int column, int plane) {
  const int byte = lane * 4 + column % 4;
  switch (matrix.code_bits) {
    case 4:
      return (codes[column / 8 * 64 + byte] >> (column % 8 / 4 * 4)) & 15;
    case 6: {
      const uint8_t* block = codes + column / 16 * 192;
      const int low = (block[column % 16 / 8 * 64 + byte] >> (column % 8 / 4 * 4)) & 15;
      const int high = (block[128 + byte] >> (column % 16 / 4 * 2)) & 3;
      return low | high << 4;
    }
    case 8:
      return codes[column / 4 * 64 + byte];
    default:
      return codes[column / 4 * 128 + plane * 64 + byte];
  }
}

float scale_at(ScaleType type, const uint8_t* data, int set, int lane) {
  const int index = set * kTileRows + lane;
  if (type == ScaleType::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return type == ScaleType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

/// Codes of one row of one segment, one number each; [1]: the low plane of kFloat.
using RowCodes = int32_t[2][kSegmentColumns];

/// One row of one segment and one token of a panel.
struct RowSegment {
  const MatrixLayout& matrix;
  const SegmentLayout& layout;
  const uint8_t* segment;
  const RowCodes& codes;
  const Panel& panel;
  const int32_t* activations;  // of the segment
  int lane;
  int token;

  int n_subs() const { return 128 / matrix.piece; }
  const int32_t* group(int g) const { return activations + g * panel.group_stride; }
  float s(int g) const { return std::bit_cast<float>(group(g)[token]); }
  int32_t aux(int g, int index) const { return group(g)[panel.aux + index]; }
  int set(int column) const { return column / matrix.set_columns; }
  float scale(int set_index) const {
    return scale_at(matrix.scale_type, segment + layout.scales, set_index, lane);
  }
  float min(int set_index) const {
    return scale_at(matrix.scale_type, segment + layout.mins, set_index, lane);
  }
  int32_t byte_at(int part, int index) const { return segment[part + index * kTileRows + lane]; }

  /// Plane value (0: high, 1: low) of the activation at a column of the segment.
  int32_t x(int column, int plane) const {
    const int32_t quad =
        group(column / 128)[panel.quads + (column % 128 / 4 * panel.n_tokens + token) * 2 + plane];
    return static_cast<int8_t>(static_cast<uint32_t>(quad) >> (column % 4 * 8));
  }

  int32_t dot(int begin, int end, int weight_plane, int plane) const {
    int32_t sum = 0;
    for (int k = begin; k < end; ++k) sum += codes[weight_plane][k] * x(k, plane);
    return sum;
  }

  float fold_pieces() const {
    float acc = 0.0f;
    for (int begin = 0; begin < layout.groups * 128; begin += matrix.piece) {
      const int g = begin / 128;
      const int p = begin % 128 / matrix.piece;
      const int end = begin + matrix.piece;
      int32_t h = dot(begin, end, 0, 0);
      int32_t l = dot(begin, end, 0, 1);
      if (matrix.fold == KernelFold::kGroup) {
        h += aux(g, (p * panel.n_tokens + token) * 2);
        l += aux(g, (p * panel.n_tokens + token) * 2 + 1);
      }
      int32_t sum = 256 * h + l;
      if (matrix.fold == KernelFold::kZeros) {
        sum -= byte_at(layout.zeros, set(begin)) * aux(g, p * panel.n_tokens + token);
      }
      acc = fused(static_cast<float>(sum), scale(set(begin)) * s(g), acc);
      if (matrix.fold == KernelFold::kAffine) {
        const float q = std::bit_cast<float>(aux(g, p * panel.n_tokens + token));
        acc = fused(q, min(set(begin)) * s(g), acc);
      }
    }
    return acc;
  }

  /// Σ min_sub · Q_sub of one group.
  int32_t sum_minima(int g) const {
    int32_t h = 0;
    int32_t l = 0;
    for (int p = 0; p < n_subs(); ++p) {
      const int32_t* pair = group(g) + panel.mins + (p / 2 * panel.n_tokens + token) * 2;
      const auto shift = static_cast<unsigned>(p % 2 * 16);
      const auto m = static_cast<int8_t>(byte_at(layout.sub_mins, g * n_subs() + p));
      h += m * static_cast<int16_t>(static_cast<uint32_t>(pair[0]) >> shift);
      l += m * static_cast<int16_t>(static_cast<uint32_t>(pair[1]) >> shift);
    }
    return 256 * h + l;
  }

  float fold_super_blocks() const {
    float acc = 0.0f;
    for (int g = 0; g < layout.groups; ++g) {
      int32_t high = 0;
      int32_t low = 0;
      for (int p = 0; p < n_subs(); ++p) {
        const int begin = g * 128 + p * matrix.piece;
        const int end = begin + matrix.piece;
        const auto sub = static_cast<int8_t>(byte_at(layout.sub_scales, g * n_subs() + p));
        const int at = (p * panel.n_tokens + token) * 2;
        high += sub * (dot(begin, end, 0, 0) + aux(g, at));
        low += sub * (dot(begin, end, 0, 1) + aux(g, at + 1));
      }
      const float value = fused(256.0f, static_cast<float>(high), static_cast<float>(low));
      acc = fused(value, scale(set(g * 128)) * s(g), acc);
      if (matrix.has_mins) {
        acc = fused(static_cast<float>(sum_minima(g)), -min(set(g * 128)) * s(g), acc);
      }
    }
    return acc;
  }

  float fold_floats() const {
    float acc = 0.0f;
    for (int g = 0; g < layout.groups; ++g) {
      const int begin = g * 128;
      const int end = begin + 128;
      const int32_t hh = dot(begin, end, 0, 0) + aux(g, 3 * token);
      const int32_t mixed = dot(begin, end, 0, 1) + dot(begin, end, 1, 0) + aux(g, 3 * token + 1);
      const int32_t ll = dot(begin, end, 1, 1) + aux(g, 3 * token + 2);
      const float inner = fused(256.0f, static_cast<float>(mixed), static_cast<float>(ll));
      const float value = fused(65536.0f, static_cast<float>(hh), inner);
      acc = fused(value, scale(set(begin)) * s(g), acc);
    }
    return acc;
  }

  float fold() const {
    switch (matrix.fold) {
      case KernelFold::kSuper:
        return fold_super_blocks();
      case KernelFold::kFloat:
        return fold_floats();
      default:
        return fold_pieces();
    }
  }
};

bool run_row(const LinearCall& call, int64_t row) {
  const MatrixLayout& matrix = *call.matrix;
  const int lane = static_cast<int>(row % kTileRows);
  const uint8_t* segment = matrix.data + row / kTileRows * matrix.tile_bytes;
  float totals[kMaxPanels * kPanelTokens] = {};  // by token
  RowCodes codes;
  for (int64_t s = 0; s < matrix.n_segments; ++s, segment += matrix.full.bytes) {
    const SegmentLayout& layout = segment_layout(matrix, s);
    for (int plane = 0; plane < (matrix.fold == KernelFold::kFloat ? 2 : 1); ++plane) {
      for (int k = 0; k < layout.groups * 128; ++k) {
        codes[plane][k] = code_at(matrix, segment + layout.codes, lane, k, plane);
      }
    }
    float* total = totals;
    for (int64_t i = 0; i < call.n_panels; ++i) {
      const Panel& panel = call.panels[i];
      const int32_t* activations = panel_segment(panel, s);
      for (int token = 0; token < panel.n_tokens; ++token, ++total) {
        const RowSegment part{matrix, layout, segment, codes, panel, activations, lane, token};
        const float sum = part.fold();
        *total = s == 0 ? sum : *total + sum;
      }
    }
  }
  bool bad = false;
  const float* total = totals;
  for (int64_t i = 0; i < call.n_panels; ++i) {
    float* out = call.out + call.panels[i].first_token * call.out_stride + row;
    for (int token = 0; token < call.panels[i].n_tokens; ++token, ++total) {
      bad = bad || is_not_finite(*total);
      out[token * call.out_stride] = call.bias != nullptr ? *total + call.bias[row] : *total;
    }
  }
  return bad;
}

bool run(const LinearCall& call, int64_t tile_begin, int64_t tile_end) {
  bool bad = false;
  for (int64_t row = tile_begin * kTileRows; row < tile_end * kTileRows && row < call.matrix->rows;
       ++row) {
    bad = run_row(call, row) || bad;
  }
  return bad;
}

constexpr LinearKernels kKernels = {kPanelTokens, kPanelTokens, kMaxPanels, false, false, &run};

}  // namespace

const LinearKernels& linear_kernels_scalar() { return kKernels; }

}  // namespace assay
