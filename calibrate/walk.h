#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/dataset.h"
#include "calibrate/gram.h"
#include "calibrate/layer_plan.h"
#include "calibrate/store.h"
#include "runtime/cpu_executor.h"

namespace assay {

struct WalkOptions {
  KvType kv_type = KvType::kF16;
  int64_t batch_tokens = 1024;  // windows are taken together up to about this many tokens
};

/// The products of the inputs of one linear over all tokens: Y in the quantized stream, X in the
/// 16-bit stream; T and S what the two hold of the sum to which the linear's output is added.
/// Differences are taken in fp32.
struct StopProducts {
  Hessian hessian;                             // H = Y^T Y
  std::optional<CrossProduct> drift;           // D = (X − Y)^T Y; none: it is zero
  std::optional<CrossProduct> residual_drift;  // E = (S − T)^T Y; likewise
};

/// One stream of activations through a program: all calibration windows, op by op, from stop to
/// stop of a layer plan. Each op runs once per window. A second stream (16-bit weights beside
/// quantized ones) is a second object with its own weights. Results do not depend on batch_tokens,
/// on threads or on what was spilled.
class StreamWalk {
 public:
  /// All references must outlive the object. `weights` may change between calls.
  StreamWalk(const Program& program, const CpuWeights& weights, const TokenWindows& windows,
             const WalkOptions& options, ActivationMemory& memory);

  /// A second walk from the same place with weights of its own: values are shared until one of the
  /// two moves on.
  StreamWalk fork(const CpuWeights& weights) const {
    StreamWalk other = *this;
    other.weights_ = &weights;
    return other;
  }

  /// A walk that is at no place yet, over other windows with weights of its own; the two take turns
  /// in the memory of one batch. References must outlive it.
  StreamWalk beside(const CpuWeights& weights, const TokenWindows& windows) const;

  int64_t n_batches() const { return static_cast<int64_t>(batches_.size()); }
  int64_t batch_rows(int64_t batch) const;

  /// Ops before the first decoder layer: the embedding.
  void embed();
  /// Segment `index` of the plan. The captured input of its stop, if it ends at one, can be read
  /// afterwards. `progress` is called after each batch with the share of this call that is done.
  void run_segment(const LayerPlan& plan, size_t index,
                   const std::function<void(double)>& progress = nullptr);

  /// Captured values and their channel maxima, after the segment that ends at the stop.
  const ActivationStore& values(Register r) const { return *stores_.at(r.index); }
  const ChannelMaxima& captured_maxima() const { return *maxima_; }
  /// H, D and E of the captured input of `stop`. `plain`: the 16-bit stream at the same stop, over
  /// the windows of this one or some of them (spread_windows), from which D and E are taken and
  /// scaled to all; null: there is none, and so no D and E. E only if it is asked for. Throws
  /// NumericError with `name`, channel and window if a value is not finite.
  StopProducts products(const CaptureStop& stop, const std::string& name, const StreamWalk* plain,
                        bool residual, const std::function<void(double)>& progress = nullptr) const;
  /// Rows that each expert reads at a stop with routes.
  std::vector<int64_t> routed_counts(const CaptureStop& stop, int n_experts) const;
  /// Calls body(rows, n_rows) for each batch with what expert `expert` reads of it there, tokens
  /// ascending.
  void for_routed_rows(const CaptureStop& stop, int expert,
                       const std::function<void(const float*, int64_t)>& body) const;
  /// Gram matrix of the rows that expert `expert` reads there. Throws likewise.
  Hessian routed_hessian(const CaptureStop& stop, int expert, const std::string& name) const;
  /// D over the tokens that both walks send to this expert, of all windows or some, as above.
  /// Throws likewise.
  CrossProduct routed_drift(const StreamWalk& plain, const CaptureStop& stop, int expert,
                            const std::string& name) const;
  /// After the last layer: logits (n_rows, vocab_size) of the rows [first_row, first_row + n_rows)
  /// of a batch. Needs the weights of the ops after the layers.
  std::vector<float> logits(int64_t batch, int64_t first_row, int64_t n_rows);

  /// Runs ops [begin, end) on a batch again from the values that are held, without moving on;
  /// `before` sees each op and what it is about to read. Needs the weights of these ops.
  void replay(int begin, int end, int64_t batch,
              const std::function<void(int op, const CpuContext& context)>& before);

  /// Registers that are held now, ascending: between layers the residual stream (and whatever else
  /// lives across layers).
  std::vector<int> held_registers() const;
  /// Their values, register by register, batch by batch; and back.
  void save(const std::function<void(std::span<const float>)>& sink) const;
  /// Whether a stream can go on from these registers: ascending, fp32, the residual among them.
  bool can_restore(const std::vector<int>& registers) const;
  /// Asks for the values of these registers in the order in which save() gave them out.
  void restore(const std::vector<int>& registers,
               const std::function<void(std::span<float>)>& source);

 private:
  struct Batch {
    int64_t first_window = 0;
    int64_t n_windows = 0;
  };
  struct RoutedScratch {
    std::vector<float> values;
    std::vector<float> ids;
  };
  /// What a batch captured at a stop with routes: `ids` (tokens, top_k), and values with a row for
  /// each token or for each of its slots.
  struct RoutedBatch {
    std::span<const float> values;
    std::span<const float> ids;
    size_t top_k = 0;
    size_t columns = 0;
    bool row_per_slot = false;
    /// The row of `token` that the expert reads; empty if it is sent elsewhere.
    std::span<const float> row_of(size_t token, int expert) const;
  };
  RoutedBatch routed_batch(const CaptureStop& stop, int64_t batch, RoutedScratch& scratch) const;
  class Rows;
  class Difference;
  /// Calls body(x, y, n_rows) for each window with what the expert reads of the tokens that `plain`
  /// and this walk both send to it: x what it has there less what it has here, y here.
  void for_common_rows(const StreamWalk& plain, const CaptureStop& stop, int expert,
                       const std::function<void(const float*, const float*, int64_t)>& body) const;
  int64_t columns_of(Register r) const {
    return program_->registers[static_cast<size_t>(r.index)].columns;
  }
  void cut_batches();
  void check_captured(const CaptureStop& stop, const std::string& name) const;
  int64_t n_windows() const { return windows_->n_windows; }
  int64_t windows_per_batch() const { return batches_.front().n_windows; }
  double scale_from(const StreamWalk& some) const;
  void run_ops(const Segment& segment, Register captured, int slots,
               const std::function<void(double)>& progress);
  void prepare_batch(const Segment& segment, int64_t batch);
  void run_range(int begin, int end);
  std::vector<float> take_spare(size_t size);
  void keep_spare(std::vector<float> values);
  KvCache& cache_for(const Segment& segment, int64_t n_sequences);

  const Program* program_;
  const CpuWeights* weights_;
  const TokenWindows* windows_;
  WalkOptions options_;
  ActivationMemory* memory_;
  std::vector<Batch> batches_;
  std::map<int, std::shared_ptr<ActivationStore>> stores_;  // by register index
  std::shared_ptr<ChannelMaxima> maxima_;
  std::shared_ptr<CpuContext> context_;      // registers of one batch
  std::array<std::vector<float>, 4> spare_;  // memory of values that moved on, to be written again
  std::shared_ptr<KvCache> cache_;
  int cache_begin_ = -1;  // first op of the segment that cache_ is for
};

}  // namespace assay
