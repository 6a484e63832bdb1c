#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "convert/families/family.h"
#include "convert/model_spec.h"

namespace assay {

// A forward pass as plain data: a list of ops over registers, built once from a ModelSpec. Devices
// execute it (or fuse it into kernels), the quantizer walks it op by op, verify compares two runs
// of it. Each op's formula, order of additions and checks stand in runtime/ops/<op>.h.

/// Index into Program::registers. A register holds one row per token of the batch.
struct Register {
  int index = -1;
  friend bool operator==(Register, Register) = default;
};

struct RegisterSpec {
  std::string name;  // "h", "q", "gate"
  int64_t columns = 0;
  bool block_int16 = false;  // else fp32
  int slots = 1;  // block int16: vectors side by side in a row, each quantized for itself
  int64_t slot_columns() const { return columns / slots; }
};

/// A matrix that the program needs; index into Program::matrices.
struct MatrixSlot {
  Role role = Role::kTokenEmbedding;
  int layer = -1;
  std::string module;  // "model.layers.3.self_attn.q_proj"
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool quantizable = false;
  int expert = -1;
};

/// A vector that the program needs (norm weights, biases), fp32; index into Program::vectors.
struct VectorSlot {
  Role role = Role::kOutputNorm;
  int layer = -1;
  int64_t size = 0;
};

/// What one op touches: registers (one that it changes in place is in both lists) and what is
/// carried from token to token, as indices into cache_layers and state_layers; −1: none.
struct Uses {
  std::vector<Register> reads = {}, writes = {};
  int cache_written = -1;
  int cache_read = -1;
  int state = -1;
};

// The ops. Each says its word in reports and what it touches.

/// h[token] = row of the embedding, the stored value widened exactly to fp32.
struct EmbedOp {
  static constexpr std::string_view kName = "embedding";
  int matrix = -1;
  Register out;
  Uses uses() const { return {{}, {out}}; }
};

/// y = (x·r)·w, r = 1 / sqrt(mean(x²) + eps); ops/rms_norm.h. `out` may be `in`.
struct RmsNormOp {
  static constexpr std::string_view kName = "rms_norm";
  Register in, out;
  int weight = -1;  // vector of columns / n_heads; −1: y = x·r
  float eps = 0.0f;
  int n_heads = 1;  // parts of a row that are normalised each for itself, with the same weights
  Uses uses() const { return {{in}, {out}}; }
};

/// y = ((x·r)·w)·silu(gate) per head; ops/rms_norm.h, ops/elementwise.h.
struct GatedNormOp {
  static constexpr std::string_view kName = "gated_norm";
  Register in, gate, out;
  int weight = -1;
  float eps = 0.0f;
  int n_heads = 1;
  Uses uses() const { return {{in, gate}, {out}}; }
};

/// In place: x = x·factor, or times the one element of a vector.
struct ScaleOp {
  static constexpr std::string_view kName = "scale";
  Register x;
  float factor = 1.0f;
  int vector = -1;
  Uses uses() const { return {{x}, {x}}; }
};

/// In place: x = c·tanh(x / c).
struct SoftcapOp {
  static constexpr std::string_view kName = "softcap";
  Register x;
  float cap = 0.0f;
  Uses uses() const { return {{x}, {x}}; }
};

/// Rows of (n_heads, 2, head_dim) into q and gate (n_heads, head_dim) each.
struct SplitGateOp {
  static constexpr std::string_view kName = "split_gate";
  Register in, q, gate;
  int n_heads = 0;
  int head_dim = 0;
  Uses uses() const { return {{in}, {q, gate}}; }
};

/// In place: x = x·sigmoid(gate).
struct SigmoidGateOp {
  static constexpr std::string_view kName = "sigmoid_gate";
  Register x, gate;
  Uses uses() const { return {{x, gate}, {x}}; }
};

/// y = silu(causal convolution) per channel, over this and the rows before it; ops/causal_conv.h.
struct CausalConvOp {
  static constexpr std::string_view kName = "causal_conv";
  Register in, out;
  int weight = -1;  // vector (channels, kernel)
  int state_layer = -1;
  Uses uses() const { return {.reads = {in}, .writes = {out}, .state = state_layer}; }
};

/// The recurrence of Gated DeltaNet; ops/delta_net.h.
struct DeltaNetOp {
  static constexpr std::string_view kName = "delta_net";
  Register qkv, a, b, out;
  int decay = -1;      // vector (n_value_heads): −exp(A_log)
  int step_bias = -1;  // vector (n_value_heads)
  int state_layer = -1;
  Uses uses() const { return {.reads = {qkv, a, b}, .writes = {out}, .state = state_layer}; }
};

/// fp32 -> block int16: the input of every linear; ops/block_int16.h. Linears that read the same
/// vector share one such op, so this is where calibration captures.
struct QuantizeOp {
  static constexpr std::string_view kName = "quantize";
  Register in, out;
  Uses uses() const { return {{in}, {out}}; }
};

/// out = W in (+ bias); ops/linear.h.
struct LinearOp {
  static constexpr std::string_view kName = "linear";
  Register in, out;
  int matrix = -1;
  std::optional<int> bias;  // vector
  Uses uses() const { return {{in}, {out}}; }
};

/// In place: rotates the first `rotary_dims` of each head of `x` by the position's angle;
/// ops/rope.h.
struct RopeOp {
  static constexpr std::string_view kName = "rope";
  Register x;
  int n_heads = 0;
  int head_dim = 0;
  int table = -1;  // index into Program::ropes
  Uses uses() const { return {{x}, {x}}; }
};

/// Rounds k and v to the cache type and stores them at the token's position; ops/kv_write.h.
struct KvWriteOp {
  static constexpr std::string_view kName = "kv_write";
  Register k, v;
  int cache_layer = -1;
  Uses uses() const { return {.reads = {k, v}, .cache_written = cache_layer}; }
};

/// Causal attention over the cache (own token included); ops/attention.h.
struct AttentionOp {
  static constexpr std::string_view kName = "attention";
  Register q, out;
  int cache_layer = -1;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 0.0f;
  std::optional<int64_t> sliding_window;
  Uses uses() const { return {.reads = {q}, .writes = {out}, .cache_read = cache_layer}; }
};

/// out = silu(gate)·up.
struct SwiGluOp {
  static constexpr std::string_view kName = "swiglu";
  Register gate, up, out;
  Uses uses() const { return {{gate, up}, {out}}; }
};

/// out = gelu_tanh(gate)·up.
struct GeGluOp {
  static constexpr std::string_view kName = "geglu";
  Register gate, up, out;
  Uses uses() const { return {{gate, up}, {out}}; }
};

/// Chooses the experts of each row: their ids, ascending, as whole numbers, and their weights;
/// ops/route.h.
struct RouteOp {
  static constexpr std::string_view kName = "route";
  Register logits, ids, weights;  // (n_experts), (top_k), (top_k)
  bool normalize = true;
  int scales = -1;  // vector (n_experts)
  Uses uses() const { return {{logits}, {ids, weights}}; }
};

/// Slot j of out = W_e x with e = ids[j]; x is the input's only slot, or its slot j. Matrices of
/// the experts follow each other from `first_matrix`.
struct ExpertLinearOp {
  static constexpr std::string_view kName = "expert_linear";
  Register in, ids, out;
  int first_matrix = -1;
  int n_experts = 0;
  Uses uses() const { return {{in, ids}, {out}}; }
};

/// out = Σ weights[j]·x_j over the slots of x; ops/route.h.
struct WeightedSumOp {
  static constexpr std::string_view kName = "weighted_sum";
  Register x, weights, out;
  Uses uses() const { return {{x, weights}, {out}}; }
};

/// out = columns [first, first + its width) of in.
struct SliceOp {
  static constexpr std::string_view kName = "slice";
  Register in, out;
  int64_t first = 0;
  Uses uses() const { return {{in}, {out}}; }
};

/// x += y.
struct AddOp {
  static constexpr std::string_view kName = "add";
  Register x, y;
  Uses uses() const { return {{x, y}, {x}}; }
};

/// Keeps the rows whose logits were asked for, in batch order; later ops run on those rows only.
struct SelectRowsOp {
  static constexpr std::string_view kName = "select_rows";
  Register in, out;
  Uses uses() const { return {{in}, {out}}; }
};

/// One step. A new kind of op is a struct above and in this list, a header with its contract in
/// ops/, and an overload of Runner in cpu_ops.cpp, which the compiler misses where it is forgotten.
/// What fuses ops (device/cuda_plan.h) refuses programs with ops that it does not know.
struct Op {
  std::variant<EmbedOp, RmsNormOp, QuantizeOp, LinearOp, RopeOp, KvWriteOp, AttentionOp, SwiGluOp,
               AddOp, SelectRowsOp, GatedNormOp, ScaleOp, SoftcapOp, SplitGateOp, SigmoidGateOp,
               CausalConvOp, DeltaNetOp, GeGluOp, RouteOp, ExpertLinearOp, WeightedSumOp, SliceOp>
      kind;
  std::string name;  // "layers.3.self_attn.q_proj"
  int layer = -1;    // −1: before the first or after the last layer
};

Uses uses(const Op& op);
inline std::vector<Register> reads(const Op& op) { return uses(op).reads; }
inline std::vector<Register> writes(const Op& op) { return uses(op).writes; }
/// "linear"
std::string_view kind_name(const Op& op);

/// Keys and values of one layer's cache.
struct CacheLayerSpec {
  int n_kv_heads = 0;
  int head_dim = 0;
  std::optional<int64_t> sliding_window;
};

/// What one Gated DeltaNet layer carries from token to token, fp32: the last kernel − 1 inputs of
/// the convolution, oldest first, and one matrix (value_dim, key_dim) per value head.
struct StateLayerSpec {
  DeltaNetSpec spec;
  int64_t conv_values() const { return (spec.conv_kernel - 1) * spec.conv_columns(); }
  int64_t matrix_values() const {
    return int64_t{spec.n_value_heads} * spec.key_dim * spec.value_dim;
  }
};

/// Ops [begin, end) of one decoder layer.
struct OpRange {
  int begin = 0;
  int end = 0;
};

struct Program {
  ModelSpec spec;
  std::vector<RegisterSpec> registers;
  std::vector<MatrixSlot> matrices;
  std::vector<VectorSlot> vectors;
  std::vector<RopeSpec> ropes;  // distinct ones
  std::vector<CacheLayerSpec> cache_layers;
  std::vector<StateLayerSpec> state_layers;
  std::vector<Op> ops;
  std::vector<OpRange> layers;  // per decoder layer
  Register residual;            // fp32 (hidden_size): the stream between layers
  Register logits;              // fp32 (vocab_size), one row per selected token
};

/// Builds the program of a model from its spec alone; `tensors` (the family's table) gives the
/// matrices their names and says which are quantizable. Registers are shared by all layers of equal
/// widths. Throws FormatError if a tensor that the spec needs is not in the table.
Program build_program(const ModelSpec& spec, const std::vector<TensorEntry>& tensors);

}  // namespace assay
