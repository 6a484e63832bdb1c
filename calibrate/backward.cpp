#include "calibrate/backward.h"

#include <algorithm>
#include <utility>

#include "calibrate/gradient_ops.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr int64_t kWeightRows = 256;  // of a matrix that are widened at once

// The inputs that an op's derivative needs.
struct KeptInputs {
  std::vector<Register> operator()(const RmsNormOp& op) const { return {op.in}; }
  std::vector<Register> operator()(const GatedNormOp& op) const { return {op.in, op.gate}; }
  std::vector<Register> operator()(const SigmoidGateOp& op) const { return {op.x, op.gate}; }
  std::vector<Register> operator()(const CausalConvOp& op) const { return {op.in}; }
  std::vector<Register> operator()(const DeltaNetOp& op) const { return {op.qkv, op.a, op.b}; }
  std::vector<Register> operator()(const KvWriteOp& op) const { return {op.k, op.v}; }
  std::vector<Register> operator()(const AttentionOp& op) const { return {op.q}; }
  std::vector<Register> operator()(const SwiGluOp& op) const { return {op.gate, op.up}; }
  std::vector<Register> operator()(const GeGluOp& op) const { return {op.gate, op.up}; }
  std::vector<Register> operator()(const ExpertLinearOp& op) const { return {op.ids}; }
  std::vector<Register> operator()(const WeightedSumOp& op) const { return {op.weights}; }
  template <class Kind>
  std::vector<Register> operator()(const Kind&) const {
    return {};
  }
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

// dx (rows, in) += dy (rows, out)·W.
void multiply_by_matrix(const CheckpointMatrix& matrix, int64_t out_features, int64_t in_features,
                        const float* dy, int64_t rows, float* dx) {
  std::vector<float> weights(at(std::min(kWeightRows, out_features) * in_features));
  for (int64_t first = 0; first < out_features; first += kWeightRows) {
    const int64_t n = std::min(kWeightRows, out_features - first);
    parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        matrix.decode_row(first + row,
                          std::span(weights).subspan(at(row * in_features), at(in_features)));
      }
    });
    multiply(dy + first, out_features, 1, weights.data(), in_features, rows, n, in_features, dx,
             in_features);
  }
}

}  // namespace

// One op, backwards.
class Backward::Step {
 public:
  Step(Backward& all, int op, int64_t rows, const LinearGradient& on_linear)
      : all_(all), op_(op), rows_(rows), on_linear_(on_linear) {}

  void operator()(const EmbedOp& op) const { all_.gradient(op.out).clear(); }
  void operator()(const RouteOp& op) const {
    all_.gradient(op.ids).clear();
    all_.gradient(op.weights).clear();
  }
  void operator()(const RmsNormOp& op) const {
    const int64_t n = columns(op.in) / op.n_heads;
    std::vector<float> d = all_.take(op.out, rows_);
    rms_norm_gradient(kept(0), vector_or_null(op.weight), op.eps, rows_ * op.n_heads, n, d.data(),
                      d.data());
    all_.add(op.in, std::move(d));
  }
  void operator()(const GatedNormOp& op) const {
    const int64_t n = columns(op.in) / op.n_heads;
    const int64_t n_values = rows_ * columns(op.in);
    const float* weight = vector_or_null(op.weight);
    std::vector<float> normed(at(n_values));
    rms_norm(kept(0), weight, op.eps, rows_ * op.n_heads, n, normed.data());
    const std::vector<float> d = all_.take(op.out, rows_);
    std::vector<float> d_gate(at(n_values));
    swiglu_gradient(kept(1), normed.data(), d.data(), n_values, d_gate.data(), normed.data());
    rms_norm_gradient(kept(0), weight, op.eps, rows_ * op.n_heads, n, normed.data(), normed.data());
    all_.add(op.in, std::move(normed));
    all_.add(op.gate, std::move(d_gate));
  }
  void operator()(const ScaleOp& op) const {
    const float factor = op.vector < 0 ? op.factor : vector_or_null(op.vector)[0];
    std::vector<float> d = all_.take(op.x, rows_);
    scale(d.data(), factor, static_cast<int64_t>(d.size()), d.data());
    all_.add(op.x, std::move(d));
  }
  void operator()(const SplitGateOp& op) const {
    const std::vector<float> dq = all_.take(op.q, rows_);
    const std::vector<float> d_gate = all_.take(op.gate, rows_);
    std::vector<float> d(at(rows_ * columns(op.in)));
    for (int64_t head = 0; head < rows_ * op.n_heads; ++head) {
      std::copy_n(dq.data() + head * op.head_dim, op.head_dim, d.data() + 2 * head * op.head_dim);
      std::copy_n(d_gate.data() + head * op.head_dim, op.head_dim,
                  d.data() + (2 * head + 1) * op.head_dim);
    }
    all_.add(op.in, std::move(d));
  }
  void operator()(const SigmoidGateOp& op) const {
    std::vector<float> d = all_.take(op.x, rows_);
    std::vector<float> d_gate(d.size());
    sigmoid_gate_gradient(kept(0), kept(1), d.data(), static_cast<int64_t>(d.size()), d.data(),
                          d_gate.data());
    all_.add(op.x, std::move(d));
    all_.add(op.gate, std::move(d_gate));
  }
  void operator()(const CausalConvOp& op) const {
    const int kernel = all_.program_.state_layers[at(op.state_layer)].spec.conv_kernel;
    const std::vector<float> d = all_.take(op.out, rows_);
    std::vector<float> dx(d.size());
    causal_conv_gradient(vector_or_null(op.weight), kernel, columns(op.in), rows_, kept(0),
                         d.data(), dx.data());
    all_.add(op.in, std::move(dx));
  }
  void operator()(const DeltaNetOp& op) const {
    const std::vector<float> d = all_.take(op.out, rows_);
    std::vector<float> d_qkv(at(rows_ * columns(op.qkv)));
    std::vector<float> d_a(at(rows_ * columns(op.a)));
    std::vector<float> d_b(d_a.size());
    delta_net_gradient(
        all_.program_.state_layers[at(op.state_layer)].spec,
        {kept(0), kept(1), kept(2), vector_or_null(op.decay), vector_or_null(op.step_bias)}, rows_,
        d.data(), d_qkv.data(), d_a.data(), d_b.data());
    all_.add(op.qkv, std::move(d_qkv));
    all_.add(op.a, std::move(d_a));
    all_.add(op.b, std::move(d_b));
  }
  void operator()(const QuantizeOp& op) const { all_.add(op.in, all_.take(op.out, rows_)); }
  void operator()(const LinearOp& op) const {
    const MatrixSlot& slot = all_.program_.matrices[at(op.matrix)];
    const std::vector<float> d = all_.take(op.out, rows_);
    if (on_linear_) on_linear_(op.matrix, d, rows_);
    std::vector<float> dx(at(rows_ * columns(op.in)));
    multiply_by_matrix(matrix(op.matrix), slot.out_features, slot.in_features, d.data(), rows_,
                       dx.data());
    all_.add(op.in, std::move(dx));
  }
  void operator()(const ExpertLinearOp& op) const {
    const float* ids = kept(0);
    const int64_t k = columns(op.ids);
    const std::vector<float> d = all_.take(op.out, rows_);
    const int64_t n = columns(op.out) / k;
    const RegisterSpec& input = all_.program_.registers[at(op.in.index)];
    const int64_t width = input.slot_columns();
    std::vector<float> dx(at(rows_ * input.columns));
    std::vector<int64_t> places;  // row·k + slot, of one expert
    std::vector<float> dy_own, dx_own;
    for (int e = 0; e < op.n_experts; ++e) {
      places.clear();
      for (int64_t p = 0; p < rows_ * k; ++p) {
        if (static_cast<int>(ids[p]) == e) places.push_back(p);
      }
      if (places.empty()) continue;
      const auto own = static_cast<int64_t>(places.size());
      dy_own.resize(at(own * n));
      dx_own.assign(at(own * width), 0.0f);
      for (int64_t i = 0; i < own; ++i) {
        std::copy_n(d.data() + places[at(i)] * n, n, dy_own.data() + i * n);
      }
      multiply_by_matrix(matrix(op.first_matrix + e), n, width, dy_own.data(), own, dx_own.data());
      for (int64_t i = 0; i < own; ++i) {
        const int64_t row = input.slots == 1 ? places[at(i)] / k : places[at(i)];
        vector_kernels().add(dx.data() + row * width, dx_own.data() + i * width, width);
      }
    }
    all_.add(op.in, std::move(dx));
  }
  void operator()(const WeightedSumOp& op) const {
    const int64_t n = columns(op.out);
    const int64_t k = columns(op.weights);
    const std::vector<float> d = all_.take(op.out, rows_);
    std::vector<float> dx(at(rows_ * k * n));
    for (int64_t p = 0; p < rows_ * k; ++p) {
      scale(d.data() + p / k * n, kept(0)[p], n, dx.data() + p * n);
    }
    all_.add(op.x, std::move(dx));
  }
  void operator()(const RopeOp& op) const {
    std::vector<float> d = all_.take(op.x, rows_);
    for (int64_t row = 0; row < rows_; ++row) {
      rope_gradient(*all_.weights_.ropes[at(op.table)], row, d.data() + row * columns(op.x),
                    op.n_heads, op.head_dim);
    }
    all_.add(op.x, std::move(d));
  }
  void operator()(const KvWriteOp& op) const {
    all_.add(op.k, std::exchange(all_.d_keys_[at(op.cache_layer)], {}));
    all_.add(op.v, std::exchange(all_.d_values_[at(op.cache_layer)], {}));
  }
  void operator()(const AttentionOp& op) const {
    const std::vector<float> d = all_.take(op.out, rows_);
    const AttentionShape shape{op.n_heads, op.n_kv_heads, op.head_dim, op.scale,
                               op.sliding_window.value_or(0)};
    const std::vector<std::vector<float>>& cached = all_.inputs_[at(writer_of(op.cache_layer))];
    std::vector<float>& dk = all_.d_keys_[at(op.cache_layer)];
    std::vector<float>& dv = all_.d_values_[at(op.cache_layer)];
    dk.resize(cached[0].size());
    dv.resize(cached[1].size());
    std::vector<float> dq(at(rows_ * columns(op.q)));
    attention_gradient(shape, rows_, kept(0), cached[0].data(), cached[1].data(), d.data(),
                       dq.data(), dk.data(), dv.data());
    all_.add(op.q, std::move(dq));
  }
  void operator()(const SwiGluOp& op) const { activation(op, swiglu_gradient); }
  void operator()(const GeGluOp& op) const { activation(op, geglu_gradient); }
  void operator()(const SliceOp& op) const {
    const std::vector<float> d = all_.take(op.out, rows_);
    std::vector<float> dx(at(rows_ * columns(op.in)));
    const int64_t n = columns(op.out);
    for (int64_t row = 0; row < rows_; ++row) {
      std::copy_n(d.data() + row * n, n, dx.data() + row * columns(op.in) + op.first);
    }
    all_.add(op.in, std::move(dx));
  }
  void operator()(const AddOp& op) const {
    std::vector<float> d = all_.take(op.x, rows_);
    all_.add(op.y, d);
    all_.add(op.x, std::move(d));
  }
  void operator()(const SoftcapOp&) const {
    throw UnsupportedError("backward: softcap inside a layer");
  }
  void operator()(const SelectRowsOp&) const {
    throw UnsupportedError("backward: rows are selected inside a range");
  }

 private:
  int64_t columns(Register r) const { return all_.program_.registers[at(r.index)].columns; }
  const float* kept(size_t i) const { return all_.inputs_[at(op_)][i].data(); }
  const float* vector_or_null(int index) const {
    return index < 0 ? nullptr : all_.weights_.vectors[at(index)].data();
  }
  // The op that wrote the keys and values that this one reads.
  int writer_of(int cache_layer) const {
    for (int op = op_ - 1;; --op) {
      const auto* write = std::get_if<KvWriteOp>(&all_.program_.ops[at(op)].kind);
      if (write != nullptr && write->cache_layer == cache_layer) return op;
    }
  }
  CheckpointMatrix matrix(int index) const {
    const MatrixSlot& slot = all_.program_.matrices[at(index)];
    return all_.weights_.checkpoint->matrix(slot.role, slot.layer, slot.expert);
  }
  template <class Activation>
  void activation(const Activation& op, void (*gradient)(const float*, const float*, const float*,
                                                         int64_t, float*, float*)) const {
    const std::vector<float> d = all_.take(op.out, rows_);
    std::vector<float> d_gate(d.size());
    std::vector<float> d_up(d.size());
    gradient(kept(0), kept(1), d.data(), static_cast<int64_t>(d.size()), d_gate.data(),
             d_up.data());
    all_.add(op.gate, std::move(d_gate));
    all_.add(op.up, std::move(d_up));
  }

  Backward& all_;
  int op_;
  int64_t rows_;
  const LinearGradient& on_linear_;
};

Backward::Backward(const Program& program, const CpuWeights& weights)
    : program_(program),
      weights_(weights),
      gradients_(program.registers.size()),
      inputs_(program.ops.size()),
      d_keys_(program.cache_layers.size()),
      d_values_(program.cache_layers.size()) {}

void Backward::record(int op, const CpuContext& context) {
  std::vector<std::vector<float>>& kept = inputs_[at(op)];
  kept.clear();
  for (const Register r : std::visit(KeptInputs{}, program_.ops[at(op)].kind)) {
    const std::vector<float>& values = context.registers.f32[at(r.index)];
    const int64_t n = context.n_rows * program_.registers[at(r.index)].columns;
    kept.emplace_back(values.begin(), values.begin() + n);
  }
}

void Backward::run(int begin, int end, int64_t rows, const LinearGradient& on_linear) {
  for (int op = end; op-- > begin;) {
    std::visit(Step(*this, op, rows, on_linear), program_.ops[at(op)].kind);
    inputs_[at(op)] = {};
  }
}

void Backward::clear() {
  for (auto& gradient : gradients_) gradient = {};
}

std::vector<float> Backward::take(Register r, int64_t rows) {
  std::vector<float> values = std::exchange(gradients_[at(r.index)], {});
  values.resize(at(rows * program_.registers[at(r.index)].columns));
  return values;
}

void Backward::add(Register r, std::vector<float> values) {
  std::vector<float>& sum = gradients_[at(r.index)];
  if (sum.empty()) {
    sum = std::move(values);
  } else if (!values.empty()) {
    vector_kernels().add(sum.data(), values.data(), static_cast<int64_t>(sum.size()));
  }
}

uint64_t Backward::peak_bytes(const Program& program, int begin, int end, int64_t rows) {
  uint64_t kept = 0;
  uint64_t gradients = 0;  // of every register that is touched, and of one op's work beside them
  uint64_t widest = 0;
  std::vector<char> seen(program.registers.size());
  const auto bytes_of = [&](Register r) {
    return at(rows * program.registers[at(r.index)].columns) * sizeof(float);
  };
  for (int i = begin; i < end; ++i) {
    const Op& op = program.ops[at(i)];
    for (const Register r : std::visit(KeptInputs{}, op.kind)) kept += bytes_of(r);
    uint64_t own = 0;
    for (const auto& list : {reads(op), writes(op)}) {
      for (const Register r : list) {
        own += bytes_of(r);
        if (std::exchange(seen[at(r.index)], 1) == 0) gradients += bytes_of(r);
      }
    }
    uint64_t work = 0;
    const auto threads = static_cast<uint64_t>(n_threads());
    if (const auto* linear = std::get_if<LinearOp>(&op.kind)) {
      const MatrixSlot& slot = program.matrices[at(linear->matrix)];
      work = at(std::min(kWeightRows, slot.out_features) * slot.in_features) * sizeof(float);
    } else if (const auto* attention = std::get_if<AttentionOp>(&op.kind)) {
      work = threads *
             attention_gradient_bytes(
                 {attention->n_heads, attention->n_kv_heads, attention->head_dim, 0.0f, 0}, rows);
    } else if (const auto* delta = std::get_if<DeltaNetOp>(&op.kind)) {
      work = threads *
             delta_net_gradient_bytes(program.state_layers[at(delta->state_layer)].spec, rows);
    }
    widest = std::max(widest, own + work);
  }
  return kept + gradients + widest;
}

}  // namespace assay
