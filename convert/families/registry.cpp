#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "convert/core/math64.h"
#include "convert/core/words.h"
#include "convert/families/family.h"

namespace assay {

// The list of families, one row each: k<Name>Family is defined in <name>.cpp.
#define ASSAY_FAMILIES(ROW) \
  ROW(kLlamaFamily)         \
  ROW(kQwen2Family)         \
  ROW(kQwen3Family)         \
  ROW(kQwen3MoeFamily)      \
  ROW(kGemma3Family)        \
  ROW(kGemma4Family)        \
  ROW(kQwen35Family)

#define ASSAY_DECLARE_FAMILY(name) extern const Family name;
ASSAY_FAMILIES(ASSAY_DECLARE_FAMILY)
#undef ASSAY_DECLARE_FAMILY

std::span<const Family* const> all_families() {
#define ASSAY_FAMILY_ADDRESS(name) &(name),
  static const Family* const kFamilies[] = {ASSAY_FAMILIES(ASSAY_FAMILY_ADDRESS)};
#undef ASSAY_FAMILY_ADDRESS
  return kFamilies;
}

namespace {

std::string known_architectures() {
  return join_words(all_families(), ", ",
                    [](const Family* family) { return family->gguf_architecture; });
}

std::string known_model_types() {
  return join_words(all_families(), ", ",
                    [](const Family* family) { return join_words(family->model_types); });
}

}  // namespace

const Family& find_family_by_model_type(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (std::find(family->model_types.begin(), family->model_types.end(), model_type) !=
        family->model_types.end()) {
      return *family;
    }
  }
  throw UnsupportedError("model_type \"" + std::string(model_type) +
                         "\" is not supported; these are: " + known_model_types());
}

const Family& find_family_by_architecture(std::string_view gguf_architecture) {
  for (const Family* family : all_families()) {
    if (family->gguf_architecture == gguf_architecture) return *family;
  }
  throw UnsupportedError("GGUF architecture \"" + std::string(gguf_architecture) +
                         "\" is not supported; these are: " + known_architectures());
}

const Family& find_family(std::string_view name) {
  for (const Family* family : all_families()) {
    if (family->name == name) return *family;
  }
  throw UnsupportedError("there is no model family \"" + std::string(name) + "\"");
}

namespace {

int64_t huggingface_block(const BlockOrder& order, int64_t p) {
  return p % order.groups * order.repeats + p / order.groups;
}

std::vector<int64_t> moved_rows(const BlockOrder& order, int64_t n_rows) {
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t inside = r - order.begin;
    rows.push_back(inside < 0 ? r
                              : order.begin +
                                    huggingface_block(order, inside / order.block) * order.block +
                                    inside % order.block);
  }
  return rows;
}

}  // namespace

ColumnOrder gguf_columns_of_huggingface(const TensorEntry& entry) {
  const BlockOrder& order = entry.gguf_columns;
  ColumnOrder columns{.block = order.block};
  for (int64_t p = 0; order.block > 0 && p < order.groups * order.repeats; ++p) {
    columns.source.push_back(huggingface_block(order, p));
  }
  return columns;
}

ColumnOrder huggingface_columns_of_gguf(const TensorEntry& entry) {
  const ColumnOrder there = gguf_columns_of_huggingface(entry);
  ColumnOrder columns{.block = there.block, .source = std::vector<int64_t>(there.source.size())};
  for (size_t p = 0; p < there.source.size(); ++p) {
    columns.source[static_cast<size_t>(there.source[p])] = static_cast<int64_t>(p);
  }
  return columns;
}

std::vector<int64_t> huggingface_rows_of_gguf(const TensorEntry& entry) {
  if (entry.gguf_rows.block > 0) return moved_rows(entry.gguf_rows, entry.shape[0]);
  if (entry.gguf_transform != GgufTransform::kInterleaveRope) return {};
  const int64_t n_rows = entry.shape[0];
  const int64_t head_dim = n_rows / entry.n_heads;
  std::vector<int64_t> rows(static_cast<size_t>(n_rows));
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t head = r / head_dim;
    const int64_t pair = (r % head_dim) / 2;
    const int64_t half = r % 2;
    rows[static_cast<size_t>(r)] = head * head_dim + half * (head_dim / 2) + pair;
  }
  return rows;
}

Shape gguf_shape(const TensorEntry& entry) {
  if (entry.gguf_stack) return entry.gguf_stack->shape;
  if (entry.shape.size() < 3) return entry.shape;
  Shape shape;
  for (const int64_t n : entry.shape) {
    if (n != 1) shape.push_back(n);
  }
  return shape;
}

void apply_transform(GgufTransform transform, std::span<float> values) {
  if (transform == GgufTransform::kAddOne) {
    for (float& value : values) value = 1.0f + value;
  }
  if (transform == GgufTransform::kNegativeExp) {
    for (float& value : values) value = -static_cast<float>(exp64(static_cast<double>(value)));
  }
}

std::string TensorEntry::module_name() const {
  constexpr std::string_view kSuffixes[] = {".weight", ".bias"};
  for (const std::string_view suffix : kSuffixes) {
    if (hf_name.size() > suffix.size() && hf_name.ends_with(suffix)) {
      return hf_name.substr(0, hf_name.size() - suffix.size());
    }
  }
  return hf_name;
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kTokenEmbedding:
      return "token_embedding";
    case Role::kOutputNorm:
      return "output_norm";
    case Role::kHead:
      return "head";
    case Role::kAttentionNorm:
      return "attention_norm";
    case Role::kQProj:
      return "q_proj";
    case Role::kKProj:
      return "k_proj";
    case Role::kVProj:
      return "v_proj";
    case Role::kOProj:
      return "o_proj";
    case Role::kQBias:
      return "q_bias";
    case Role::kKBias:
      return "k_bias";
    case Role::kVBias:
      return "v_bias";
    case Role::kOBias:
      return "o_bias";
    case Role::kMlpNorm:
      return "mlp_norm";
    case Role::kGateProj:
      return "gate_proj";
    case Role::kUpProj:
      return "up_proj";
    case Role::kDownProj:
      return "down_proj";
    case Role::kGateBias:
      return "gate_bias";
    case Role::kUpBias:
      return "up_bias";
    case Role::kDownBias:
      return "down_bias";
    case Role::kQNorm:
      return "q_norm";
    case Role::kKNorm:
      return "k_norm";
    case Role::kAttentionOutputNorm:
      return "attention_output_norm";
    case Role::kMlpOutputNorm:
      return "mlp_output_norm";
    case Role::kOutputScale:
      return "output_scale";
    case Role::kDeltaQkvProj:
      return "delta_qkv_proj";
    case Role::kDeltaZProj:
      return "delta_z_proj";
    case Role::kDeltaAProj:
      return "delta_a_proj";
    case Role::kDeltaBProj:
      return "delta_b_proj";
    case Role::kDeltaConv:
      return "delta_conv";
    case Role::kDeltaDecay:
      return "delta_decay";
    case Role::kDeltaStepBias:
      return "delta_step_bias";
    case Role::kDeltaNorm:
      return "delta_norm";
    case Role::kDeltaOutProj:
      return "delta_out_proj";
    case Role::kRouter:
      return "router";
    case Role::kRouterScale:
      return "router_scale";
    case Role::kExpertScale:
      return "expert_scale";
    case Role::kExpertGateProj:
      return "expert_gate_proj";
    case Role::kExpertUpProj:
      return "expert_up_proj";
    case Role::kExpertDownProj:
      return "expert_down_proj";
    case Role::kExpertNorm:
      return "expert_norm";
    case Role::kExpertOutputNorm:
      return "expert_output_norm";
    case Role::kBesideMlpNorm:
      return "beside_mlp_norm";
    case Role::kPerLayerEmbedding:
      return "per_layer_embedding";
    case Role::kPerLayerModelProj:
      return "per_layer_model_proj";
    case Role::kPerLayerModelNorm:
      return "per_layer_model_norm";
    case Role::kPerLayerGate:
      return "per_layer_gate";
    case Role::kPerLayerProj:
      return "per_layer_proj";
    case Role::kPerLayerNorm:
      return "per_layer_norm";
  }
  return "unknown";
}

std::string_view role_part(Role role) {
  switch (role) {
    case Role::kTokenEmbedding:
    case Role::kPerLayerEmbedding:
      return "embedding";
    case Role::kQProj:
    case Role::kKProj:
    case Role::kVProj:
    case Role::kOProj:
    case Role::kQBias:
    case Role::kKBias:
    case Role::kVBias:
    case Role::kOBias:
      return "attention";
    case Role::kDeltaQkvProj:
    case Role::kDeltaZProj:
    case Role::kDeltaAProj:
    case Role::kDeltaBProj:
    case Role::kDeltaConv:
    case Role::kDeltaDecay:
    case Role::kDeltaStepBias:
    case Role::kDeltaOutProj:
      return "delta net";
    case Role::kGateProj:
    case Role::kUpProj:
    case Role::kDownProj:
    case Role::kGateBias:
    case Role::kUpBias:
    case Role::kDownBias:
      return "MLP";
    case Role::kExpertGateProj:
    case Role::kExpertUpProj:
    case Role::kExpertDownProj:
      return "experts";
    case Role::kRouter:
    case Role::kRouterScale:
    case Role::kExpertScale:
      return "router";
    case Role::kPerLayerModelProj:
    case Role::kPerLayerGate:
    case Role::kPerLayerProj:
      return "per-layer input";
    case Role::kAttentionNorm:
    case Role::kMlpNorm:
    case Role::kQNorm:
    case Role::kKNorm:
    case Role::kAttentionOutputNorm:
    case Role::kMlpOutputNorm:
    case Role::kOutputScale:
    case Role::kDeltaNorm:
    case Role::kExpertNorm:
    case Role::kExpertOutputNorm:
    case Role::kBesideMlpNorm:
    case Role::kPerLayerModelNorm:
    case Role::kPerLayerNorm:
    case Role::kOutputNorm:
      return "norms";
    case Role::kHead:
      return "head";
  }
  return "unknown";
}

}  // namespace assay
