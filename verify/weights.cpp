#include "verify/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/ops/rope.h"
#include "verify/describe.h"

namespace assay {
namespace {

constexpr int64_t kRowsAtOnce = 256;

bool same_weight(float a, float b) {
  return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// What one row adds to a tensor's comparison.
struct RowSums {
  uint64_t n_different = 0;
  std::optional<FloatDifference> first;
  double max_abs = 0.0;
  double squares_difference = 0.0, squares_a = 0.0;
};

RowSums compare_values(std::span<const float> a, std::span<const float> b, int64_t row) {
  RowSums sums;
  for (size_t column = 0; column < a.size(); ++column) {
    const auto value = static_cast<double>(a[column]);
    sums.squares_a += value * value;
    if (same_weight(a[column], b[column])) continue;
    if (!sums.first) {
      sums.first = FloatDifference{row, static_cast<int64_t>(column), a[column], b[column]};
    }
    ++sums.n_different;
    double size = std::fabs(value - static_cast<double>(b[column]));
    if (!std::isfinite(size)) size = std::numeric_limits<double>::infinity();
    sums.max_abs = std::max(sums.max_abs, size);
    sums.squares_difference += size * size;
  }
  return sums;
}

/// Adds rows in order, so that the figures do not depend on threads.
class TensorSums {
 public:
  explicit TensorSums(TensorComparison& tensor) : tensor_(tensor) {}

  void add(const RowSums& row) {
    tensor_.n_different += row.n_different;
    if (row.first) ++tensor_.n_rows_different;
    if (!tensor_.first) tensor_.first = row.first;
    tensor_.max_abs_difference = std::max(tensor_.max_abs_difference, row.max_abs);
    squares_difference_ += row.squares_difference;
    squares_a_ += row.squares_a;
  }
  void finish() {
    if (squares_difference_ == 0.0) return;
    tensor_.relative_difference = squares_a_ > 0.0 ? std::sqrt(squares_difference_ / squares_a_)
                                                   : std::numeric_limits<double>::infinity();
  }

 private:
  TensorComparison& tensor_;
  double squares_difference_ = 0.0, squares_a_ = 0.0;
};

void compare_matrices(const CheckpointMatrix& a, const CheckpointMatrix& b,
                      TensorComparison& tensor) {
  TensorSums sums(tensor);
  for (int64_t begin = 0; begin < a.view.rows; begin += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, a.view.rows - begin);
    std::vector<RowSums> rows(static_cast<size_t>(n));
    parallel_for(n, 16, [&](int64_t first, int64_t last) {
      std::vector<float> row_a(static_cast<size_t>(a.view.columns)), row_b(row_a.size());
      for (int64_t i = first; i < last; ++i) {
        a.decode_row(begin + i, row_a);
        b.decode_row(begin + i, row_b);
        rows[static_cast<size_t>(i)] = compare_values(row_a, row_b, begin + i);
      }
    });
    for (const RowSums& row : rows) sums.add(row);
  }
  sums.finish();
}

std::string format_name(const WeightView& view) {
  if (view.group_size == 0) return std::string(view.format->name());
  return fmt::format("{} g{}", view.format->name(), view.group_size);
}

void compare_matrix_entry(const Checkpoint& a, const Checkpoint& b, TensorComparison& tensor) {
  const CheckpointMatrix matrix_a = a.matrix(tensor.role, tensor.layer, tensor.expert);
  const CheckpointMatrix matrix_b = b.matrix(tensor.role, tensor.layer, tensor.expert);
  tensor.shape = {matrix_a.view.rows, matrix_a.view.columns};
  tensor.format_a = format_name(matrix_a.view);
  tensor.format_b = format_name(matrix_b.view);
  tensor.plain_a = matrix_a.view.format->fold() == Fold::kFloat;
  tensor.plain_b = matrix_b.view.format->fold() == Fold::kFloat;
  tensor.group_a = matrix_a.view.group_size;
  tensor.group_b = matrix_b.view.group_size;
  const Shape shape_b = {matrix_b.view.rows, matrix_b.view.columns};
  if (tensor.shape != shape_b) {
    tensor.fault = fmt::format("shape {} against {}", to_string(tensor.shape), to_string(shape_b));
    return;
  }
  compare_matrices(matrix_a, matrix_b, tensor);
}

void compare_vector_entry(const Checkpoint& a, const Checkpoint& b, TensorComparison& tensor) {
  const std::vector<float> values_a = a.vector(tensor.role, tensor.layer);
  const std::vector<float> values_b = b.vector(tensor.role, tensor.layer);
  tensor.shape = {static_cast<int64_t>(values_a.size())};
  tensor.format_a = tensor.format_b = "vector";
  if (values_a.size() != values_b.size()) {
    tensor.fault = fmt::format("{} against {} values", values_a.size(), values_b.size());
    return;
  }
  TensorSums sums(tensor);
  sums.add(compare_values(values_a, values_b, 0));
  sums.finish();
}

TensorComparison compare_entry(const Checkpoint& a, const Checkpoint& b, const TensorEntry& entry) {
  TensorComparison tensor;
  tensor.name = entry.hf_name;
  tensor.role = entry.role;
  tensor.layer = entry.layer;
  tensor.expert = entry.expert;
  tensor.shape = entry.shape;
  // A head may be stored on one side and tied to the embedding on the other.
  const auto exists = [&](const Checkpoint& checkpoint) {
    return checkpoint.has(entry.role, entry.layer, entry.expert) ||
           (entry.role == Role::kHead && checkpoint.spec().tied_head);
  };
  if (!exists(a) || !exists(b)) {
    tensor.fault = fmt::format("only in {}", exists(a) ? "A" : "B");
  } else if (entry.is_matrix()) {
    compare_matrix_entry(a, b, tensor);
  } else {
    compare_vector_entry(a, b, tensor);
  }
  return tensor;
}

/// A's table, then what only B has.
std::vector<TensorEntry> union_of_tables(const Checkpoint& a, const Checkpoint& b) {
  std::vector<TensorEntry> entries = a.tensors();
  for (const TensorEntry& entry : b.tensors()) {
    if (!a.has(entry.role, entry.layer, entry.expert)) entries.push_back(entry);
  }
  return entries;
}

template <typename T>
void compare_field(const std::string& name, const T& a, const T& b,
                   std::vector<std::string>& differences) {
  if (a != b) differences.push_back(fmt::format("{}: {} against {}", name, a, b));
}

template <typename T>
std::string optional_text(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : std::string("none");
}

/// As the forward pass has it; files keep such numbers in fp64 or fp32.
std::optional<float> rounded(const std::optional<double>& value) {
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

std::string_view activation_name(Activation activation) {
  return activation == Activation::kSilu ? "silu" : "gelu_tanh";
}

void compare_ropes(const std::string& where, const RopeSpec& a, const RopeSpec& b,
                   std::vector<std::string>& differences) {
  const RopeTable table_a = make_rope_table(a, 1), table_b = make_rope_table(b, 1);
  compare_field(where + "rotary dimensions", a.rotary_dims, b.rotary_dims, differences);
  for (size_t i = 0; i < std::min(table_a.inv_freq.size(), table_b.inv_freq.size()); ++i) {
    if (table_a.inv_freq[i] == table_b.inv_freq[i]) continue;
    differences.push_back(fmt::format(
        "{}rope inverse frequencies differ at index {}: {} against "
        "{}",
        where, i, describe_float(table_a.inv_freq[i]), describe_float(table_b.inv_freq[i])));
    break;
  }
  compare_field(where + "rope attention factor", static_cast<float>(a.attention_factor),
                static_cast<float>(b.attention_factor), differences);
}

void compare_attention(const std::string& where, const AttentionSpec& a, const AttentionSpec& b,
                       std::vector<std::string>& differences) {
  const auto compare = [&](const char* name, const auto& of_a, const auto& of_b) {
    compare_field(where + name, of_a, of_b, differences);
  };
  compare("attention heads", a.n_heads, b.n_heads);
  compare("key and value heads", a.n_kv_heads, b.n_kv_heads);
  compare("head dimension", a.head_dim, b.head_dim);
  compare("attention scale", static_cast<float>(a.scale), static_cast<float>(b.scale));
  compare("sliding window", optional_text(a.sliding_window), optional_text(b.sliding_window));
  compare("bias of q, k and v", a.qkv_bias, b.qkv_bias);
  compare("bias of o", a.o_bias, b.o_bias);
  compare("norms of q and k", a.qk_norm, b.qk_norm);
  compare("norm of v", a.v_norm, b.v_norm);
  compare("values are the keys", a.k_is_v, b.k_is_v);
  compare("gate of the output", a.output_gate, b.output_gate);
  compare("layer whose keys and values it reads", optional_text(a.kv_source),
          optional_text(b.kv_source));
  compare_ropes(where, a.rope, b.rope, differences);
}

void compare_delta_nets(const std::string& where, const DeltaNetSpec& a, const DeltaNetSpec& b,
                        std::vector<std::string>& differences) {
  const auto compare = [&](const char* name, int of_a, int of_b) {
    compare_field(where + "Gated DeltaNet: " + name, of_a, of_b, differences);
  };
  compare("key heads", a.n_key_heads, b.n_key_heads);
  compare("value heads", a.n_value_heads, b.n_value_heads);
  compare("key dimension", a.key_dim, b.key_dim);
  compare("value dimension", a.value_dim, b.value_dim);
  compare("convolution taps", a.conv_kernel, b.conv_kernel);
}

void compare_mlps(const std::string& where, const LayerSpec& a, const LayerSpec& b,
                  std::vector<std::string>& differences) {
  const auto compare = [&](const char* name, const auto& of_a, const auto& of_b) {
    compare_field(where + name, of_a, of_b, differences);
  };
  compare("intermediate size", a.mlp.intermediate_size, b.mlp.intermediate_size);
  compare("activation", activation_name(a.mlp.activation), activation_name(b.mlp.activation));
  compare("bias of the MLP", a.mlp.bias, b.mlp.bias);
  const MoeSpec moe_a = a.moe.value_or(MoeSpec()), moe_b = b.moe.value_or(MoeSpec());
  compare("experts", moe_a.n_experts, moe_b.n_experts);
  compare("experts per token", moe_a.top_k, moe_b.top_k);
  compare("intermediate size of an expert", moe_a.intermediate_size, moe_b.intermediate_size);
  compare("activation of experts", activation_name(moe_a.activation),
          activation_name(moe_b.activation));
  compare("expert weights divided by their sum", moe_a.normalize, moe_b.normalize);
  compare("experts beside an MLP", moe_a.beside_mlp, moe_b.beside_mlp);
}

void compare_layers(const std::string& where, const LayerSpec& a, const LayerSpec& b,
                    std::vector<std::string>& differences) {
  compare_field(where + "Gated DeltaNet", a.delta_net.has_value(), b.delta_net.has_value(),
                differences);
  if (a.delta_net && b.delta_net) {
    compare_delta_nets(where, *a.delta_net, *b.delta_net, differences);
  } else if (!a.delta_net && !b.delta_net) {
    compare_attention(where, a.attention, b.attention, differences);
  }
  compare_mlps(where, a, b, differences);
  compare_field(where + "norms behind attention and MLP", a.sandwich_norms, b.sandwich_norms,
                differences);
  compare_field(where + "scale of the layer's output", a.output_scale, b.output_scale, differences);
}

}  // namespace

std::string TensorComparison::describe() const {
  if (!fault.empty()) return fmt::format("{}: {}", name, fault);
  if (equal()) return fmt::format("{}: equal", name);
  const auto group = [&]() -> std::string {
    const int64_t size = group_a != 0 ? group_a : group_b;
    return size == 0 ? std::string() : fmt::format(" (group {})", first->column / size);
  };
  return fmt::format(
      "{}: {} of {} values in {} rows differ, first at row {}, column {}{}: {} "
      "against {}",
      name, n_different, n_elements(shape), n_rows_different, first->row, first->column, group(),
      describe_float(first->a), describe_float(first->b));
}

Json TensorComparison::to_json() const {
  Json json = Json::object();
  json.set("name", name);
  json.set("format_a", format_a);
  json.set("format_b", format_b);
  json.set("n_different", n_different);
  json.set("n_rows_different", n_rows_different);
  json.set("max_abs_difference",
           std::isfinite(max_abs_difference) ? Json(max_abs_difference) : Json(nullptr));
  json.set("relative_difference",
           std::isfinite(relative_difference) ? Json(relative_difference) : Json(nullptr));
  if (first) {
    json.set("row", first->row);
    json.set("column", first->column);
    json.set("a", describe_float(first->a));
    json.set("b", describe_float(first->b));
  }
  if (!fault.empty()) json.set("fault", fault);
  return json;
}

uint64_t WeightsComparison::n_different() const {
  return static_cast<uint64_t>(
      std::count_if(tensors.begin(), tensors.end(), [](const auto& t) { return !t.equal(); }));
}

bool WeightsComparison::same_formats() const {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.same_format(); });
}

bool WeightsComparison::plain_a() const {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.plain_a; });
}

bool WeightsComparison::plain_b() const {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.plain_b; });
}

const TensorComparison* WeightsComparison::first_difference() const {
  for (const TensorComparison& tensor : tensors) {
    if (!tensor.equal()) return &tensor;
  }
  return nullptr;
}

std::vector<std::string> compare_specs(const ModelSpec& a, const ModelSpec& b) {
  std::vector<std::string> differences;
  compare_field("vocabulary", a.vocab_size, b.vocab_size, differences);
  compare_field("hidden size", a.hidden_size, b.hidden_size, differences);
  compare_field("RMSNorm eps", static_cast<float>(a.rms_norm_eps),
                static_cast<float>(b.rms_norm_eps), differences);
  compare_field("scale of the embedding", optional_text(rounded(a.embedding_scale)),
                optional_text(rounded(b.embedding_scale)), differences);
  compare_field("softcap of the logits", optional_text(rounded(a.final_softcap)),
                optional_text(rounded(b.final_softcap)), differences);
  compare_field("input per layer", a.per_layer_input_size, b.per_layer_input_size, differences);
  compare_field("layers", a.layers.size(), b.layers.size(), differences);
  for (size_t i = 0; i < std::min(a.layers.size(), b.layers.size()); ++i) {
    compare_layers(fmt::format("layer {}: ", i), a.layers[i], b.layers[i], differences);
  }
  return differences;
}

WeightsComparison compare_weights(
    const Checkpoint& a, const Checkpoint& b,
    const std::function<void(size_t, size_t, const std::string&)>& progress) {
  WeightsComparison comparison;
  comparison.spec_differences = compare_specs(a.spec(), b.spec());
  const std::vector<TensorEntry> entries = union_of_tables(a, b);
  for (const TensorEntry& entry : entries) {
    if (progress) progress(comparison.tensors.size(), entries.size(), entry.hf_name);
    comparison.tensors.push_back(compare_entry(a, b, entry));
  }
  return comparison;
}

std::optional<FloatDifference> compare_weight_row(const CheckpointMatrix& a,
                                                  const CheckpointMatrix& b, int64_t row) {
  std::vector<float> row_a(static_cast<size_t>(a.view.columns)),
      row_b(static_cast<size_t>(b.view.columns));
  a.decode_row(row, row_a);
  b.decode_row(row, row_b);
  return compare_values(row_a, row_b, row).first;
}

}  // namespace assay
