#include "convert/file_summary.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "convert/core/sha256.h"
#include "convert/core/sha256_streams.h"
#include "convert/formats/format.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// Hashes of one part of a GGUF model, as write_gguf tells them; `hashes` are those of all tensors.
void set_contents(const GgufFile& gguf, size_t part, const Json::Array& hashes, Json& json) {
  WrittenGguf contents;
  contents.header_sha256 = sha256_hex(gguf.parts()[part].header);
  for (size_t i = 0; i < hashes.size(); ++i) {
    const GgufTensor& tensor = gguf.tensors()[i];
    if (tensor.part != static_cast<int64_t>(part)) continue;
    contents.tensor_sha256.emplace_back(tensor.name, hashes[i].at("sha256").as_string());
  }
  json.set("header_sha256", contents.header_sha256);
  json.set("contents_sha256", contents.contents_sha256());
}

}  // namespace

std::string name_without_layer(const std::string& name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    if (i == 0 || name[i - 1] != '.' || !is_digit(name[i])) {
      out += name[i];
      continue;
    }
    out += '*';
    while (i + 1 < name.size() && is_digit(name[i + 1])) ++i;
  }
  return out;
}

Json shape_json(const Shape& shape) {
  Json json = Json::array();
  for (const int64_t dim : shape) json.push(dim);
  return json;
}

std::vector<FileTensor> tensors_of(const SafetensorsModel* folder, const SafetensorsFile* single,
                                   const GgufFile* gguf) {
  std::vector<FileTensor> tensors;
  const auto add_file = [&](const SafetensorsFile& file) {
    for (const SafetensorsEntry& entry : file.tensors()) {
      tensors.push_back({entry.name, std::string(dtype_name(entry.view.dtype)), entry.view.shape,
                         entry.view.bytes});
    }
  };
  if (folder != nullptr) {
    for (const SafetensorsFile& shard : folder->shards()) add_file(shard);
  }
  if (single != nullptr) add_file(*single);
  if (gguf != nullptr) {
    for (const GgufTensor& tensor : gguf->tensors()) {
      tensors.push_back(
          {tensor.name, std::string(tensor.format->name()), tensor.shape, tensor.bytes});
    }
  }
  return tensors;
}

Json tensor_list(const std::vector<FileTensor>& tensors, bool hashes,
                 const ReadProgress& progress) {
  std::vector<std::string> sha256;
  if (hashes) {
    std::vector<std::span<const std::byte>> parts;
    for (const FileTensor& tensor : tensors) parts.push_back(tensor.bytes);
    sha256 = sha256_of_all(parts, [&](size_t i) {
      if (progress) progress(tensors[i].name);
    });
  }
  Json list = Json::array();
  for (size_t i = 0; i < tensors.size(); ++i) {
    Json json = Json::object();
    json.set("name", tensors[i].name);
    json.set("type", tensors[i].type);
    json.set("shape", shape_json(tensors[i].shape));
    json.set("bytes", static_cast<uint64_t>(tensors[i].bytes.size()));
    if (hashes) json.set("sha256", sha256[i]);
    list.push(json);
  }
  return list;
}

Json file_list(const std::string& path, const GgufFile* gguf, const Json* tensors,
               const ReadProgress& progress) {
  std::vector<fs::path> files;
  if (gguf != nullptr) {
    for (const GgufPart& part : gguf->parts()) files.emplace_back(part.path);
  } else if (fs::is_directory(path)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  } else {
    files.emplace_back(path);
  }
  std::sort(files.begin(), files.end());
  Json list = Json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path& file = files[i];
    Json json = Json::object();
    json.set("name", file.filename().string());
    json.set("bytes", static_cast<uint64_t>(fs::file_size(file)));
    if (tensors != nullptr) {
      json.set("sha256", sha256_of_file(file.string(), [&] {
                 if (progress) progress(file.filename().string());
               }));
    }
    if (tensors != nullptr && gguf != nullptr) set_contents(*gguf, i, tensors->as_array(), json);
    list.push(json);
  }
  return list;
}

void add_unknown_weights(const std::vector<FileTensor>& tensors, Json& summary) {
  struct Kind {
    int64_t n = 0;
    uint64_t bytes = 0;
    FileTensor first;
  };
  std::vector<Kind> kinds;
  std::map<std::pair<std::string, std::string>, size_t> index;
  uint64_t bytes = 0;
  for (const FileTensor& tensor : tensors) {
    const auto [found, is_new] =
        index.emplace(std::pair(name_without_layer(tensor.name), tensor.type), kinds.size());
    if (is_new) kinds.push_back({.first = tensor});
    ++kinds[found->second].n;
    kinds[found->second].bytes += tensor.bytes.size();
    bytes += tensor.bytes.size();
  }
  Json weights = Json::array();
  for (const Kind& kind : kinds) {
    Json json = Json::object();
    json.set("tensor", name_without_layer(kind.first.name));
    json.set("n", kind.n);
    json.set("type", kind.first.type);
    json.set("shape", shape_json(kind.first.shape));
    json.set("bytes", kind.bytes);
    weights.push(json);
  }
  summary.set("weights", weights);
  summary.set("weight_bytes", bytes);
}

}  // namespace assay
