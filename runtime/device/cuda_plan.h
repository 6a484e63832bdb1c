#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/device/cuda_support.h"
#include "runtime/executor.h"
#include "runtime/ops/attention_cuda.h"
#include "runtime/ops/decode_cuda.h"
#include "runtime/ops/linear_cuda.h"
#include "runtime/ops/step_cuda.h"
#include "runtime/program.h"

namespace assay::cuda {

inline constexpr int kHeadRows = 128;  // rows whose logits are on the device at a time

/// Where the rows of a register lie: row i at data + i · stride.
struct DeviceRegister {
  float* data = nullptr;
  int32_t stride = 0;
};

/// norm (optional) + quantize + linears that read the same vector + what follows them.
struct LinearStep {
  std::vector<int> linears;  // op indices
  int reported_op = -1;      // op that wrote the visible result
  Register input;
  int norm_op = -1;         // op index, if there is a norm
  GemvArguments arguments;  // of one row of the input's register; x and tokens differ per run.
                            // kSwiGlu: one matrix, rows of gate and up interleaved
};

struct AttentionStep {
  int op = -1;
  AttentionArguments arguments;  // buffers and shapes; tokens are filled in per run
};

/// SwiGLU of gate and up that could not be fused (different formats).
struct SwiGluStep {
  int op = -1;
  DeviceRegister gate, up, out;
  int32_t columns = 0;
};

using Step = std::variant<LinearStep, AttentionStep, SwiGluStep>;

/// The decode step of one token as one kernel; its stages are the plan's steps, then the head.
struct StepProgram {
  StepArguments arguments;
  int grid = 0;
};

/// A program as device steps, with all its memory.
struct Plan {
  Program program;
  std::vector<LedgerItem> ledger;
  Arena arena;
  std::vector<DeviceRegister> registers;  // by Program::registers; data null if fused away
  std::vector<Step> steps;                // of all layers
  LinearStep head;
  std::optional<StepProgram> step_program;  // where the device and all steps allow it
  int embed_op = -1;
  DeviceMatrix embedding;                // packed table, or
  const void* embedding_rows = nullptr;  // raw rows
  ScaleType embedding_type = ScaleType::kBF16;
  DeviceActivations activations;  // widest input, max_batch_tokens rows
  int32_t* token_ids = nullptr;   // (max_batch_tokens)
  int32_t* positions = nullptr;
  int32_t* sequences = nullptr;
  int32_t* selected = nullptr;
  float* selected_rows = nullptr;  // (max_batch_tokens, hidden_size)
  float* logits = nullptr;         // (kHeadRows, vocab_size)
  int32_t* generated = nullptr;    // (context)
  int32_t* step = nullptr;
  float* greedy_partial = nullptr;
  int32_t* greedy_counters = nullptr;
  DeviceFault* fault = nullptr;
};

/// Sizes of everything that load takes, from headers alone.
std::vector<LedgerItem> estimate(const Checkpoint& checkpoint, const Program& program,
                                 const ExecutorOptions& options, const DeviceLimits& limits);

/// Packs and copies the weights, takes all buffers, and turns ops into steps. Throws
/// UnsupportedError naming the op for a sequence of ops that has no kernels, ResourceError with the
/// ledger if the memory does not suffice.
Plan build_plan(const std::shared_ptr<const Checkpoint>& checkpoint, const ExecutorOptions& options,
                const DeviceLimits& limits, cudaStream_t stream);

}  // namespace assay::cuda
