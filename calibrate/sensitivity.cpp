#include "calibrate/sensitivity.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "calibrate/backward.h"
#include "calibrate/gradient_kernels.h"
#include "calibrate/gradient_ops.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/math.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr int64_t kHeadValues = int64_t{1} << 22;  // logits that are held at once
constexpr int64_t kLeastHeadRows = 32;

size_t at(int64_t i) { return static_cast<size_t>(i); }

int64_t head_rows(const Program& program) {
  const int64_t n = program.registers[at(program.logits.index)].columns;
  return std::max(kLeastHeadRows, kHeadValues / n);
}

// A number in [0, 1) from a counter alone: 53 bits of SplitMix64 (Steele et al. 2014).
double uniform(uint64_t counter) {
  uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// Logits become the derivative of −log p of a token drawn from them: p less 1 at that token.
void draw(float* logits, int64_t n, double chance) {
  const float most = vector_kernels().largest(logits, n);
  for (int64_t i = 0; i < n; ++i) logits[i] = logits[i] - most;
  vector_kernels().exp(logits, n, logits);
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) total += static_cast<double>(logits[i]);
  double left = chance * total;
  int64_t token = 0;
  for (; token + 1 < n; ++token) {
    left -= static_cast<double>(logits[token]);
    if (left < 0.0) break;
  }
  const float sum = static_cast<float>(total);
  for (int64_t i = 0; i < n; ++i) logits[i] = logits[i] / sum;
  logits[token] = logits[token] - 1.0f;
}

}  // namespace

RowChains::RowChains(int64_t out_features) : n_rows(out_features) {
  n_chains = (out_features + kChainRows - 1) / kChainRows;
  length = (out_features + n_chains - 1) / std::max<int64_t>(1, n_chains);
}

int64_t RowChains::end(int64_t chain) const { return std::min(n_rows, (chain + 1) * length); }

int64_t RowChains::n_values() const {
  if (n_chains == 0) return 0;
  const int64_t last = n_rows - begin(n_chains - 1);
  return (n_chains - 1) * length * length + last * last;
}

std::span<const float> Sensitivities::of(int matrix, std::vector<float>& scratch) const {
  if (known_[at(matrix)] == 0) return {};
  return store_->view(matrix, scratch);
}

/// The pass over one model.
class SensitivityPass {
 public:
  SensitivityPass(const Program& program, std::shared_ptr<const Checkpoint> checkpoint,
                  const WantedMatrix& wanted, const TokenWindows& windows,
                  const SensitivityOptions& options, ActivationMemory& memory)
      : program_(program),
        checkpoint_(std::move(checkpoint)),
        wanted_(wanted),
        windows_(spread_windows(windows, options.n_windows)),
        walk_(program, weights_, windows_, WalkOptions{options.kv_type, 1}, memory),
        backward_(program, weights_) {
    weights_.checkpoint = checkpoint_;
    found_.store_ =
        std::make_unique<ActivationStore>(memory, static_cast<int64_t>(program.matrices.size()));
    found_.known_.resize(program.matrices.size());
  }

  Sensitivities run(const std::function<void(double)>& progress) {
    const auto n_layers = static_cast<int>(program_.layers.size());
    std::vector<StreamWalk> starts = walk_forward(n_layers, progress);
    differentiate_head();
    starts.pop_back();  // the end of the last layer
    for (int layer = n_layers; layer-- > 0;) {
      differentiate_layer(layer, starts.back());
      starts.pop_back();
      if (progress) progress(1.0 - 0.75 * layer / n_layers);
    }
    return std::move(found_);
  }

 private:
  void bind(int begin, int end) {
    bind_weights(program_, checkpoint_, begin, end, windows_.window_length, weights_);
  }
  void drop_weights() {
    for (auto& matrix : weights_.matrices) matrix.reset();
    for (auto& vector : weights_.vectors) vector = {};
    if (checkpoint_->safetensors() != nullptr) checkpoint_->safetensors()->release_pages();
  }

  // The walk before each layer, and after the last.
  std::vector<StreamWalk> walk_forward(int n_layers, const std::function<void(double)>& progress) {
    bind(0, program_.layers.front().begin);
    walk_.embed();
    drop_weights();
    std::vector<StreamWalk> starts;
    for (int layer = 0; layer < n_layers; ++layer) {
      starts.push_back(walk_.fork(weights_));
      const OpRange& range = program_.layers[at(layer)];
      bind(range.begin, range.end);
      const LayerPlan whole =
          plan_ops(program_, layer, range, [](const MatrixSlot&) { return false; });
      walk_.run_segment(whole, 0);
      drop_weights();
      if (progress) progress(0.25 * (layer + 1) / n_layers);
    }
    starts.push_back(walk_.fork(weights_));
    return starts;
  }

  // gradients_ of the residual stream after the last layer.
  void differentiate_head() {
    const int begin = program_.layers.back().end;
    bind(begin, static_cast<int>(program_.ops.size()));
    const int64_t n_rows = windows_.window_length;
    const int64_t hidden = program_.registers[at(program_.residual.index)].columns;
    const int64_t vocabulary = program_.registers[at(program_.logits.index)].columns;
    gradients_.resize(at(windows_.n_windows));
    std::vector<float> scratch;
    for (int64_t window = 0; window < windows_.n_windows; ++window) {
      std::vector<float>& gradient = gradients_[at(window)][program_.residual.index];
      gradient.resize(at(n_rows * hidden));
      for (int64_t first = 0; first < n_rows; first += head_rows(program_)) {
        const int64_t n = std::min(head_rows(program_), n_rows - first);
        std::vector<float> logits = walk_.logits(window, first, n);
        const std::vector<float> capped = has_softcap() ? logits : std::vector<float>{};
        parallel_for(n, 4, [&](int64_t r0, int64_t r1) {
          for (int64_t row = r0; row < r1; ++row) {
            draw(logits.data() + row * vocabulary, vocabulary,
                 uniform(static_cast<uint64_t>(window * n_rows + first + row)));
          }
        });
        const std::span<const float> h =
            walk_.values(program_.residual).view(window, scratch).subspan(at(first * hidden));
        differentiate_logits(std::move(logits), capped, h.data(), n,
                             gradient.data() + first * hidden);
      }
    }
    drop_weights();
  }

  bool has_softcap() const { return std::holds_alternative<SoftcapOp>(program_.ops.back().kind); }

  // Back through the ops after the selection of rows: norm, head, softcap.
  void differentiate_logits(std::vector<float> d, const std::vector<float>& capped, const float* h,
                            int64_t n, float* out) {
    if (const auto* softcap = std::get_if<SoftcapOp>(&program_.ops.back().kind)) {
      softcap_gradient(capped.data(), softcap->cap, static_cast<int64_t>(d.size()), d.data());
    }
    backward_.clear();
    backward_.gradient(program_.logits) = std::move(d);
    const int begin = program_.layers.back().end;
    const int end = static_cast<int>(program_.ops.size()) - (has_softcap() ? 1 : 0);
    int selection = begin;
    while (!std::holds_alternative<SelectRowsOp>(program_.ops[at(selection)].kind)) ++selection;
    const auto& select = std::get<SelectRowsOp>(program_.ops[at(selection)].kind);
    CpuContext context;  // what the ops after the selection read first
    context.registers.f32.resize(program_.registers.size());
    context.n_rows = n;
    const int64_t hidden = program_.registers[at(select.out.index)].columns;
    context.registers.f32[at(select.out.index)].assign(h, h + n * hidden);
    backward_.record(selection + 1, context);
    backward_.run(selection + 1, end, n, nullptr);
    const std::vector<float>& gradient = backward_.gradient(select.out);
    std::copy(gradient.begin(), gradient.end(), out);
  }

  void differentiate_layer(int layer, StreamWalk& start) {
    const OpRange& range = program_.layers[at(layer)];
    bind(range.begin, range.end);
    sums_.clear();
    const std::vector<Register> live = live_before(program_, range.begin);
    for (int64_t window = 0; window < windows_.n_windows; ++window) {
      start.replay(range.begin, range.end, window,
                   [&](int op, const CpuContext& context) { backward_.record(op, context); });
      backward_.clear();
      for (auto& [index, values] : gradients_[at(window)]) {
        backward_.gradient({index}) = std::move(values);
      }
      gradients_[at(window)].clear();
      backward_.run(range.begin, range.end, windows_.window_length,
                    [&](int matrix, std::span<const float> gradient, int64_t rows) {
                      if (wanted_(program_.matrices[at(matrix)])) add(matrix, gradient, rows);
                    });
      for (const Register r : live) {
        std::vector<float>& values = backward_.gradient(r);
        if (!values.empty()) gradients_[at(window)][r.index] = std::move(values);
      }
    }
    drop_weights();
    for (auto& [matrix, sum] : sums_) keep(matrix, std::move(sum));
    sums_.clear();
  }

  // G += Σ_t g_t g_t^T, the lower triangles of the chains.
  void add(int matrix, std::span<const float> gradient, int64_t rows) {
    constexpr int64_t kTile = 48;
    const int64_t n = program_.matrices[at(matrix)].out_features;
    const RowChains chains(n);
    std::vector<float>& sum = sums_[matrix];
    sum.resize(at(chains.n_values()));
    for (int64_t c = 0; c < chains.n_chains; ++c) {
      const float* g = gradient.data() + chains.begin(c);
      float* out = sum.data() + chains.first_value(c);
      const int64_t length = chains.end(c) - chains.begin(c);
      parallel_for(length, kTile, [&](int64_t begin, int64_t end) {
        gradient_kernels().multiply(g + begin, 1, n, g, n, end - begin, rows, end,
                                    out + begin * length, length);
      });
    }
  }

  void keep(int matrix, std::vector<float> sum) {
    const MatrixSlot& slot = program_.matrices[at(matrix)];
    const int64_t bad = find_not_finite(sum.data(), static_cast<int64_t>(sum.size()));
    if (bad >= 0) {
      throw NumericError(slot.module +
                         ": a derivative of the predictions with respect to its outputs is not "
                         "finite; use --sensitivity-windows 0");
    }
    const RowChains chains(slot.out_features);
    for (int64_t c = 0; c < chains.n_chains; ++c) {
      float* values = sum.data() + chains.first_value(c);
      const int64_t length = chains.end(c) - chains.begin(c);
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t j = i + 1; j < length; ++j) values[i * length + j] = values[j * length + i];
      }
    }
    found_.store_->put(matrix, std::move(sum));
    found_.known_[at(matrix)] = 1;
  }

  const Program& program_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  const WantedMatrix& wanted_;
  TokenWindows windows_;
  CpuWeights weights_;
  StreamWalk walk_;
  Backward backward_;
  std::vector<std::map<int, std::vector<float>>> gradients_;  // by window, register
  std::map<int, std::vector<float>> sums_;                    // by matrix of the layer at work
  Sensitivities found_;
};

Sensitivities measure_sensitivities(const Program& program,
                                    std::shared_ptr<const Checkpoint> checkpoint,
                                    const WantedMatrix& wanted, const TokenWindows& windows,
                                    const SensitivityOptions& options, ActivationMemory& memory,
                                    const std::function<void(double)>& progress) {
  return SensitivityPass(program, std::move(checkpoint), wanted, windows, options, memory)
      .run(progress);
}

SensitivityCost sensitivity_cost(const Program& program, const WantedMatrix& wanted,
                                 int64_t n_windows, int64_t window_length,
                                 const SensitivityOptions& options) {
  SensitivityCost cost;
  const auto tokens = static_cast<uint64_t>(std::min(options.n_windows, n_windows) * window_length);
  uint64_t live = 0;      // bytes per token between layers, at most
  uint64_t backward = 0;  // of one window through one layer
  for (const OpRange& range : program.layers) {
    uint64_t here = 0;
    for (const Register r : live_before(program, range.begin)) {
      here += at(program.registers[at(r.index)].columns) * sizeof(float);
    }
    live = std::max(live, here);
    backward =
        std::max(backward, Backward::peak_bytes(program, range.begin, range.end, window_length));
  }
  std::map<int, uint64_t> sums;     // by layer
  std::map<int, uint64_t> weights;  // by layer, −1: the head
  for (const MatrixSlot& slot : program.matrices) {
    const bool is_head = slot.role == Role::kHead;
    if (slot.layer >= 0 || is_head) {
      weights[slot.layer] +=
          PackedMatrix::bytes_for(scalar_format(program.spec.source_dtype), slot.out_features,
                                  slot.in_features, slot.in_features);
    }
    if (!wanted(slot) || slot.expert >= 0) continue;
    const uint64_t bytes = at(RowChains(slot.out_features).n_values()) * sizeof(float);
    cost.found_bytes += bytes;
    sums[slot.layer] += bytes;
  }
  uint64_t layer = 0;
  for (const auto& [index, bytes] : weights) {
    if (index >= 0) layer = std::max(layer, bytes + backward + sums[index]);
  }
  const int64_t vocabulary = program.registers[at(program.logits.index)].columns;
  const uint64_t head = weights[-1] + 3 * at(head_rows(program) * vocabulary) * sizeof(float);
  cost.work_bytes = live * tokens + std::max(layer, head);  // derivatives of all windows
  cost.stored_bytes = live * tokens * (program.layers.size() + 1) + cost.found_bytes;
  return cost;
}

}  // namespace assay
