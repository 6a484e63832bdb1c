#include "convert/safetensors.h"

#include <algorithm>
#include <set>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/words.h"

namespace assay {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' format page
constexpr size_t kMaxRank = 8;
constexpr int64_t kMaxInteger = int64_t{1} << 53;  // exact in every JSON reader
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

// Types of less than a byte: their layout is checked, then they are refused as unsupported.
std::optional<uint64_t> bits_of_dtype(std::string_view name) {
  if (name == "F4") return 4;
  if (name == "F6_E2M3" || name == "F6_E3M2") return 6;
  if (const auto dtype = dtype_from_name(name)) return 8 * dtype_bytes(*dtype);
  return std::nullopt;
}

struct HeaderEntry {
  std::string name;
  std::string dtype;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes, relative to the data
};

// Reads the header of one file. Offsets in messages about JSON count from the header's first byte.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::span<const std::byte> bytes)
      : path_(path), bytes_(bytes) {}

  void read(std::vector<std::pair<std::string, std::string>>& metadata) {
    const Json header = parse_json(header_text(), path_ + ": header", {.max_depth = 4});
    for (const auto& [name, value] : header.as_object()) {
      if (name == "__metadata__") {
        read_metadata(value, metadata);
      } else {
        entries_.push_back(read_entry(name, value));
      }
    }
    check_layout();
    check_types();
  }

  const std::vector<HeaderEntry>& entries() const { return entries_; }
  std::span<const std::byte> data() const { return bytes_.subspan(data_start_); }

 private:
  std::string_view header_text() {
    ByteReader reader(path_, bytes_);
    const uint64_t n = reader.read_u64("header length");
    if (n > kMaxHeaderBytes) {
      fail("header length " + std::to_string(n) + " is above the limit of " +
           std::to_string(kMaxHeaderBytes) + "; is this a safetensors file?");
    }
    if (n > reader.remaining()) {
      fail("a header of " + std::to_string(n) + " bytes begins at byte 8, the file ends at " +
           std::to_string(bytes_.size()) + "; the download is incomplete");
    }
    const auto header = reader.read_bytes(n, "header");
    data_start_ = reader.offset();
    std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
    if (!text.starts_with('{')) fail("the header does not begin with '{'");
    text = text.substr(0, text.find_last_not_of(' ') + 1);
    if (!text.ends_with('}')) fail("the header does not end with '}' and spaces");
    return text;
  }

  void read_metadata(const Json& value,
                     std::vector<std::pair<std::string, std::string>>& metadata) const {
    if (!value.is_object()) fail("__metadata__ is no object");
    for (const auto& [key, text] : value.as_object()) {
      if (!text.is_string()) fail("__metadata__: the value of " + in_quotes(key) + " is no string");
      metadata.emplace_back(key, text.as_string());
    }
  }

  HeaderEntry read_entry(const std::string& name, const Json& value) const {
    if (name.empty() || has_control_characters(name)) {
      fail("a tensor has an empty name or one with control characters: " + in_quotes(name));
    }
    const Json* dtype = value.find("dtype");
    const Json* shape = value.find("shape");
    const Json* offsets = value.find("data_offsets");
    if (dtype == nullptr || shape == nullptr || offsets == nullptr ||
        value.as_object().size() != 3) {
      fail(name, "expected an object of dtype, shape and data_offsets");
    }
    if (!dtype->is_string()) fail(name, "dtype: expected a string");
    if (!shape->is_array() || shape->as_array().size() > kMaxRank) {
      fail(name, "shape: expected at most 8 whole numbers");
    }
    if (!offsets->is_array() || offsets->as_array().size() != 2) {
      fail(name, "data_offsets: expected two whole numbers");
    }
    HeaderEntry entry{name, dtype->as_string(), {}, 0, 0};
    for (const Json& dimension : shape->as_array()) {
      entry.shape.push_back(size_of(name, "shape", dimension));
    }
    entry.begin = static_cast<uint64_t>(size_of(name, "data_offsets", offsets->as_array()[0]));
    entry.end = static_cast<uint64_t>(size_of(name, "data_offsets", offsets->as_array()[1]));
    return entry;
  }

  int64_t size_of(const std::string& name, const std::string& what, const Json& value) const {
    // as_number first: it alone cannot throw for numbers above 2^63.
    if (!value.is_integer() || value.as_number() < 0 || value.as_number() > 0x1p53 ||
        value.as_integer() > kMaxInteger) {
      fail(name, what + ": expected a whole number from 0 to 2^53" +
                     (value.is_number() ? ", found " + value.dump(0) : ""));
    }
    return value.as_integer();
  }

  // Tensors lie back to back in the data and fill it: no overlap, no gap, nothing left over.
  void check_layout() {
    std::stable_sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    uint64_t expected = 0;
    const HeaderEntry* previous = nullptr;
    for (const HeaderEntry& entry : entries_) {
      if (entry.end < entry.begin) {
        fail(entry.name, "data_offsets " + std::to_string(entry.begin) + ", " +
                             std::to_string(entry.end) + " run backwards");
      }
      if (entry.begin != expected) {
        fail(entry.name, "data begins at " + std::to_string(entry.begin) + ", expected " +
                             std::to_string(expected) + " (" +
                             (entry.begin < expected ? "overlap with " : "gap after ") +
                             (previous ? in_quotes(previous->name) : "the header") + ")");
      }
      check_size(entry);
      expected = entry.end;
      previous = &entry;
    }
    const uint64_t data_bytes = bytes_.size() - data_start_;
    if (expected > data_bytes) {
      fail(previous->name, "data ends at " + std::to_string(expected) + ", the file's data has " +
                               std::to_string(data_bytes) + " bytes; the download is incomplete");
    }
    if (expected < data_bytes) {
      fail("the last " + std::to_string(data_bytes - expected) + " bytes belong to no tensor");
    }
  }

  void check_size(const HeaderEntry& entry) const {
    const std::optional<uint64_t> element_bits = bits_of_dtype(entry.dtype);
    if (!element_bits) return;  // check_types refuses it
    const std::string what = path_ + ": " + in_quotes(entry.name) + ": size of " +
                             to_string(entry.shape) + " " + entry.dtype;
    uint64_t bits = *element_bits;
    // Zero first, so that [2^40, 2^40, 0] does not count as an overflow.
    if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) bits = 0;
    for (const int64_t dimension : entry.shape) {
      if (bits != 0) bits = checked_multiply(bits, static_cast<uint64_t>(dimension), what);
    }
    if (bits % 8 != 0 || bits / 8 != entry.end - entry.begin) {
      throw FormatError(what + " is " + std::to_string(bits / 8) + " bytes" +
                        (bits % 8 != 0 ? " and some bits" : "") + ", data_offsets hold " +
                        std::to_string(entry.end - entry.begin));
    }
  }

  void check_types() const {
    for (const HeaderEntry& entry : entries_) {
      if (!dtype_from_name(entry.dtype)) {
        throw UnsupportedError(path_ + ": " + in_quotes(entry.name) + ": type " +
                               in_quotes(entry.dtype) + " is not supported");
      }
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw FormatError(path_ + ": " + what); }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw FormatError(path_ + ": " + in_quotes(tensor) + ": " + what);
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  uint64_t data_start_ = 0;
  std::vector<HeaderEntry> entries_;
};

// "a, b, c and 4 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    out += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  }
  if (names.size() > kShown) out += " and " + std::to_string(names.size() - kShown) + " more";
  return out;
}

using WeightMap = std::map<std::string, std::string, std::less<>>;  // tensor, file

WeightMap read_index(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  if (file.size() > kMaxHeaderBytes) {
    throw FormatError(path + ": the index has " + std::to_string(file.size()) +
                      " bytes, above the limit of " + std::to_string(kMaxHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const Json index = parse_json(text, path, {.max_depth = 8});
  const Json* weight_map = index.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    throw FormatError(path + ": expected an object \"weight_map\" of tensor and file names");
  }
  WeightMap out;
  for (const auto& [tensor, shard] : weight_map->as_object()) {
    if (!shard.is_string()) {
      throw FormatError(path + ": " + in_quotes(tensor) + ": expected the name of a file");
    }
    out.emplace(tensor, shard.as_string());
  }
  if (out.empty()) throw FormatError(path + ": \"weight_map\" names no tensor");
  return out;
}

// What the index promises against what the shards hold, in both directions.
void compare(const std::string& index_path, const WeightMap& weight_map,
             const std::map<std::string, std::string, std::less<>>& found_in) {
  std::vector<std::string> missing, unexpected;
  for (const auto& [tensor, shard] : weight_map) {
    const auto found = found_in.find(tensor);
    if (found == found_in.end()) {
      missing.push_back(tensor);
    } else if (found->second != shard) {
      throw FormatError(index_path + ": " + in_quotes(tensor) + ": the index names " +
                        in_quotes(shard) + ", the tensor lies in " + in_quotes(found->second));
    }
  }
  for (const auto& [tensor, shard] : found_in) {
    if (!weight_map.contains(tensor)) unexpected.push_back(tensor);
  }
  if (!missing.empty()) {
    throw FormatError(index_path + ": no file holds " + some_of(missing) +
                      ", which the index names; download the model again");
  }
  if (!unexpected.empty()) {
    throw FormatError(index_path + ": the index lacks " + some_of(unexpected) + " (in " +
                      in_quotes(found_in.find(unexpected.front())->second) +
                      "); index and files come from different versions");
  }
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file(MappedFile::open(path));
  HeaderReader reader(path, file.file_.bytes());
  reader.read(file.metadata_);
  for (const HeaderEntry& entry : reader.entries()) {
    const auto bytes = reader.data().subspan(entry.begin, entry.end - entry.begin);
    file.by_name_.emplace(entry.name, file.tensors_.size());
    file.tensors_.push_back({entry.name, {*dtype_from_name(entry.dtype), entry.shape, bytes}});
  }
  return file;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

SafetensorsModel SafetensorsModel::open(const std::string& folder) {
  const std::string index_path = folder + "/" + std::string(kIndexName);
  const bool has_index = file_exists(index_path);
  const bool has_single = file_exists(folder + "/" + std::string(kSingleName));
  if (!has_index && !has_single) {
    throw FileError(folder + ": holds neither " + std::string(kSingleName) + " nor " +
                    std::string(kIndexName) + "; expected a model folder in safetensors format");
  }
  WeightMap weight_map;
  std::set<std::string> shard_names;
  if (has_index) {
    weight_map = read_index(index_path);
    for (const auto& [tensor, shard] : weight_map) shard_names.insert(shard);
    if (has_single && !shard_names.contains(std::string(kSingleName))) {
      throw FormatError(folder + ": holds " + std::string(kSingleName) + " and " +
                        std::string(kIndexName) +
                        ", which does not name it; remove the one that is not the model");
    }
  } else {
    shard_names.insert(std::string(kSingleName));
  }

  // Every name is judged before any file is opened.
  std::vector<std::pair<std::string, std::string>> names_and_paths;
  for (const std::string& name : shard_names) {
    const std::string source = has_index ? index_path : folder;
    const std::string path = contained_path(folder, name, source);
    if (!file_exists(path)) {
      throw FormatError(source + ": names " + in_quotes(name) +
                        ", which is not there; download the model again");
    }
    names_and_paths.emplace_back(name, path);
  }

  SafetensorsModel model;
  model.shards_.reserve(names_and_paths.size());
  std::map<std::string, std::string, std::less<>> found_in;
  for (const auto& [name, path] : names_and_paths) {
    model.shards_.push_back(SafetensorsFile::open(path));
    for (const SafetensorsEntry& entry : model.shards_.back().tensors()) {
      const auto [place, is_new] = found_in.emplace(entry.name, name);
      if (!is_new) {
        throw FormatError(folder + ": " + in_quotes(entry.name) + " lies in two files, " +
                          in_quotes(place->second) + " and " + in_quotes(name));
      }
      model.by_name_.emplace(entry.name, &entry);
    }
  }
  if (has_index) compare(index_path, weight_map, found_in);
  return model;
}

const SafetensorsEntry* SafetensorsModel::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<std::string> SafetensorsModel::names() const {
  std::vector<std::string> out;
  out.reserve(by_name_.size());
  for (const auto& [name, entry] : by_name_) out.push_back(name);
  return out;
}

}  // namespace assay
