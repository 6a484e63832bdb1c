#include "tests/calibrate/small_program.h"

#include <string>

#include "convert/formats/format.h"
#include "tests/support/random.h"
#include "tests/support/weight_matrix.h"

namespace assay::test {
namespace {

constexpr int64_t kHidden = 64;
constexpr int64_t kIntermediate = 96;
constexpr int64_t kVocabulary = 50;
constexpr int kHeadDim = 32;

ModelSpec make_spec(int n_layers) {
  ModelSpec spec;
  spec.family = "llama";
  spec.vocab_size = kVocabulary;
  spec.hidden_size = kHidden;
  spec.context_length = 64;
  spec.tied_head = true;
  LayerSpec layer;
  layer.attention.n_heads = 2;
  layer.attention.n_kv_heads = 1;
  layer.attention.head_dim = kHeadDim;
  layer.attention.scale = 0.1767766952966369;
  layer.attention.rope.rotary_dims = kHeadDim;
  layer.mlp.intermediate_size = kIntermediate;
  spec.layers.assign(static_cast<size_t>(n_layers), layer);
  return spec;
}

std::vector<TensorEntry> make_tensors(int n_layers) {
  std::vector<TensorEntry> tensors;
  const auto add = [&](Role role, int layer, const std::string& name, Shape shape, bool linear) {
    TensorEntry entry;
    entry.role = role;
    entry.layer = layer;
    entry.hf_name = name + ".weight";
    entry.shape = std::move(shape);
    entry.quantizable = linear;
    tensors.push_back(entry);
  };
  add(Role::kTokenEmbedding, -1, "model.embed_tokens", {kVocabulary, kHidden}, false);
  for (int i = 0; i < n_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    add(Role::kAttentionNorm, i, prefix + "input_layernorm", {kHidden}, false);
    add(Role::kQProj, i, prefix + "self_attn.q_proj", {2 * kHeadDim, kHidden}, true);
    add(Role::kKProj, i, prefix + "self_attn.k_proj", {kHeadDim, kHidden}, true);
    add(Role::kVProj, i, prefix + "self_attn.v_proj", {kHeadDim, kHidden}, true);
    add(Role::kOProj, i, prefix + "self_attn.o_proj", {kHidden, 2 * kHeadDim}, true);
    add(Role::kMlpNorm, i, prefix + "post_attention_layernorm", {kHidden}, false);
    add(Role::kGateProj, i, prefix + "mlp.gate_proj", {kIntermediate, kHidden}, true);
    add(Role::kUpProj, i, prefix + "mlp.up_proj", {kIntermediate, kHidden}, true);
    add(Role::kDownProj, i, prefix + "mlp.down_proj", {kHidden, kIntermediate}, true);
  }
  add(Role::kOutputNorm, -1, "model.norm", {kHidden}, false);
  return tensors;
}

}  // namespace

SmallModel make_small_model(int n_layers, uint64_t seed) {
  SmallModel model;
  model.program = build_program(make_spec(n_layers), make_tensors(n_layers));
  const WeightFormat& format = scalar_format(DType::kBF16);
  for (size_t i = 0; i < model.program.matrices.size(); ++i) {
    const MatrixSlot& slot = model.program.matrices[i];
    if (slot.layer < 0) {
      model.weights.matrices.push_back(nullptr);
      continue;
    }
    const WeightMatrix matrix =
        random_weight_matrix(format, slot.out_features, slot.in_features, 0, seed + i);
    model.weights.matrices.push_back(std::make_shared<const PackedMatrix>(PackedMatrix::pack(
        format, slot.out_features, slot.in_features, slot.in_features,
        [&](int64_t row, IntegerRow& out) { format.read_integers(matrix.view, row, out); })));
  }
  for (const VectorSlot& slot : model.program.vectors) {
    std::vector<float> values = random_floats(static_cast<size_t>(slot.size), seed + 77);
    for (float& value : values) value = 1.0f + 0.1f * value;
    model.weights.vectors.push_back(std::move(values));
  }
  for (const RopeSpec& rope : model.program.ropes) {
    model.weights.ropes.push_back(std::make_shared<const RopeTable>(make_rope_table(rope, 64)));
  }
  return model;
}

}  // namespace assay::test
