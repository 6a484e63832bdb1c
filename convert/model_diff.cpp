#include "convert/model_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/cli/text_table.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/core/units.h"
#include "convert/core/words.h"

namespace assay {
namespace {

/// One tensor as rows of fp32 values.
struct Rows {
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  std::function<void(int64_t row, std::span<float> out)> read;
};

struct ComparedTensor {
  std::string name;  // in the file
  std::string type;
  Shape shape;
  std::function<Rows()> open;
};

/// Tensors by what pairs them with those of another model, in order of the file.
struct Side {
  std::string path;
  std::shared_ptr<const Checkpoint> checkpoint;  // null: a file or family that is not a model here
  std::shared_ptr<const SafetensorsModel> folder;
  std::shared_ptr<const SafetensorsFile> single;
  std::shared_ptr<const GgufFile> gguf;
  std::vector<std::pair<std::string, ComparedTensor>> tensors;
  std::map<std::string, std::string> keys;  // of the configuration, as JSON
};

Rows rows_of_values(std::vector<float> values) {
  const auto shared = std::make_shared<const std::vector<float>>(std::move(values));
  return {1, static_cast<int64_t>(shared->size()), [shared](int64_t, std::span<float> out) {
            std::copy(shared->begin(), shared->end(), out.begin());
          }};
}

Rows rows_of_matrix(CheckpointMatrix matrix) {
  const auto shared = std::make_shared<const CheckpointMatrix>(std::move(matrix));
  return {shared->view.rows, shared->view.columns,
          [shared](int64_t row, std::span<float> out) { shared->decode_row(row, out); }};
}

/// Rows of the last dimension of plain bytes of any format.
Rows rows_of_view(const WeightFormat& format, const Shape& shape,
                  std::span<const std::byte> bytes) {
  const int64_t columns = shape.empty() ? 1 : shape.back();
  const int64_t n = n_elements(shape);
  const WeightView view{.format = &format,
                        .rows = columns == 0 ? 0 : n / columns,
                        .columns = columns,
                        .group_size = format.fixed_group(),
                        .data = bytes};
  return {view.rows, columns,
          [view](int64_t row, std::span<float> out) { view.format->decode_row(view, row, out); }};
}

void add_model_tensors(Side& side, bool by_role) {
  const Checkpoint& checkpoint = *side.checkpoint;
  const bool is_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const auto add = [&](const TensorEntry& entry) {
    const StoredTensor& stored = checkpoint.stored(entry);
    ComparedTensor tensor;
    tensor.name = is_gguf && !entry.gguf_stack ? entry.gguf_name : entry.hf_name;
    tensor.type = stored.act_order.empty() ? std::string(stored.format->name()) : stored.act_order;
    if (stored.scale_dtype) tensor.type += fmt::format(" group {}", stored.group_size);
    tensor.shape = entry.shape;
    tensor.open = [&checkpoint, &entry] {
      return entry.is_matrix() ? rows_of_matrix(checkpoint.matrix(entry))
                               : rows_of_values(checkpoint.vector(entry.role, entry.layer));
    };
    std::string key =
        by_role ? fmt::format("{} {} {}", role_name(entry.role), entry.layer, entry.expert)
                : tensor.name;
    side.tensors.emplace_back(std::move(key), std::move(tensor));
  };
  for (const TensorEntry& entry : checkpoint.tensors()) add(entry);
  for (const TensorEntry& entry : checkpoint.prediction_tensors()) add(entry);
}

void add_safetensors(Side& side, const SafetensorsFile& file) {
  for (const SafetensorsEntry& entry : file.tensors()) {
    ComparedTensor tensor{entry.name, std::string(dtype_name(entry.view.dtype)), entry.view.shape,
                          nullptr};
    const DType dtype = entry.view.dtype;
    if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) {
      tensor.open = [&entry, dtype] {
        return rows_of_view(scalar_format(dtype), entry.view.shape, entry.view.bytes);
      };
    }
    side.tensors.emplace_back(entry.name, std::move(tensor));
  }
}

void add_file_tensors(Side& side) {
  if (side.folder) {
    for (const SafetensorsFile& shard : side.folder->shards()) add_safetensors(side, shard);
  }
  if (side.single) add_safetensors(side, *side.single);
  if (!side.gguf) return;
  for (const GgufTensor& tensor : side.gguf->tensors()) {
    side.tensors.emplace_back(
        tensor.name,
        ComparedTensor{tensor.name, std::string(tensor.format->name()), tensor.shape, [&tensor] {
                         return rows_of_view(*tensor.format, tensor.shape, tensor.bytes);
                       }});
  }
}

std::string value_text(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, GgufArray>) {
          return std::visit(
              [](const auto& values) { return fmt::format("array of {}", values.size()); },
              held.values);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return Json(held).dump(0);
        } else {
          return fmt::format("{}", held);
        }
      },
      value);
}

/// "rope_parameters.rope_type" → "\"llama3\"".
void add_keys(const std::string& prefix, const Json& json,
              std::map<std::string, std::string>& keys) {
  for (const auto& [key, value] : json.as_object()) {
    if (value.is_object() && !value.as_object().empty()) {
      add_keys(prefix + key + ".", value, keys);
    } else {
      keys[prefix + key] = value.dump(0);
    }
  }
}

Side open_side(const std::string& path) {
  Side side;
  side.path = path;
  const bool is_folder = std::filesystem::is_directory(path);
  if (!is_folder && path.ends_with(".safetensors")) {
    side.single = std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
    return side;
  }
  try {
    side.checkpoint = Checkpoint::open(path);
  } catch (const UnsupportedError&) {
    if (is_folder) {
      side.folder = std::make_shared<const SafetensorsModel>(SafetensorsModel::open(path));
    } else {
      side.gguf = std::make_shared<const GgufFile>(GgufFile::open(path));
    }
  }
  const GgufFile* gguf = side.checkpoint ? side.checkpoint->gguf() : side.gguf.get();
  if (gguf != nullptr) {
    for (const auto& [key, value] : gguf->metadata().items()) side.keys[key] = value_text(value);
  } else {
    add_keys("", read_json_file(path + "/config.json"), side.keys);
  }
  return side;
}

const GgufFile* gguf_of(const Side& side) {
  return side.checkpoint ? side.checkpoint->gguf() : side.gguf.get();
}

/// Keys that both files may have; a folder and a GGUF file have none in common.
Json keys_json(const Side& a, const Side& b) {
  Json only_a = Json::array(), only_b = Json::array(), different = Json::array();
  const bool comparable = (gguf_of(a) != nullptr) == (gguf_of(b) != nullptr);
  if (comparable) {
    for (const auto& [key, value] : a.keys) {
      const auto other = b.keys.find(key);
      if (other == b.keys.end()) {
        only_a.push(key);
        continue;
      }
      bool same = value == other->second;
      if (same && gguf_of(a) != nullptr) {
        same = *gguf_of(a)->metadata().find(key) == *gguf_of(b)->metadata().find(key);
      }
      if (same) continue;
      different.push(Json::object().set("key", key).set("a", value).set("b", other->second));
    }
    for (const auto& [key, value] : b.keys) {
      if (!a.keys.contains(key)) only_b.push(key);
    }
  }
  return Json::object()
      .set("compared", comparable)
      .set("only_a", std::move(only_a))
      .set("only_b", std::move(only_b))
      .set("different", std::move(different));
}

struct Difference {
  int64_t n_values = 0;
  int64_t n_different = 0;  // bits; −0 counts as +0, NaN as NaN
  double max = 0;
  double rms = 0, rms_a = 0;
  bool has_nan = false;
};

struct RowSums {
  int64_t n_different = 0;
  double max = 0, squares = 0, squares_a = 0;
  bool has_nan = false;
};

RowSums compare_row(std::span<const float> a, std::span<const float> b) {
  RowSums sums;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    sums.squares_a += x * x;
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ++sums.n_different;
    const double difference = std::fabs(x - y);
    sums.has_nan |= std::isnan(difference);
    sums.max = std::max(sums.max, difference);
    sums.squares += difference * difference;
  }
  return sums;
}

/// Sums over rows are added in order of the rows: the same for any number of threads.
Difference compare(const Rows& a, const Rows& b) {
  std::vector<RowSums> rows(static_cast<size_t>(a.n_rows));
  parallel_for(a.n_rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(a.n_columns)), y(x.size());
    for (int64_t row = begin; row < end; ++row) {
      a.read(row, x);
      b.read(row, y);
      rows[static_cast<size_t>(row)] = compare_row(x, y);
    }
  });
  Difference all;
  double squares = 0, squares_a = 0;
  for (const RowSums& row : rows) {
    all.n_different += row.n_different;
    all.max = std::max(all.max, row.max);
    all.has_nan |= row.has_nan;
    squares += row.squares;
    squares_a += row.squares_a;
  }
  all.n_values = a.n_rows * a.n_columns;
  if (all.n_values > 0) {
    all.rms = std::sqrt(squares / static_cast<double>(all.n_values));
    all.rms_a = std::sqrt(squares_a / static_cast<double>(all.n_values));
  }
  return all;
}

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

std::string shape_text(const Shape& shape) {
  return join_words(shape, " x ", [](int64_t dim) { return std::to_string(dim); });
}

Json value_json(const ComparedTensor& a, const ComparedTensor& b, const Difference& difference) {
  return Json::object()
      .set("tensor", a.name)
      .set("type_a", a.type)
      .set("type_b", b.type)
      .set("n_values", difference.n_values)
      .set("n_different", difference.n_different)
      .set("max", difference.has_nan ? Json("nan") : number_json(difference.max))
      .set("rms", difference.has_nan ? Json("nan") : number_json(difference.rms))
      .set("rms_a", number_json(difference.rms_a));
}

}  // namespace

Json diff_models(const std::string& a_path, const std::string& b_path,
                 const ReadProgress& progress) {
  Side a = open_side(a_path), b = open_side(b_path);
  const bool by_role =
      a.checkpoint && b.checkpoint && &a.checkpoint->family() == &b.checkpoint->family();
  for (Side* side : {&a, &b}) {
    if (side->checkpoint) {
      add_model_tensors(*side, by_role);
    } else {
      add_file_tensors(*side);
    }
  }
  std::map<std::string_view, const ComparedTensor*> in_b;
  for (const auto& [key, tensor] : b.tensors) in_b[key] = &tensor;
  Json only_a = Json::array(), only_b = Json::array(), different = Json::array();
  Json values = Json::array(), not_compared = Json::array();
  int64_t n_equal = 0;
  for (const auto& [key, tensor] : a.tensors) {
    const auto found = in_b.find(key);
    if (found == in_b.end()) {
      only_a.push(tensor.name);
      continue;
    }
    const ComparedTensor& other = *found->second;
    in_b.erase(found);
    if (tensor.shape != other.shape) {
      different.push(Json::object()
                         .set("tensor", tensor.name)
                         .set("a", shape_text(tensor.shape))
                         .set("b", shape_text(other.shape)));
      continue;
    }
    if (!tensor.open || !other.open) {
      not_compared.push(tensor.name);
      continue;
    }
    if (progress) progress(tensor.name);
    const Rows x = tensor.open(), y = other.open();
    const Difference difference = compare(x, y);
    if (difference.n_different == 0) {
      ++n_equal;
    } else {
      values.push(value_json(tensor, other, difference));
    }
  }
  for (const auto& [key, tensor] : b.tensors) {
    if (in_b.contains(key)) only_b.push(tensor.name);
  }
  const Json keys = keys_json(a, b);
  const auto is_empty = [](const Json& list) { return list.as_array().empty(); };
  const bool equal = is_empty(only_a) && is_empty(only_b) && is_empty(different) &&
                     is_empty(values) && is_empty(keys.at("only_a")) &&
                     is_empty(keys.at("only_b")) && is_empty(keys.at("different"));
  return Json::object()
      .set("a", a_path)
      .set("b", b_path)
      .set("equal", equal)
      .set("keys", keys)
      .set("tensors", Json::object()
                          .set("equal", n_equal)
                          .set("only_a", std::move(only_a))
                          .set("only_b", std::move(only_b))
                          .set("shapes", std::move(different))
                          .set("not_compared", std::move(not_compared)))
      .set("values", std::move(values));
}

std::string diff_text(const Json& diff) {
  std::string text =
      fmt::format("A: {}\nB: {}\n", diff.at("a").as_string(), diff.at("b").as_string());
  const auto list = [&](const Json& names, std::string_view title) {
    if (names.as_array().empty()) return;
    text += fmt::format("{}:\n", title);
    for (const Json& name : names.as_array()) text += fmt::format("  {}\n", name.as_string());
  };
  const auto pairs = [&](const Json& items, const char* key, std::string_view title) {
    if (items.as_array().empty()) return;
    text += fmt::format("{}:\n", title);
    for (const Json& item : items.as_array()) {
      text += fmt::format("  {}: {} | {}\n", item.at(key).as_string(), item.at("a").as_string(),
                          item.at("b").as_string());
    }
  };
  const Json& keys = diff.at("keys");
  if (keys.at("compared").as_bool()) {
    list(keys.at("only_a"), "Keys only in A");
    list(keys.at("only_b"), "Keys only in B");
    pairs(keys.at("different"), "key", "Keys that differ (A | B)");
  } else {
    text += "Keys are not compared: one is a folder, the other a GGUF file.\n";
  }
  const Json& tensors = diff.at("tensors");
  list(tensors.at("only_a"), "Tensors only in A");
  list(tensors.at("only_b"), "Tensors only in B");
  pairs(tensors.at("shapes"), "tensor", "Shapes that differ (A | B)");
  list(tensors.at("not_compared"), "Tensors of types whose values are not compared");
  const Json::Array& values = diff.at("values").as_array();
  text += fmt::format("{} tensors hold the same values, {} do not.\n",
                      tensors.at("equal").as_integer(), values.size());
  if (values.empty()) return text;
  using Align = cli::TextTable::Align;
  cli::TextTable table({"tensor", "type A", "type B", "different", "max", "RMS", "RMS / RMS of A"},
                       {Align::kLeft, Align::kLeft, Align::kLeft, Align::kRight, Align::kRight,
                        Align::kRight, Align::kRight});
  const auto number = [](const Json& value) {
    return value.is_number() ? fmt::format("{:.3g}", value.as_number()) : value.as_string();
  };
  for (const Json& item : values) {
    const Json &rms = item.at("rms"), &rms_a = item.at("rms_a");
    const bool has_ratio = rms.is_number() && rms_a.is_number() && rms_a.as_number() > 0;
    table.add({item.at("tensor").as_string(), item.at("type_a").as_string(),
               item.at("type_b").as_string(), grouped_digits(item.at("n_different").as_integer()),
               number(item.at("max")), number(rms),
               has_ratio ? fmt::format("{:.3g}", rms.as_number() / rms_a.as_number()) : ""});
  }
  return text + table.text();
}

}  // namespace assay
