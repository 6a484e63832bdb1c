#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "convert/families/family.h"

namespace assay {

// The list of families, one row each: k<Name>Family is defined in <name>.cpp.
#define ASSAY_FAMILIES(ROW) ROW(kLlamaFamily)

#define ASSAY_DECLARE_FAMILY(name) extern const Family name;
ASSAY_FAMILIES(ASSAY_DECLARE_FAMILY)
#undef ASSAY_DECLARE_FAMILY

std::span<const Family* const> all_families() {
#define ASSAY_FAMILY_ADDRESS(name) &name,
  static const Family* const kFamilies[] = {ASSAY_FAMILIES(ASSAY_FAMILY_ADDRESS)};
#undef ASSAY_FAMILY_ADDRESS
  return kFamilies;
}

namespace {

std::string known(bool architectures) {
  std::string names;
  for (const Family* family : all_families()) {
    if (architectures) {
      names += (names.empty() ? "" : ", ") + std::string(family->gguf_architecture);
      continue;
    }
    for (const std::string_view type : family->model_types) {
      names += (names.empty() ? "" : ", ") + std::string(type);
    }
  }
  return names;
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
                         "\" is not supported; these are: " + known(false));
}

const Family& find_family_by_architecture(std::string_view gguf_architecture) {
  for (const Family* family : all_families()) {
    if (family->gguf_architecture == gguf_architecture) return *family;
  }
  throw UnsupportedError("GGUF architecture \"" + std::string(gguf_architecture) +
                         "\" is not supported; these are: " + known(true));
}

const Family& find_family(std::string_view name) {
  for (const Family* family : all_families()) {
    if (family->name == name) return *family;
  }
  throw UnsupportedError("there is no model family \"" + std::string(name) + "\"");
}

std::vector<int64_t> huggingface_rows_of_gguf(const TensorEntry& entry) {
  if (entry.gguf_transform == GgufTransform::kNone) return {};
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
  }
  return "unknown";
}

}  // namespace assay
