#include "convert/gguf.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/words.h"
#include "convert/formats/format.h"
#include "convert/gguf_types.h"
#include "convert/tokenizer/unicode.h"

namespace assay {
namespace {

bool is_utf8(std::string_view text) { return tokenization::valid_utf8_prefix(text) == text.size(); }

// Limits of ggml's docs/gguf.md.
constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 30;
constexpr uint64_t kMaxKeyBytes = 65535;
// Bounds on what takes more memory than it takes in the file; no known model comes near.
constexpr uint64_t kMaxEntries = uint64_t{1} << 20;  // keys, tensors
constexpr uint64_t kMaxStrings = uint64_t{1} << 24;  // in all arrays together
constexpr uint64_t kMaxTensorNameBytes = 63;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint32_t kDefaultAlignment = 32;
// The least that one entry can take: empty strings and a value of one byte.
constexpr uint64_t kMinKeyValueBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 8 + 4 + 8;

enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12
};

struct TensorInfo {
  std::string name;
  Shape shape;  // row-major
  const GgufTypeRow* type = nullptr;
  uint64_t offset = 0;  // bytes, relative to the data
  uint64_t bytes = 0;
  uint64_t place = 0;  // of the entry in the file, for messages
};

// One mapped file, a part of a model or all of it. Everything is judged here, before any of it is
// used: counts against what is left of the file, sizes with checked products and sums.
class PartReader {
 public:
  PartReader(const std::string& path, std::span<const std::byte> bytes)
      : path_(path), bytes_(bytes), reader_(path, bytes) {}

  void read() {
    const auto [n_tensors, n_keys] = read_header();
    for (uint64_t i = 0; i < n_keys; ++i) {
      read_key_value();
      if (reader_.offset() > kMaxMetadataBytes) fail("the metadata is larger than 1 GiB");
    }
    read_alignment();
    tensors_.reserve(n_tensors);
    for (uint64_t i = 0; i < n_tensors; ++i) read_tensor_info();
    check_layout();
  }

  GgufMetadata& metadata() { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  uint64_t data_start() const { return data_start_; }
  std::span<const std::byte> bytes_of(const TensorInfo& tensor) const {
    return bytes_.subspan(data_start_ + tensor.offset, tensor.bytes);
  }

 private:
  std::pair<uint64_t, uint64_t> read_header() {
    const auto magic = reader_.read_bytes(4, "the magic \"GGUF\"");
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
      fail("does not begin with \"GGUF\"; a model is a .gguf file, or a folder with config.json");
    }
    const uint32_t version = reader_.read_u32("the version");
    if (version != 0 && (version & 0xffffu) == 0) {
      throw UnsupportedError(path_ +
                             ": is a big-endian GGUF file; only little-endian is supported");
    }
    if (version != 2 && version != 3) {
      throw UnsupportedError(path_ + ": GGUF version " + std::to_string(version) +
                             ", expected 2 or 3");
    }
    const uint64_t n_tensors = reader_.read_u64("the number of tensors");
    const uint64_t n_keys = reader_.read_u64("the number of keys");
    check_count("keys", n_keys, kMinKeyValueBytes);
    check_count("tensors", n_tensors, kMinTensorInfoBytes);
    return {n_tensors, n_keys};
  }

  void check_count(const char* what, uint64_t n, uint64_t min_bytes) const {
    if (n > reader_.remaining() / min_bytes || n > kMaxEntries) {
      fail("the file cannot hold " + std::to_string(n) + " " + what + ", it ends at byte " +
           std::to_string(bytes_.size()));
    }
  }

  std::string read_string(std::string_view what, uint64_t max_bytes) {
    const uint64_t at = reader_.offset();
    const uint64_t n = reader_.read_u64(what);
    if (n > max_bytes) {
      fail(std::string(what) + " at byte " + std::to_string(at) + " has " + std::to_string(n) +
           " bytes, the limit is " + std::to_string(max_bytes));
    }
    const auto text = reader_.read_bytes(n, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  void read_key_value() {
    const uint64_t at = reader_.offset();
    const std::string key = read_string("a key", kMaxKeyBytes);
    if (key.empty() || has_control_characters(key) || !is_utf8(key)) {
      fail("the key at byte " + std::to_string(at) +
           " is empty, has control characters or is not valid UTF-8");
    }
    if (!key_places_.emplace(key, at).second) {
      fail("the key " + in_quotes(key) + " at byte " + std::to_string(at) +
           " occurs twice, first at byte " + std::to_string(key_places_.find(key)->second));
    }
    const uint32_t type = reader_.read_u32("the type of " + in_quotes(key));
    metadata_.set(key, type == kArray ? GgufValue(read_array(key)) : read_scalar(key, type));
  }

  GgufValue read_scalar(const std::string& key, uint32_t type) {
    const std::string what = "the value of " + in_quotes(key);
    switch (type) {
      case kUint8:
        return reader_.read_u8(what);
      case kInt8:
        return static_cast<int8_t>(reader_.read_u8(what));
      case kUint16:
        return reader_.read_u16(what);
      case kInt16:
        return static_cast<int16_t>(reader_.read_u16(what));
      case kUint32:
        return reader_.read_u32(what);
      case kInt32:
        return static_cast<int32_t>(reader_.read_u32(what));
      case kFloat32:
        return reader_.read_f32(what);
      case kBool:
        return read_bool(key);
      case kString:
        return read_string(what, kMaxMetadataBytes);
      case kUint64:
        return reader_.read_u64(what);
      case kInt64:
        return static_cast<int64_t>(reader_.read_u64(what));
      case kFloat64:
        return reader_.read_f64(what);
      default:
        fail_key(key, "unknown value type " + std::to_string(type));
    }
  }

  bool read_bool(const std::string& key) {
    const uint8_t byte = reader_.read_u8("the value of " + in_quotes(key));
    if (byte > 1) fail_key(key, "a boolean is stored as " + std::to_string(byte));
    return byte == 1;
  }

  GgufArray read_array(const std::string& key) {
    const std::string what = "the array " + in_quotes(key);
    const uint32_t type = reader_.read_u32(what);
    const uint64_t n = reader_.read_u64(what);
    if (n > kMaxArrayElements) fail_key(key, "an array of " + std::to_string(n) + " elements");
    switch (type) {
      case kUint8:
        return {read_elements<uint8_t>(n, what)};
      case kInt8:
        return {read_elements<int8_t>(n, what)};
      case kUint16:
        return {read_elements<uint16_t>(n, what)};
      case kInt16:
        return {read_elements<int16_t>(n, what)};
      case kUint32:
        return {read_elements<uint32_t>(n, what)};
      case kInt32:
        return {read_elements<int32_t>(n, what)};
      case kFloat32:
        return {read_elements<float>(n, what)};
      case kUint64:
        return {read_elements<uint64_t>(n, what)};
      case kInt64:
        return {read_elements<int64_t>(n, what)};
      case kFloat64:
        return {read_elements<double>(n, what)};
      case kBool: {
        std::vector<bool> values;
        for (const uint8_t byte : read_elements<uint8_t>(n, what)) {
          if (byte > 1) fail_key(key, "a boolean is stored as " + std::to_string(byte));
          values.push_back(byte == 1);
        }
        return {std::move(values)};
      }
      case kString: {
        check_elements(what, n, 8);
        n_strings_ += n;
        if (n_strings_ > kMaxStrings) fail_key(key, "too many strings");
        std::vector<std::string> values;
        values.reserve(n);
        for (uint64_t i = 0; i < n; ++i) values.push_back(read_string(what, kMaxMetadataBytes));
        return {std::move(values)};
      }
      case kArray:
        fail_key(key, "arrays of arrays are not allowed");
      default:
        fail_key(key, "unknown element type " + std::to_string(type));
    }
  }

  void check_elements(const std::string& what, uint64_t n, uint64_t min_bytes) const {
    if (n > reader_.remaining() / min_bytes) {
      fail(what + " at byte " + std::to_string(reader_.offset()) + " has " + std::to_string(n) +
           " elements, the file ends at " + std::to_string(bytes_.size()));
    }
  }

  template <class T>
  std::vector<T> read_elements(uint64_t n, const std::string& what) {
    check_elements(what, n, sizeof(T));
    const auto bytes = reader_.read_bytes(n * sizeof(T), what);
    std::vector<T> values(n);
    if (n != 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  void read_alignment() {
    const GgufValue* value = metadata_.find("general.alignment");
    if (value == nullptr) return;
    const uint32_t* number = std::get_if<uint32_t>(value);
    if (number == nullptr) fail_key("general.alignment", "is not of type u32");
    if (*number < 8 || *number > 65536 || (*number & (*number - 1)) != 0) {
      fail_key("general.alignment",
               std::to_string(*number) + " is no power of two from 8 to 65536");
    }
    alignment_ = *number;
  }

  void read_tensor_info() {
    const uint64_t at = reader_.offset();
    TensorInfo tensor;
    tensor.place = at;
    tensor.name = read_string("a tensor name", kMaxTensorNameBytes);
    if (tensor.name.empty() || has_control_characters(tensor.name) || !is_utf8(tensor.name)) {
      fail("the tensor at byte " + std::to_string(at) +
           " has an empty name, one with control characters or one that is not valid UTF-8");
    }
    const uint32_t n_dims =
        reader_.read_u32("the number of dimensions of " + in_quotes(tensor.name));
    if (n_dims < 1 || n_dims > kMaxDimensions) {
      fail_tensor(tensor.name, std::to_string(n_dims) + " dimensions, expected 1 to 4");
    }
    for (uint32_t i = 0; i < n_dims; ++i) {
      const uint64_t ne =
          reader_.read_u64("dimension " + std::to_string(i) + " of " + in_quotes(tensor.name));
      if (ne == 0 || ne > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail_tensor(tensor.name, "dimension " + std::to_string(i) + " is " +
                                     std::to_string(static_cast<int64_t>(ne)));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(ne));
    }
    const uint32_t type = reader_.read_u32("the type of " + in_quotes(tensor.name));
    tensor.type = find_gguf_type(type);
    if (tensor.type == nullptr) {
      fail_tensor(tensor.name, "tensor type " + std::to_string(type) +
                                   " does not exist or was removed from the format");
    }
    tensor.offset = reader_.read_u64("the offset of " + in_quotes(tensor.name));
    tensor.bytes = size_of(tensor);
    tensors_.push_back(std::move(tensor));
  }

  uint64_t size_of(const TensorInfo& tensor) const {
    const int64_t columns = tensor.shape.back();
    if (columns % tensor.type->block_columns != 0) {
      fail_tensor(tensor.name, "rows of " + std::to_string(columns) + " elements, " +
                                   std::string(tensor.type->name) + " needs a multiple of " +
                                   std::to_string(tensor.type->block_columns));
    }
    const std::string what = path_ + ": " + in_quotes(tensor.name) + ": size of " +
                             to_string(tensor.shape) + " " + std::string(tensor.type->name);
    uint64_t n_values = 1;
    for (const int64_t dimension : tensor.shape) {
      n_values = checked_multiply(n_values, static_cast<uint64_t>(dimension), what);
    }
    if (n_values > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail_tensor(tensor.name, "size of " + to_string(tensor.shape) + " overflows");
    }
    return checked_multiply(n_values / static_cast<uint64_t>(tensor.type->block_columns),
                            static_cast<uint64_t>(tensor.type->block_bytes), what);
  }

  uint64_t aligned(uint64_t n) const {
    return checked_add(n, alignment_ - 1, path_ + ": size of the tensors") &
           ~uint64_t{alignment_ - 1};
  }

  // Tensors lie in the order of their entries, each padded to the alignment, and fill the file.
  void check_layout() {
    std::map<std::string_view, uint64_t> places;
    for (const TensorInfo& tensor : tensors_) {
      const auto [first, is_new] = places.emplace(tensor.name, tensor.place);
      if (!is_new) {
        fail_tensor(tensor.name, "has two entries, at bytes " + std::to_string(first->second) +
                                     " and " + std::to_string(tensor.place));
      }
    }
    data_start_ = aligned(reader_.offset());
    if (tensors_.empty()) {
      if (bytes_.size() != reader_.offset() && bytes_.size() != data_start_) {
        fail("the metadata ends at byte " + std::to_string(reader_.offset()) +
             " and there are no tensors, the file ends at " + std::to_string(bytes_.size()));
      }
      return;
    }
    const uint64_t data_bytes = bytes_.size() > data_start_ ? bytes_.size() - data_start_ : 0;
    uint64_t expected = 0;
    for (const TensorInfo& tensor : tensors_) {
      if (tensor.offset != expected) {
        fail_tensor(tensor.name, std::string(tensor.type->name) + " data of " +
                                     std::to_string(tensor.bytes) + " bytes at offset " +
                                     std::to_string(tensor.offset) + ", expected offset " +
                                     std::to_string(expected) + " (the file has " +
                                     std::to_string(bytes_.size()) + " bytes)");
      }
      const uint64_t end =
          aligned(checked_add(expected, tensor.bytes, path_ + ": size of the tensors"));
      if (end > data_bytes) {
        fail_tensor(tensor.name, std::string(tensor.type->name) + " data of " +
                                     std::to_string(tensor.bytes) + " bytes at offset " +
                                     std::to_string(expected) + " with padding ends at byte " +
                                     std::to_string(end) + " of the data, the file has " +
                                     std::to_string(data_bytes) + "; the download is incomplete");
      }
      expected = end;
    }
    if (expected < data_bytes) {
      fail("the last " + std::to_string(data_bytes - expected) + " bytes belong to no tensor");
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw FormatError(path_ + ": " + what); }
  [[noreturn]] void fail_key(std::string_view key, const std::string& what) const {
    fail("key " + in_quotes(key) + ": " + what);
  }
  [[noreturn]] void fail_tensor(std::string_view name, const std::string& what) const {
    fail("tensor " + in_quotes(name) + ": " + what);
  }

  std::string path_;
  std::span<const std::byte> bytes_;
  ByteReader reader_;
  GgufMetadata metadata_;
  std::map<std::string, uint64_t, std::less<>> key_places_;
  uint64_t n_strings_ = 0;
  uint32_t alignment_ = kDefaultAlignment;
  uint64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
};

template <class T>
const std::vector<T>* array_of(const std::string& path, const GgufMetadata& metadata,
                               std::string_view key, const char* expected) {
  const GgufValue* value = metadata.find(key);
  if (value == nullptr) return nullptr;
  const GgufArray* array = std::get_if<GgufArray>(value);
  const std::vector<T>* elements =
      array == nullptr ? nullptr : std::get_if<std::vector<T>>(&array->values);
  if (elements == nullptr) {
    throw FormatError(path + ": key " + in_quotes(key) + ": expected an array of " + expected);
  }
  return elements;
}

// Token lists are indexed by one another's positions later on.
void check_tokenizer(const std::string& path, const GgufMetadata& metadata) {
  const auto* tokens = array_of<std::string>(path, metadata, "tokenizer.ggml.tokens", "strings");
  const auto* types = array_of<int32_t>(path, metadata, "tokenizer.ggml.token_type", "i32");
  const auto* scores = array_of<float>(path, metadata, "tokenizer.ggml.scores", "f32");
  array_of<std::string>(path, metadata, "tokenizer.ggml.merges", "strings");
  const size_t n_tokens = tokens == nullptr ? 0 : tokens->size();
  const auto check = [&](const char* what, const auto* list) {
    if (list != nullptr && list->size() != n_tokens) {
      throw FormatError(path + ": " + what + " has " + std::to_string(list->size()) +
                        " entries, tokenizer.ggml.tokens has " + std::to_string(n_tokens));
    }
  };
  check("tokenizer.ggml.token_type", types);
  check("tokenizer.ggml.scores", scores);
}

// Integer value of a split key, or `otherwise`. The range keeps later sums small.
int64_t split_value(const std::string& path, const GgufMetadata& metadata, std::string_view key,
                    int64_t otherwise) {
  try {
    const int64_t value = metadata.integer(key).value_or(otherwise);
    if (value >= 0 && value <= std::numeric_limits<int32_t>::max()) return value;
    throw FormatError("GGUF key " + in_quotes(key) + ": " + std::to_string(value) +
                      " is out of range");
  } catch (const FormatError& error) {
    throw FormatError(path + ": " + error.what());
  }
}

// "<prefix>-00002-of-00005.gguf" for part 1 of 5.
std::string part_suffix(int64_t index, int64_t count) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "-%05lld-of-%05lld.gguf",
                static_cast<long long>(index) + 1, static_cast<long long>(count));
  return text.data();
}

// The paths of all parts, derived from that of the first; names inside the file play no role.
std::vector<std::string> part_paths(const std::string& path, int64_t count) {
  const std::string suffix = part_suffix(0, count);
  if (!path.ends_with(suffix)) {
    throw FormatError(path + ": is the first of " + std::to_string(count) +
                      " parts, so its name must end with \"" + suffix +
                      "\" for the others to be found");
  }
  const std::string prefix = path.substr(0, path.size() - suffix.size());
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) paths.push_back(prefix + part_suffix(i, count));
  return paths;
}

// Later parts repeat nothing but the keys of the split; anything else must agree with part 0.
void check_part(const std::string& path, const GgufMetadata& part, const GgufMetadata& first,
                int64_t index, int64_t count) {
  const int64_t found_index = split_value(path, part, "split.no", 0);
  const int64_t found_count = split_value(path, part, "split.count", 0);
  if (found_index != index || found_count != count) {
    throw FormatError(path + ": says it is part " + std::to_string(found_index + 1) + " of " +
                      std::to_string(found_count) + ", expected part " + std::to_string(index + 1) +
                      " of " + std::to_string(count));
  }
  for (const auto& [key, value] : part.items()) {
    if (key.starts_with("split.") || key == "general.alignment") continue;
    if (const GgufValue* other = first.find(key); other == nullptr || *other != value) {
      throw FormatError(path + ": key " + in_quotes(key) + " differs from the first part");
    }
  }
}

}  // namespace

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file;
  file.path_ = path;
  std::vector<std::string> paths{path};
  std::vector<size_t> parts;  // of each tensor, index into paths
  int64_t n_parts = 1;
  for (size_t i = 0; i < paths.size(); ++i) {
    file.files_.push_back(MappedFile::open(paths[i]));
    PartReader part(paths[i], file.files_.back().bytes());
    part.read();
    const auto bytes = file.files_.back().bytes();
    file.parts_.push_back({paths[i], bytes.first(std::min(part.data_start(), bytes.size()))});
    if (i == 0) {
      file.metadata_ = std::move(part.metadata());
      check_tokenizer(path, file.metadata_);
      n_parts = std::max<int64_t>(1, split_value(path, file.metadata_, "split.count", 0));
      const int64_t index = split_value(path, file.metadata_, "split.no", 0);
      if (index != 0) {
        throw FormatError(path + ": is part " + std::to_string(index + 1) + " of " +
                          std::to_string(n_parts) + "; open the first part, \"…" +
                          part_suffix(0, n_parts) + "\"");
      }
      if (n_parts > 1) paths = part_paths(path, n_parts);
    } else {
      check_part(paths[i], part.metadata(), file.metadata_, static_cast<int64_t>(i), n_parts);
    }
    for (const TensorInfo& tensor : part.tensors()) {
      const auto [first, is_new] = file.by_name_.emplace(tensor.name, file.tensors_.size());
      if (!is_new) {
        throw FormatError("tensor " + in_quotes(tensor.name) + " lies in two files, " +
                          paths[parts[first->second]] + " and " + paths[i]);
      }
      parts.push_back(i);
      const WeightFormat* format = find_gguf_format(tensor.type->id);
      if (format == nullptr) {
        throw UnsupportedError(paths[i] + ": tensor " + in_quotes(tensor.name) + ": type " +
                               std::string(tensor.type->name) + " is not supported");
      }
      file.tensors_.push_back(
          {tensor.name, tensor.shape, format, part.bytes_of(tensor), static_cast<int64_t>(i)});
    }
  }
  const auto n_tensors = static_cast<int64_t>(file.tensors_.size());
  const int64_t expected = split_value(path, file.metadata_, "split.tensors.count", 0);
  if (n_parts > 1 && expected != n_tensors) {
    throw FormatError(path + ": the parts hold " + std::to_string(n_tensors) +
                      " tensors, split.tensors.count is " + std::to_string(expected));
  }
  return file;
}

std::string gguf_part_path(const std::string& path, int64_t index, int64_t count) {
  constexpr std::string_view kExtension = ".gguf";
  const std::string stem =
      path.ends_with(kExtension) ? path.substr(0, path.size() - kExtension.size()) : path;
  return stem + part_suffix(index, count);
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace assay
