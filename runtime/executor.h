#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "runtime/kv_cache.h"
#include "runtime/program.h"

namespace assay {

/// Which rows of a batch item get logits.
enum class LogitRows : uint8_t { kNone, kLast, kAll };

/// New tokens of one sequence; they continue at its current length.
struct BatchItem {
  int sequence = 0;
  std::span<const int32_t> token_ids;
  LogitRows logits = LogitRows::kLast;
};

struct ExecutorOptions {
  KvType kv_type = KvType::kF16;
  int n_sequences = 1;
  int64_t context = 0;             // positions per sequence; 0: the model's context_length
  int64_t max_batch_tokens = 512;  // rows that run together; longer calls are cut, with equal bits
};

/// Sees every register that an op wrote, on the host, after it ran.
/// values (rows, columns) row-major fp32; block-int16 registers are shown as s·q. A call is cut
/// into passes of at most max_batch_tokens rows (logits: fewer), so an op is seen once per pass,
/// rows ascending.
using OpObserver =
    std::function<void(const Op& op, const RegisterSpec& spec, std::span<const float> values)>;

/// Memory of one kind that a loaded model takes.
struct LedgerItem {
  std::string name;  // "weights W4", "kv cache", "activations", "workspace"
  uint64_t bytes = 0;
};

/// One node of a decode step on a device that runs it as a graph.
struct NodeTime {
  std::string name;  // "layers.3.self_attn.o_proj"
  double microseconds = 0.0;
  uint64_t bytes = 0;  // of weights, keys and values that it reads
};

/// One model on one device with the state of its sequences. Bits of the logits depend on weights,
/// token ids and KV type alone: not on how tokens are dealt to calls (chunks, batches).
class Executor {
 public:
  virtual ~Executor() = default;

  virtual const Program& program() const = 0;
  virtual const ExecutorOptions& options() const = 0;
  virtual std::string device_name() const = 0;
  virtual std::vector<LedgerItem> ledger() const = 0;

  virtual int64_t length(int sequence) const = 0;
  virtual void reset(int sequence) = 0;

  /// Runs the batch. `logits` receives (n selected rows, vocab_size), items in order. Throws
  /// UsageError before any work if a sequence would pass the context (case B67) or a token id is
  /// outside the vocabulary; NumericError with op, layer, position and value at the first number
  /// that is not finite. After an exception every sequence has the length it had before; sequences
  /// of the call are empty instead where the model has recurrent states, or windows shorter than
  /// the context.
  virtual void forward(std::span<const BatchItem> items, std::vector<float>& logits,
                       const OpObserver& observer = nullptr) = 0;

  /// Feeds first_token, then n_tokens − 1 times the greedy choice, and returns the n_tokens
  /// choices; the same ids as forward() and argmax, one token at a time. Never stops early. Devices
  /// that keep the loop on the card override it.
  virtual std::vector<int32_t> decode_greedy(int sequence, int32_t first_token, int64_t n_tokens);

  /// Bytes per second that plain reads of the memory that holds the weights reach, measured now:
  /// the bound of decoding. Empty if the device cannot say.
  virtual std::optional<double> measure_read_bandwidth() { return std::nullopt; }

  /// Times every node of one decode step at the sequence's length, launched one by one with events
  /// around each: median of `repeats` steps. Empty if the device has no nodes. The sequence's state
  /// is undefined afterwards until it is reset.
  virtual std::vector<NodeTime> time_decode_nodes(int /*sequence*/, int /*repeats*/) { return {}; }
};

/// Something that models can be loaded on.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu", "cuda:0"
  /// What load() would take, from headers alone.
  virtual std::vector<LedgerItem> estimate(const Checkpoint& checkpoint,
                                           const ExecutorOptions& options) const = 0;
  virtual std::unique_ptr<Executor> load(std::shared_ptr<const Checkpoint> checkpoint,
                                         const ExecutorOptions& options) = 0;
};

/// "cpu", or "cuda[:N]" through the plug-in libassay-cuda.so (DeviceError if it cannot be loaded).
/// UsageError for any other word.
std::unique_ptr<Device> open_device(std::string_view name);

}  // namespace assay
