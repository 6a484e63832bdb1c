#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

/// h[token] = row of the embedding, the stored value widened exactly to fp32.
struct EmbedOp {
  int matrix = -1;
  Register out;
};

/// y = (x·r)·w, r = 1 / sqrt(mean(x²) + eps); ops/rms_norm.h. `out` may be `in`.
struct RmsNormOp {
  Register in, out;
  int weight = -1;  // vector of columns / n_heads; −1: y = x·r
  float eps = 0.0f;
  int n_heads = 1;  // parts of a row that are normalised each for itself, with the same weights
};

/// y = ((x·r)·w)·silu(gate) per head; ops/rms_norm.h, ops/elementwise.h.
struct GatedNormOp {
  Register in, gate, out;
  int weight = -1;
  float eps = 0.0f;
  int n_heads = 1;
};

/// In place: x = x·factor, or times the one element of a vector.
struct ScaleOp {
  Register x;
  float factor = 1.0f;
  int vector = -1;
};

/// In place: x = c·tanh(x / c).
struct SoftcapOp {
  Register x;
  float cap = 0.0f;
};

/// Rows of (n_heads, 2, head_dim) into q and gate (n_heads, head_dim) each.
struct SplitGateOp {
  Register in, q, gate;
  int n_heads = 0;
  int head_dim = 0;
};

/// In place: x = x·sigmoid(gate).
struct SigmoidGateOp {
  Register x, gate;
};

/// y = silu(causal convolution) per channel, over this and the rows before it; ops/causal_conv.h.
struct CausalConvOp {
  Register in, out;
  int weight = -1;  // vector (channels, kernel)
  int state_layer = -1;
};

/// The recurrence of Gated DeltaNet; ops/delta_net.h.
struct DeltaNetOp {
  Register qkv, a, b, out;
  int decay = -1;      // vector (n_value_heads): −exp(A_log)
  int step_bias = -1;  // vector (n_value_heads)
  int state_layer = -1;
};

/// fp32 -> block int16: the input of every linear; ops/block_int16.h. Linears that read the same
/// vector share one such op, so this is where calibration captures.
struct QuantizeOp {
  Register in, out;
};

/// out = W in (+ bias); ops/linear.h.
struct LinearOp {
  Register in, out;
  int matrix = -1;
  std::optional<int> bias;  // vector
};

/// In place: rotates the first `rotary_dims` of each head of `x` by the position's angle;
/// ops/rope.h.
struct RopeOp {
  Register x;
  int n_heads = 0;
  int head_dim = 0;
  int table = -1;  // index into Program::ropes
};

/// Rounds k and v to the cache type and stores them at the token's position; ops/kv_write.h.
struct KvWriteOp {
  Register k, v;
  int cache_layer = -1;
};

/// Causal attention over the cache (own token included); ops/attention.h.
struct AttentionOp {
  Register q, out;
  int cache_layer = -1;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 0.0f;
  std::optional<int64_t> sliding_window;
};

/// out = silu(gate)·up.
struct SwiGluOp {
  Register gate, up, out;
};

/// out = gelu_tanh(gate)·up.
struct GeGluOp {
  Register gate, up, out;
};

/// Chooses the experts of each row: their ids, ascending, as whole numbers, and their weights;
/// ops/route.h.
struct RouteOp {
  Register logits, ids, weights;  // (n_experts), (top_k), (top_k)
  bool normalize = true;
  int scales = -1;  // vector (n_experts)
};

/// Slot j of out = W_e x with e = ids[j]; x is the input's only slot, or its slot j. Matrices of
/// the experts follow each other from `first_matrix`.
struct ExpertLinearOp {
  Register in, ids, out;
  int first_matrix = -1;
  int n_experts = 0;
};

/// out = Σ weights[j]·x_j over the slots of x; ops/route.h.
struct WeightedSumOp {
  Register x, weights, out;
};

/// out = columns [first, first + its width) of in.
struct SliceOp {
  Register in, out;
  int64_t first = 0;
};

/// x += y.
struct AddOp {
  Register x, y;
};

/// Keeps the rows whose logits were asked for, in batch order; later ops run on those rows only.
struct SelectRowsOp {
  Register in, out;
};

/// One step. A new kind of op is a struct here, a header with its contract in ops/, and one
/// overload of run_op per device: the compiler names what is missing.
struct Op {
  std::variant<EmbedOp, RmsNormOp, QuantizeOp, LinearOp, RopeOp, KvWriteOp, AttentionOp, SwiGluOp,
               AddOp, SelectRowsOp, GatedNormOp, ScaleOp, SoftcapOp, SplitGateOp, SigmoidGateOp,
               CausalConvOp, DeltaNetOp, GeGluOp, RouteOp, ExpertLinearOp, WeightedSumOp, SliceOp>
      kind;
  std::string name;  // "layers.3.self_attn.q_proj"
  int layer = -1;    // −1: before the first or after the last layer
};

/// Registers that an op reads and writes (an in-place register is in both).
std::vector<Register> reads(const Op& op);
std::vector<Register> writes(const Op& op);

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
