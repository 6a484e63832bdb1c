#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/cuda_plan.h"
#include "runtime/device/cuda_support.h"
#include "runtime/executor.h"
#include "runtime/ops/decode_cuda.h"

namespace assay::cuda {

/// A model on one GPU. All memory is one arena, sized at load from the ledger; nothing is allocated
/// afterwards. Greedy decoding is a captured graph: embedding, one kernel for all layers and the
/// head, choice; or, where the device or the model does not allow that, five kernels a layer.
class CudaExecutor : public Executor {
 public:
  CudaExecutor(int index, std::shared_ptr<const Checkpoint> checkpoint,
               const ExecutorOptions& options);
  ~CudaExecutor() override;

  const Program& program() const override { return plan_.program; }
  const ExecutorOptions& options() const override { return options_; }
  std::string device_name() const override;
  std::vector<LedgerItem> ledger() const override { return plan_.ledger; }
  int64_t length(int sequence) const override { return lengths_.at(static_cast<size_t>(sequence)); }
  void reset(int sequence) override { lengths_.at(static_cast<size_t>(sequence)) = 0; }
  void forward(std::span<const BatchItem> items, std::vector<float>& logits,
               const OpObserver& observer) override;
  std::vector<int32_t> decode_greedy(int sequence, int32_t first_token, int64_t n_tokens) override;
  std::optional<double> measure_read_bandwidth() override;
  std::vector<NodeTime> time_decode_nodes(int sequence, int repeats) override;

  /// Runs decode steps without the graph; equal bits, for tests and timelines.
  void set_eager(bool eager) { eager_ = eager; }
  /// Logits of the last step of decode_greedy, for tests.
  std::vector<float> last_logits();
  /// Whether graphs use the kernel for whole steps where they can; equal bits, for tests.
  void use_step_kernel(bool use);

 private:
  /// One row of a pass.
  struct PassRow {
    int32_t token = 0, position = 0, sequence = 0;
    bool selected = false;
  };

  void check_items(std::span<const BatchItem> items) const;
  void upload_rows(std::span<const PassRow> rows);
  void run_pass(std::span<const PassRow> rows, std::vector<float>& logits,
                const OpObserver& observer);
  void run_body(int tokens, bool one_token_each, bool dependent, const OpObserver& observer);
  void run_head(const float* rows, int n, bool dependent);
  /// A step of the plan; `one_token_each`: of different sequences.
  void run_step(const Step& step, int tokens, bool one_token_each, bool dependent);
  void run_linear(const LinearStep& step, const float* x, int tokens, bool dependent);
  void observe(const Op& op, Register r, int rows, const OpObserver& observer);
  void capture_decode_graph();
  /// The norm before the head lies inside the head's kernel: its rows are computed on the host.
  void observe_last_norm(int first_row, int rows, const OpObserver& observer);
  void throw_on_fault();
  bool has_step_kernel() const { return use_step_kernel_ && plan_.step_program.has_value(); }
  /// The plan's steps and the head with what they read for a token at `position`, no times yet.
  std::vector<NodeTime> nodes_at(int64_t position) const;
  /// Microseconds of each, from so many runs.
  std::vector<std::vector<double>> time_stages(int repeats);
  std::vector<std::vector<double>> time_kernels(int repeats);

  int index_ = 0;
  ExecutorOptions options_;
  Stream stream_;
  Plan plan_;
  std::vector<int64_t> lengths_;
  PinnedBuffer pinned_;
  GraphExec graph_;
  bool eager_ = false;
  bool use_step_kernel_ = true;
};

}  // namespace assay::cuda
