#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "convert/core/error.h"
#include "convert/core/hashed_file.h"
#include "convert/core/json.h"
#include "convert/safetensors.h"

namespace assay {
namespace {

uint64_t bytes_of(const TensorSource& tensor) {
  return checked_multiply(static_cast<uint64_t>(n_elements(tensor.shape)),
                          dtype_bytes(tensor.dtype), "size of " + tensor.name);
}

// Descending type, ascending name: the order of the reference writer (safetensors' format page).
bool canonical_order(const TensorSource& a, const TensorSource& b) {
  if (a.dtype != b.dtype) return a.dtype > b.dtype;
  return a.name < b.name;
}

std::string header_of(const std::string& path, const std::vector<TensorSource>& tensors) {
  Json::Object header;
  header.reserve(tensors.size() + 1);
  header.emplace_back("__metadata__", Json::object().set("format", "pt"));
  uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__" ||
        tensor.name.find('\0') != std::string::npos || tensor.shape.size() > 8) {
      throw FormatError(path + ": " + in_quotes(tensor.name) + " with shape " +
                        to_string(tensor.shape) +
                        " cannot be written: bad name or more than 8 dimensions");
    }
    Json::Array shape(tensor.shape.begin(), tensor.shape.end());
    const uint64_t end = checked_add(offset, bytes_of(tensor), "size of " + path);
    Json entry = Json::object();
    entry.set("dtype", dtype_name(tensor.dtype))
        .set("shape", std::move(shape))
        .set("data_offsets", Json::array().push(offset).push(end));
    header.emplace_back(tensor.name, std::move(entry));
    offset = end;
  }
  std::string text = Json(std::move(header)).dump(0);
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > 100'000'000) {
    throw FormatError(path + ": the header of " + std::to_string(tensors.size()) +
                      " tensors is above 100 MB; write more shards");
  }
  return text;
}

void check_names(const std::string& path, const std::vector<TensorSource>& tensors) {
  std::vector<std::string_view> names;
  for (const TensorSource& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw FormatError(path + ": two tensors are named " + in_quotes(*twice));
  }
}

// "model.layers.12." of "model.layers.12.mlp.up_proj.weight"; the whole name if it has no number.
std::string_view group_of(std::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = name.find('.', begin);
    if (end == std::string_view::npos) end = name.size();
    const std::string_view part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  return name;
}

using Shards = std::vector<std::vector<TensorSource>>;

// `tensors` in name order.
Shards deal(std::vector<TensorSource> tensors, uint64_t max_shard_bytes) {
  Shards shards;
  uint64_t used = 0;
  const auto fits = [&](uint64_t bytes) {
    return !shards.empty() && used <= max_shard_bytes && bytes <= max_shard_bytes - used;
  };
  for (size_t first = 0; first < tensors.size();) {
    size_t last = first;
    uint64_t group_bytes = 0;
    while (last < tensors.size() && group_of(tensors[last].name) == group_of(tensors[first].name)) {
      group_bytes = checked_add(group_bytes, bytes_of(tensors[last]), "size of the model");
      ++last;
    }
    const bool new_shard_helps = group_bytes <= max_shard_bytes && !fits(group_bytes);
    for (size_t i = first; i < last; ++i) {
      const uint64_t bytes = bytes_of(tensors[i]);
      if ((i == first && new_shard_helps) || !fits(bytes)) {
        shards.emplace_back();
        used = 0;
      }
      used += bytes;
      shards.back().push_back(std::move(tensors[i]));
    }
    first = last;
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text.data();
}

}  // namespace

TensorSource source_of(std::string name, const TensorView& view) {
  constexpr size_t kPieceBytes = size_t{16} << 20;
  return {std::move(name), view.dtype, view.shape, [view](const auto& sink) {
            for (std::span<const std::byte> left = view.bytes; !left.empty();) {
              const size_t n = left.size() < kPieceBytes ? left.size() : kPieceBytes;
              sink(left.first(n));
              left = left.subspan(n);
            }
          }};
}

WrittenFile write_safetensors(const std::string& path, std::vector<TensorSource> tensors) {
  std::sort(tensors.begin(), tensors.end(), canonical_order);
  check_names(path, tensors);
  const std::string header = header_of(path, tensors);
  HashedFile file(path);
  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  WrittenFile written;
  written.name = std::filesystem::path(path).filename();
  for (const TensorSource& tensor : tensors) {
    const uint64_t wanted = bytes_of(tensor);
    uint64_t given = 0;
    file.begin_part();
    tensor.write([&](std::span<const std::byte> piece) {
      given += piece.size();
      if (given <= wanted) file.write(piece);
    });
    if (given != wanted) {
      throw ShapeError(path + ": " + in_quotes(tensor.name) + ": its source gave " +
                       std::to_string(given) + " bytes, " + to_string(tensor.shape) + " " +
                       std::string(dtype_name(tensor.dtype)) + " has " + std::to_string(wanted));
    }
    written.tensor_sha256.emplace_back(tensor.name, file.end_part());
  }
  written.bytes = file.size();
  written.sha256 = file.commit();
  return written;
}

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

// Which tensors go into which file; the text of the index, empty for a single file.
struct ModelPlan {
  std::vector<std::pair<std::string, std::vector<TensorSource>>> shards;
  std::string index;
};

ModelPlan plan_model(const std::string& folder, std::vector<TensorSource> tensors,
                     uint64_t max_shard_bytes) {
  if (max_shard_bytes == 0) throw UsageError("the size of a shard must be above 0");
  check_names(folder, tensors);
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  uint64_t total_bytes = 0;
  for (const TensorSource& tensor : tensors) {
    total_bytes = checked_add(total_bytes, bytes_of(tensor), "size of the model");
  }
  ModelPlan plan;
  if (total_bytes <= max_shard_bytes) {
    plan.shards.emplace_back("model.safetensors", std::move(tensors));
    return plan;
  }
  Shards shards = deal(std::move(tensors), max_shard_bytes);
  Json::Object weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    for (const TensorSource& tensor : shards[i]) weight_map.emplace_back(tensor.name, name);
    plan.shards.emplace_back(name, std::move(shards[i]));
  }
  Json index = Json::object();
  index.set("metadata", Json::object().set("total_size", total_bytes))
      .set("weight_map", std::move(weight_map));
  plan.index = index.dump(2) + "\n";
  return plan;
}

}  // namespace

std::vector<WrittenFile> write_safetensors_model(const std::string& folder,
                                                 std::vector<TensorSource> tensors,
                                                 uint64_t max_shard_bytes) {
  ModelPlan plan = plan_model(folder, std::move(tensors), max_shard_bytes);
  std::vector<WrittenFile> written;
  for (auto& [name, shard] : plan.shards) {
    written.push_back(write_safetensors(folder + "/" + name, std::move(shard)));
  }
  if (plan.index.empty()) return written;
  HashedFile file(folder + "/" + kIndexName);
  file.write(plan.index);
  written.push_back({kIndexName, plan.index.size(), file.commit(), {}});
  return written;
}

std::vector<WrittenFile> plan_safetensors_model(std::vector<TensorSource> tensors,
                                                uint64_t max_shard_bytes) {
  ModelPlan plan = plan_model("model", std::move(tensors), max_shard_bytes);
  std::vector<WrittenFile> files;
  for (auto& [name, shard] : plan.shards) {
    std::sort(shard.begin(), shard.end(), canonical_order);
    WrittenFile file{name, 8 + header_of(name, shard).size(), {}, {}};
    for (const TensorSource& tensor : shard) {
      file.bytes += bytes_of(tensor);
      file.tensor_sha256.emplace_back(tensor.name, "");
    }
    files.push_back(std::move(file));
  }
  if (!plan.index.empty()) files.push_back({kIndexName, plan.index.size(), {}, {}});
  return files;
}

}  // namespace assay
