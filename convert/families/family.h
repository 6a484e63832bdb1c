#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/core/tensor.h"
#include "convert/formats/column_order.h"
#include "convert/gguf.h"
#include "convert/model_spec.h"

namespace assay {

/// What a tensor is for. One name over all families and files.
enum class Role : uint8_t {
  kTokenEmbedding,
  kOutputNorm,
  kHead,
  kAttentionNorm,
  kQProj,
  kKProj,
  kVProj,
  kOProj,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kMlpNorm,
  kGateProj,
  kUpProj,
  kDownProj,
  kGateBias,
  kUpBias,
  kDownBias,
  kQNorm,
  kKNorm,
  kAttentionOutputNorm,  // behind attention, before the residual sum
  kMlpOutputNorm,        // behind the MLP, before the residual sum
  kOutputScale,
  kDeltaQkvProj,
  kDeltaZProj,
  kDeltaAProj,
  kDeltaBProj,
  kDeltaConv,
  kDeltaDecay,  // runtime: −exp(A_log)
  kDeltaStepBias,
  kDeltaNorm,
  kDeltaOutProj,
  kRouter,
  kRouterScale,  // of the router's normed input
  kExpertScale,  // one number per expert
  kExpertGateProj,
  kExpertUpProj,
  kExpertDownProj,
  kExpertNorm,        // before the experts, where an MLP runs beside them
  kExpertOutputNorm,  // behind them
  kBesideMlpNorm,     // behind that MLP
  kPerLayerEmbedding,
  kPerLayerModelProj,
  kPerLayerModelNorm,
  kPerLayerGate,
  kPerLayerProj,
  kPerLayerNorm,
};
std::string_view role_name(Role role);  // "q_proj"
/// The part of the model that it belongs to: embedding, attention, delta net, MLP, experts, router,
/// per-layer input, norms or head.
std::string_view role_part(Role role);

/// How a tensor's rows or values change from the Hugging Face file to GGUF.
enum class GgufTransform : uint8_t {
  kNone,
  kInterleaveRope,  // rows of each head from half-split to interleaved order (architectures.md
                    // §2.4)
  kAddOne,          // values w become fp32(1 + w), which is what the norm multiplies with
  kNegativeExp,     // values x become −exp(x), fp32
};

/// Blocks of rows or columns that GGUF keeps in another order: `groups` blocks that stand `repeats`
/// apart come first. From `begin` on, block p there is block (p mod groups)·repeats + p / groups of
/// the Hugging Face tensor.
struct BlockOrder {
  int64_t begin = 0;
  int64_t block = 0;  // rows or columns; 0: the order is the same
  int64_t groups = 1;
  int64_t repeats = 1;
};

/// Rows [first_row, first_row + the entry's rows) of a tensor that holds several entries of the
/// table one after the other; all dimensions but its last count as rows.
struct TensorSlice {
  std::string name;
  Shape shape;
  int64_t first_row = 0;
};

/// One tensor that a model of this spec has. Listed once; every reader and writer uses this row.
struct TensorEntry {
  Role role = Role::kTokenEmbedding;
  int layer = -1;         // −1: not in a layer
  int expert = -1;        // −1: not an expert's
  std::string hf_name;    // "model.layers.3.self_attn.q_proj.weight"
  std::string gguf_name;  // "blk.3.attn_q.weight"
  Shape shape;            // as in the Hugging Face file
  GgufTransform gguf_transform = GgufTransform::kNone;
  int n_heads = 0;                 // for kInterleaveRope
  BlockOrder gguf_rows;            // rows are the first dimension
  BlockOrder gguf_columns;         // begin 0, all columns
  bool quantizable = false;        // a linear that quantize may replace
  bool stacked_in_folder = false;  // models of this class keep it in hf_stack, others as hf_name
  /// Where a folder keeps it if there is no tensor `hf_name`.
  std::optional<TensorSlice> hf_stack = {};
  /// Where GGUF keeps it; gguf_name is the name of that tensor.
  std::optional<TensorSlice> gguf_stack = {};
  /// Rows times columns; else a vector, or the taps of a convolution.
  bool is_matrix() const { return shape.size() == 2; }
  /// "…self_attn.q_proj": hf_name without ".weight"
  std::string module_name() const;
};

/// Shape in GGUF: without dimensions of 1 between others.
Shape gguf_shape(const TensorEntry& entry);
/// Values as the ops use them, from those of the Hugging Face tensor: 1 + w, −exp(x) (fp64 function
/// of math64.h, rounded once, so that a file and a folder hold the same number), or unchanged.
void apply_transform(GgufTransform transform, std::span<float> values);

/// For each row of the tensor in GGUF the row of the Hugging Face tensor that it holds; empty where
/// the order is the same. Row 2i + j of a head is row j·(head_dim/2) + i (architectures.md §2.4).
std::vector<int64_t> huggingface_rows_of_gguf(const TensorEntry& entry);
/// The columns of GGUF from those of the Hugging Face tensor, and back.
ColumnOrder gguf_columns_of_huggingface(const TensorEntry& entry);
ColumnOrder huggingface_columns_of_gguf(const TensorEntry& entry);

/// A tensor that only GGUF has (rope_freqs.weight), computed from the spec.
struct GgufExtraTensor {
  std::string name;
  std::vector<float> values;  // 1-D, F32
};

class ConfigMembers;

/// One model family: plain functions, no state. A new family is one file and one row in
/// registry.cpp.
struct Family {
  std::string_view name;                          // "llama"
  std::span<const std::string_view> model_types;  // config.json model_type values
  std::string_view gguf_architecture;             // general.architecture
  /// tokenizer.ggml.model where tokens are pieces of text (tokenizer/vocabulary_kind.h).
  std::string_view gguf_pieces = "llama";
  /// Reads and range-checks config.json (and generation_config.json, null if absent).
  /// Throws FormatError or UnsupportedError naming the key, what was found and what is allowed.
  ModelSpec (*read_config)(const Json& config, const Json& generation_config);
  /// The same from GGUF metadata.
  ModelSpec (*read_gguf)(const GgufFile& file);
  /// Every tensor in canonical order (embedding, layers ascending, norm, head).
  std::vector<TensorEntry> (*tensors)(const ModelSpec& spec);
  /// Appends the `<arch>.*` keys, and `general.file_type` with `file_type` among them, in the order
  /// that the field's converter writes them. Throws UnsupportedError for what GGUF cannot say.
  void (*write_gguf_metadata)(const ModelSpec& spec, const Json& config, uint32_t file_type,
                              GgufMetadata& metadata);
  /// Adds to the config.json of a model that `file` holds what set_decoder_sizes (config_writer.h)
  /// has not said yet: class, layers, heads, rope. read_config must read the same spec from it.
  /// Throws UnsupportedError for what config.json cannot say.
  void (*write_config)(const ModelSpec& spec, const GgufFile& file, ConfigMembers& config);
  std::vector<GgufExtraTensor> (*gguf_extra_tensors)(const ModelSpec& spec);
  /// Why some run of this model in GGUF would differ from the Hugging Face one (Mistral's window);
  /// empty if it does not.
  std::string (*gguf_warning)(const ModelSpec& spec);
  /// Whether a tensor of a Hugging Face file is known to be of no use (old rotary caches).
  bool (*ignores_tensor)(std::string_view hf_name);
};

/// Every family.
std::span<const Family* const> all_families();
/// Throws UnsupportedError listing the known ones.
const Family& find_family_by_model_type(std::string_view model_type);
const Family& find_family_by_architecture(std::string_view gguf_architecture);
const Family& find_family(std::string_view name);

}  // namespace assay
