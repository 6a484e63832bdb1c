#include "runtime/ops/linear.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "runtime/math.h"
#include "runtime/ops/linear_kernels.h"
#include "runtime/ops/linear_row.h"
#include "runtime/ops/linear_state.h"

namespace assay {
namespace {

constexpr int64_t kCacheBytes = 256 << 10;  // of a segment of the activations of one kernel call
constexpr int64_t kChunksPerThread = 8;

/// Σ of a row of plane sums over one piece.
int32_t piece_sum(const int16_t* sums, int64_t first, int64_t n) {
  int32_t total = 0;
  for (int64_t i = first; i < first + n; ++i) total += sums[i];
  return total;
}

uint32_t pair_of(int32_t low, int32_t high) {
  return (static_cast<uint32_t>(low) & 0xffffu) | static_cast<uint32_t>(high) << 16;
}

/// Activations of all tokens as panels, in batches that one kernel call goes over.
class Panels {
 public:
  Panels(const MatrixLayout& matrix, const BlockInt16& x, const LinearKernels& kernels);

  struct Batch {
    int64_t begin = 0;  // panels
    int64_t end = 0;
    int64_t segment_stride = 0;
  };
  const std::vector<Batch>& batches() const { return batches_; }
  const Panel* panel(int64_t index) const { return &panels_[static_cast<size_t>(index)]; }

 private:
  void plan(Panel& panel) const;
  void fill(const Panel& panel) const;
  void fill_quads(int64_t row, int64_t group, int64_t t, int64_t n_tokens, int32_t* out) const;
  void fill_aux(int64_t row, int64_t group, int64_t t, int64_t n_tokens, int32_t* aux,
                int32_t* mins) const;

  bool has_pairs() const {
    return matrix_.fold == KernelFold::kSuper && (matrix_.has_mins || matrix_.zero != 0);
  }

  const MatrixLayout& matrix_;
  const BlockInt16& x_;
  const bool words_;     // quads are whole activations
  const bool and_high_;  // and the high plane beside them, in the order of float_words
  const int quad_size_;  // of a token, in int32
  std::vector<Panel> panels_;
  std::vector<Batch> batches_;
};

Panels::Panels(const MatrixLayout& matrix, const BlockInt16& x, const LinearKernels& kernels)
    : matrix_(matrix),
      x_(x),
      words_(kernels.words && matrix.code_bits == 8 && matrix.fold != KernelFold::kSuper),
      and_high_(kernels.float_words && matrix.fold == KernelFold::kFloat),
      quad_size_(and_high_ ? 3 : 2) {
  const int64_t most =
      matrix.fold == KernelFold::kFloat ? kernels.panel_tokens_float : kernels.panel_tokens;
  // Panels of nearly equal size: 9 tokens are 5 + 4, not 6 + 3.
  const int64_t n_panels = (x.rows + most - 1) / most;
  int64_t largest_bytes = 0;  // of a segment
  for (int64_t i = 0; i < n_panels; ++i) {
    Panel& panel = panels_.emplace_back();
    const int64_t first = x.rows * i / n_panels;
    panel.first_token = static_cast<int32_t>(first);
    panel.n_tokens = static_cast<int32_t>(x.rows * (i + 1) / n_panels - first);
    plan(panel);
    largest_bytes = std::max<int64_t>(largest_bytes, panel.group_stride * kSegmentGroups * 4);
  }
  const int64_t per_batch = std::clamp<int64_t>(kCacheBytes / largest_bytes, 1, kernels.max_panels);
  const int64_t n_batches = (n_panels + per_batch - 1) / per_batch;
  std::vector<int64_t> begins;  // of the panels, in int32
  int64_t size = 0;
  for (int64_t i = 0; i < n_batches; ++i) {
    Batch& batch = batches_.emplace_back();
    batch.begin = n_panels * i / n_batches;
    batch.end = n_panels * (i + 1) / n_batches;
    for (int64_t j = batch.begin; j < batch.end; ++j) {
      begins.push_back(size + batch.segment_stride);
      batch.segment_stride += panel(j)->group_stride * kSegmentGroups;
    }
    size += batch.segment_stride * matrix.n_segments;
  }
  // Kept from call to call: fresh memory costs page faults.
  thread_local std::vector<int32_t> buffer;
  constexpr int64_t kMargin = 16;  // for alignment
  if (static_cast<int64_t>(buffer.size()) < size + kMargin) {
    buffer.resize(static_cast<size_t>(size + kMargin));
  }
  int32_t* base = buffer.data();
  base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64 / 4;
  for (const Batch& batch : batches_) {
    for (int64_t j = batch.begin; j < batch.end; ++j) {
      Panel& p = panels_[static_cast<size_t>(j)];
      p.data = base + begins[static_cast<size_t>(j)];
      p.segment_stride = batch.segment_stride;
    }
  }
  const auto fill_range = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fill(*panel(i));
  };
  if (n_panels < 4) {
    fill_range(0, n_panels);
  } else {
    parallel_for(n_panels, 4, fill_range);
  }
}

void Panels::plan(Panel& panel) const {
  const int32_t n = panel.n_tokens;
  const int32_t n_subs = 128 / matrix_.piece;
  int32_t aux = 0;
  switch (matrix_.fold) {
    case KernelFold::kGroup:
    case KernelFold::kSuper:
      aux = n_subs * n * 2;
      break;
    case KernelFold::kZeros:
    case KernelFold::kAffine:
      aux = n_subs * n;
      break;
    case KernelFold::kFloat:
      aux = n * 3;
      break;
  }
  const auto align = [](int32_t at) { return (at + 15) / 16 * 16; };
  panel.aux = n;
  panel.mins = panel.aux + aux;
  panel.quads = align(panel.mins + (has_pairs() ? (n_subs + 1) / 2 * n * 2 : 0));
  panel.group_stride = align(panel.quads + kGroupQuads * n * quad_size_);
}

void Panels::fill(const Panel& panel) const {
  const int64_t n = panel.n_tokens;
  for (int64_t group = 0; group < x_.n_groups(); ++group) {
    // The buffer behind `data` is this object's own.
    auto* out = const_cast<int32_t*>(panel_segment(panel, group / kSegmentGroups)) +
                group % kSegmentGroups * panel.group_stride;
    for (int64_t t = 0; t < n; ++t) {
      const int64_t row = panel.first_token + t;
      const float s = x_.scales[static_cast<size_t>(row * x_.n_groups() + group)];
      out[t] = std::bit_cast<int32_t>(s);
      fill_aux(row, group, t, n, out + panel.aux, out + panel.mins);
      fill_quads(row, group, t, n, out + panel.quads);
    }
  }
}

void Panels::fill_quads(int64_t row, int64_t group, int64_t t, int64_t n_tokens,
                        int32_t* out) const {
  const auto at = static_cast<size_t>(row * x_.padded_columns + group * kActivationGroup);
  const int8_t* high = x_.high.data() + at;
  const int8_t* low = x_.low.data() + at;
  int16_t words[kActivationGroup];
  if (words_ || and_high_) {
    for (int64_t i = 0; i < kActivationGroup; ++i) {
      words[i] = static_cast<int16_t>(256 * high[i] + low[i]);
    }
  }
  for (int64_t q = 0; q < kGroupQuads; ++q) {
    int32_t* quad = out + (q * n_tokens + t) * quad_size_;
    if (and_high_) {
      uint64_t w;  // words 0, 1, 2, 3 become 0, 2, 1, 3
      std::memcpy(&w, words + 4 * q, sizeof(w));
      w = (w & 0xffff00000000ffffu) | (w >> 16 & 0xffff0000u) | (w & 0xffff0000u) << 16;
      std::memcpy(quad, &w, sizeof(w));
      std::memcpy(quad + 2, high + 4 * q, 4);
    } else if (words_) {
      std::memcpy(quad, words + 4 * q, 4 * sizeof(int16_t));
    } else {
      std::memcpy(quad, high + 4 * q, 4);
      std::memcpy(quad + 1, low + 4 * q, 4);
    }
  }
}

void Panels::fill_aux(int64_t row, int64_t group, int64_t t, int64_t n_tokens, int32_t* aux,
                      int32_t* mins) const {
  const auto at = static_cast<size_t>((row * x_.n_groups() + group) * (128 / kSumColumns));
  const int16_t* high_sums = x_.high_sums.data() + at;
  const int16_t* low_sums = x_.low_sums.data() + at;
  const int64_t per_piece = matrix_.piece / kSumColumns;
  const int64_t n_subs = 128 / matrix_.piece;
  int32_t h[8] = {};
  int32_t l[8] = {};
  for (int64_t p = 0; p < n_subs; ++p) {
    h[p] = piece_sum(high_sums, p * per_piece, per_piece);
    l[p] = piece_sum(low_sums, p * per_piece, per_piece);
  }
  for (int64_t p = 0; p < n_subs; ++p) {
    const int64_t index = p * n_tokens + t;
    switch (matrix_.fold) {
      case KernelFold::kGroup:
      case KernelFold::kSuper:
        aux[index * 2] = -matrix_.zero * h[p];
        aux[index * 2 + 1] = -matrix_.zero * l[p];
        break;
      case KernelFold::kZeros:
        aux[index] = 256 * h[p] + l[p];
        break;
      case KernelFold::kAffine:
        aux[index] = std::bit_cast<int32_t>(static_cast<float>(256 * h[p] + l[p]));
        break;
      case KernelFold::kFloat:
        aux[t * 3] = -128 * h[0];
        aux[t * 3 + 1] = -128 * (h[0] + l[0]);
        aux[t * 3 + 2] = -128 * l[0];
        break;
    }
  }
  if (!has_pairs()) return;
  for (int64_t p = 0; p < n_subs; p += 2) {
    int32_t* pair = mins + (p / 2 * n_tokens + t) * 2;
    const bool second = p + 1 < n_subs;
    pair[0] = static_cast<int32_t>(pair_of(h[p], second ? h[p + 1] : 0));
    pair[1] = static_cast<int32_t>(pair_of(l[p], second ? l[p + 1] : 0));
  }
}

/// An infinite c_g makes the sum infinite or NaN, so kernels only look at sums; this finds the
/// lowest token and row that has such a product, if any (a sum may also overflow by itself).
void check_products(const PackedMatrix::State& state, const BlockInt16& x) {
  for (int64_t token = 0; token < x.rows; ++token) {
    for (int64_t row = 0; row < state.rows; ++row) {
      const int64_t step = std::min<int64_t>(state.layout.set_columns, kActivationGroup);
      for (int64_t column = 0; column < state.columns; column += step) {
        const float s =
            x.scales[static_cast<size_t>(token * x.n_groups() + column / kActivationGroup)];
        bool bad = is_not_finite(packed_scale(state.layout, row, column, false) * s);
        if (matrix_has_mins(state.layout)) {
          bad = bad || is_not_finite(packed_scale(state.layout, row, column, true) * s);
        }
        if (bad) throw InfiniteProduct(token, row);
      }
    }
  }
}

void linear_plain(const PackedMatrix::State& state, const BlockInt16& x,
                  std::span<const float> bias, float* out, int64_t out_stride) {
  parallel_for(state.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t token = 0; token < x.rows; ++token) {
        bool bad = false;
        float y = state.plain_rows[static_cast<size_t>(row)]->dot(x, token, &bad);
        if (bad) throw InfiniteProduct(token, row);
        if (!bias.empty()) y = y + bias[static_cast<size_t>(row)];
        out[token * out_stride + row] = y;
      }
    }
  });
}

/// Tiles per call of a kernel: even, several calls per thread.
int64_t tile_grain(int64_t n_tiles) {
  const int64_t grain = n_tiles / (n_threads() * kChunksPerThread);
  return std::max<int64_t>(2, grain / 2 * 2);
}

}  // namespace

void linear(const PackedMatrix& weights, const BlockInt16& x, std::span<const float> bias,
            float* out, int64_t out_stride) {
  const PackedMatrix::State& state = weights.state();
  ASSAY_CHECK(x.columns == state.columns);
  ASSAY_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == state.rows);
  if (x.rows == 0 || state.rows == 0) return;
  if (!state.plain_rows.empty()) {
    linear_plain(state, x, bias, out, out_stride);
    return;
  }
  const MatrixLayout& matrix = state.layout;
  const LinearKernels& kernels =
      by_isa<linear_kernels_scalar, linear_kernels_avx2, linear_kernels_avx512>();
  const Panels panels(matrix, x, kernels);
  std::atomic<bool> not_finite{false};
  parallel_for(matrix.n_tiles, tile_grain(matrix.n_tiles), [&](int64_t begin, int64_t end) {
    for (const Panels::Batch& batch : panels.batches()) {
      const LinearCall call{&matrix,
                            panels.panel(batch.begin),
                            batch.end - batch.begin,
                            bias.empty() ? nullptr : bias.data(),
                            out,
                            out_stride};
      if (kernels.run(call, begin, end)) not_finite.store(true, std::memory_order_relaxed);
    }
  });
  if (not_finite) check_products(state, x);
}

}  // namespace assay
