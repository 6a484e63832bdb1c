#include "quantizer/held_out.h"

#include <algorithm>

#include "convert/core/parallel.h"
#include "runtime/ops/nll.h"
#include "verify/logits.h"
#include "verify/row_statistics.h"

namespace assay {
namespace {

WindowScores sized(size_t n) {
  return {std::vector<float>(n), std::vector<int32_t>(n), std::vector<float>(n)};
}

void set(std::span<const float> logits, int32_t target, size_t at, WindowScores& scores) {
  const Margin margin = margin_of(logits);
  scores.nll[at] = nll(logits, target);
  scores.argmax[at] = margin.best;
  scores.margin[at] = margin.margin;
}

}  // namespace

HeldOut::HeldOut(const Program& program, const CpuWeights& quantized, const CpuWeights& plain,
                 const TokenWindows& windows, KvType kv_type, ActivationMemory& memory)
    : windows_(windows),
      plain_weights_(plain),
      quantized_(program, quantized, windows, {kv_type, windows.window_length}, memory),
      plain_(program, plain, windows, {kv_type, windows.window_length}, memory) {}

void HeldOut::embed() {
  quantized_.embed();
  plain_ = quantized_.fork(plain_weights_);
}

void HeldOut::forward(const LayerPlan& plan, size_t segment) {
  quantized_.run_segment(plan, segment);
  plain_.run_segment(plan, segment);
}

NllComparison HeldOut::compare(StreamWalk& quantized) {
  NllComparer comparer;
  for (int64_t w = 0; w < windows_.n_windows; ++w) comparer.add(score(w, quantized));
  return comparer.finish();
}

// A batch of these walks is one window.
PairedWindowScores HeldOut::score(int64_t window, StreamWalk& quantized) {
  const std::span<const int32_t> ids = windows_.window(window);
  const int64_t n_scored = windows_.window_length - 1;
  PairedWindowScores scores;
  scores.a = sized(static_cast<size_t>(n_scored));
  scores.b = sized(static_cast<size_t>(n_scored));
  scores.kld.resize(static_cast<size_t>(n_scored));
  for (int64_t first = 0; first < n_scored; first += kHeldOutRows) {
    const int64_t n = std::min(kHeldOutRows, n_scored - first);
    const std::vector<float> a = plain_.logits(window, first, n);
    const std::vector<float> b = quantized.logits(window, first, n);
    const size_t columns = a.size() / static_cast<size_t>(n);
    parallel_for(n, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto row_a = std::span(a).subspan(static_cast<size_t>(i) * columns, columns);
        const auto row_b = std::span(b).subspan(static_cast<size_t>(i) * columns, columns);
        const auto at = static_cast<size_t>(first + i);
        set(row_a, ids[at + 1], at, scores.a);
        set(row_b, ids[at + 1], at, scores.b);
        scores.kld[at] = kld_of_rows(row_a, row_b);
      }
    });
  }
  return scores;
}

}  // namespace assay
