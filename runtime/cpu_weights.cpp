#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "runtime/cpu_executor.h"

namespace assay {
namespace {

std::string describe(const VectorSlot& slot) {
  std::string text(role_name(slot.role));
  if (slot.layer >= 0) text += " of layer " + std::to_string(slot.layer);
  return text;
}

void check_shape(const MatrixSlot& slot, const WeightView& view, const Checkpoint& checkpoint) {
  if (view.rows == slot.out_features && view.columns == slot.in_features) return;
  throw ShapeError(checkpoint.path() + ": \"" + slot.module + "\" has shape " +
                   to_string(Shape{view.rows, view.columns}) + ", the config asks for " +
                   to_string(Shape{slot.out_features, slot.in_features}));
}

std::shared_ptr<const PackedMatrix> pack_matrix(const MatrixSlot& slot,
                                                const Checkpoint& checkpoint) {
  const CheckpointMatrix matrix = checkpoint.matrix(slot.role, slot.layer, slot.expert);
  const WeightView& view = matrix.view;
  check_shape(slot, view, checkpoint);
  try {
    return std::make_shared<const PackedMatrix>(
        PackedMatrix::pack(*view.format, view.rows, view.columns, matrix.group_size(),
                           [&](int64_t row, IntegerRow& out) { matrix.read_integers(row, out); }));
  } catch (const NumericError& error) {
    throw NumericError(checkpoint.path() + ": \"" + slot.module + "\": " + error.what());
  }
}

std::vector<float> read_vector(const VectorSlot& slot, const Checkpoint& checkpoint) {
  std::vector<float> values = checkpoint.vector(slot.role, slot.layer);
  if (static_cast<int64_t>(values.size()) != slot.size) {
    throw ShapeError(checkpoint.path() + ": " + describe(slot) + " has " +
                     std::to_string(values.size()) + " elements, the config asks for " +
                     std::to_string(slot.size));
  }
  return values;
}

/// Binds what one op reads.
class Binder {
 public:
  Binder(const Program& program, int64_t max_positions, CpuWeights& weights)
      : program_(program), max_positions_(max_positions), weights_(weights) {}

  void operator()(const EmbedOp& op) const {
    auto& bound = weights_.embeddings[static_cast<size_t>(op.matrix)];
    if (bound) return;
    const MatrixSlot& slot = program_.matrices[static_cast<size_t>(op.matrix)];
    auto matrix =
        std::make_shared<CheckpointMatrix>(weights_.checkpoint->matrix(slot.role, slot.layer));
    check_shape(slot, matrix->view, *weights_.checkpoint);
    bound = std::move(matrix);
  }
  void operator()(const LinearOp& op) const {
    bind_matrix(op.matrix);
    if (op.bias) bind_vector(*op.bias);
  }
  void operator()(const RmsNormOp& op) const {
    if (op.weight >= 0) bind_vector(op.weight);
  }
  void operator()(const GatedNormOp& op) const { bind_vector(op.weight); }
  void operator()(const ScaleOp& op) const {
    if (op.vector >= 0) bind_vector(op.vector);
  }
  void operator()(const CausalConvOp& op) const { bind_vector(op.weight); }
  void operator()(const DeltaNetOp& op) const {
    bind_vector(op.decay);
    bind_vector(op.step_bias);
  }
  void operator()(const RouteOp& op) const {
    if (op.scales >= 0) bind_vector(op.scales);
  }
  void operator()(const ExpertLinearOp& op) const {
    for (int e = 0; e < op.n_experts; ++e) bind_matrix(op.first_matrix + e);
  }
  void operator()(const RopeOp& op) const {
    auto& slot = weights_.ropes[static_cast<size_t>(op.table)];
    if (slot && slot->n_positions >= max_positions_) return;
    slot = std::make_shared<const RopeTable>(
        make_rope_table(program_.ropes[static_cast<size_t>(op.table)], max_positions_));
  }
  template <class Kind>
  void operator()(const Kind&) const {}

 private:
  void bind_matrix(int index) const {
    const auto i = static_cast<size_t>(index);
    if (weights_.matrices[i]) return;
    weights_.matrices[i] = pack_matrix(program_.matrices[i], *weights_.checkpoint);
  }
  void bind_vector(int index) const {
    const auto i = static_cast<size_t>(index);
    if (!weights_.vectors[i].empty()) return;
    weights_.vectors[i] = read_vector(program_.vectors[i], *weights_.checkpoint);
  }

  const Program& program_;
  int64_t max_positions_;
  CpuWeights& weights_;
};

}  // namespace

void bind_weights(const Program& program, std::shared_ptr<const Checkpoint> checkpoint, int begin,
                  int end, int64_t max_positions, CpuWeights& weights) {
  weights.matrices.resize(program.matrices.size());
  weights.embeddings.resize(program.matrices.size());
  weights.vectors.resize(program.vectors.size());
  weights.ropes.resize(program.ropes.size());
  weights.checkpoint = std::move(checkpoint);
  const Binder binder(program, max_positions, weights);
  for (int i = begin; i < end; ++i) std::visit(binder, program.ops[static_cast<size_t>(i)].kind);
}

}  // namespace assay
