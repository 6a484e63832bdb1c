#include <cstring>
#include <filesystem>
#include <set>
#include <type_traits>

#include "convert/core/error.h"
#include "convert/core/hashed_file.h"
#include "convert/core/json.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"

namespace assay {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr uint32_t kArrayType = 9;

uint64_t padding_after(uint64_t n) { return (kAlignment - n % kAlignment) % kAlignment; }

// Id of a value type in the file.
template <class T>
constexpr uint32_t type_id() {
  if constexpr (std::is_same_v<T, uint8_t>) return 0;
  if constexpr (std::is_same_v<T, int8_t>) return 1;
  if constexpr (std::is_same_v<T, uint16_t>) return 2;
  if constexpr (std::is_same_v<T, int16_t>) return 3;
  if constexpr (std::is_same_v<T, uint32_t>) return 4;
  if constexpr (std::is_same_v<T, int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string>) return 8;
  if constexpr (std::is_same_v<T, uint64_t>) return 10;
  if constexpr (std::is_same_v<T, int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}

// The bytes in front of the tensor data.
class HeaderWriter {
 public:
  template <class T>
  void put(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      out_ += value ? '\1' : '\0';
    } else {
      static_assert(std::is_arithmetic_v<T>);
      out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  void put(const std::string& text) {
    put(uint64_t{text.size()});
    out_ += text;
  }
  void put(const GgufValue& value) {
    std::visit(
        [&](const auto& held) {
          using T = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<T, GgufArray>) {
            put(kArrayType);
            std::visit([&](const auto& elements) { put_elements(elements); }, held.values);
          } else {
            put(type_id<T>());
            put(held);
          }
        },
        value);
  }
  void append(std::string_view bytes) { out_ += bytes; }
  void pad() { out_.append(padding_after(out_.size()), '\0'); }
  const std::string& bytes() const { return out_; }

 private:
  template <class T>
  void put_elements(const std::vector<T>& elements) {
    put(type_id<T>());
    put(uint64_t{elements.size()});
    for (const auto& element : elements) {
      if constexpr (std::is_same_v<T, std::string>) {
        put(element);
      } else {
        put(static_cast<T>(element));  // elements of vector<bool> are proxies
      }
    }
  }

  std::string out_;
};

uint64_t bytes_of(const GgufTensorSource& tensor) {
  const auto columns = tensor.shape.back();
  const auto rows = static_cast<uint64_t>(n_elements(tensor.shape) / columns);
  return checked_multiply(rows, tensor.format->row_bytes(columns), "size of " + tensor.name);
}

void check(const std::string& path, const std::vector<GgufTensorSource>& tensors) {
  std::set<std::string_view> names;
  for (const GgufTensorSource& tensor : tensors) {
    const std::string place = path + ": tensor " + in_quotes(tensor.name) + ": ";
    ASSAY_CHECK(tensor.format != nullptr);
    if (tensor.name.empty() || tensor.name.size() > 63 ||
        tensor.name.find('\0') != std::string::npos) {
      throw FormatError(place + "a name must have 1 to 63 bytes and no zero byte");
    }
    if (!names.insert(tensor.name).second) throw FormatError(place + "occurs twice");
    if (tensor.shape.empty() || tensor.shape.size() > 4 || n_elements(tensor.shape) == 0) {
      throw ShapeError(place + "the shape " + to_string(tensor.shape) +
                       " cannot be written, expected 1 to 4 dimensions above 0");
    }
    if (!tensor.format->gguf_type()) {
      throw UnsupportedError(place + "GGUF has no type for " + std::string(tensor.format->name()));
    }
  }
}

std::string header_of(const std::string& path, const GgufMetadata& metadata,
                      const std::vector<GgufTensorSource>& tensors) {
  HeaderWriter header;
  header.append("GGUF");
  header.put(uint32_t{3});
  header.put(uint64_t{tensors.size()});
  header.put(uint64_t{metadata.items().size()});
  for (const auto& [key, value] : metadata.items()) {
    header.put(key);
    header.put(value);
  }
  uint64_t offset = 0;
  for (const GgufTensorSource& tensor : tensors) {
    header.put(tensor.name);
    header.put(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) header.put(tensor.shape[i]);
    header.put(*tensor.format->gguf_type());
    header.put(offset);
    const uint64_t end = checked_add(offset, bytes_of(tensor), "size of " + path);
    offset = checked_add(end, padding_after(end), "size of " + path);
  }
  header.pad();
  return header.bytes();
}

}  // namespace

uint64_t gguf_file_bytes(const std::string& path, const GgufMetadata& metadata,
                         const std::vector<GgufTensorSource>& tensors) {
  check(path, tensors);
  uint64_t total = header_of(path, metadata, tensors).size();
  for (const GgufTensorSource& tensor : tensors) {
    const uint64_t end = checked_add(total, bytes_of(tensor), "size of " + path);
    total = checked_add(end, padding_after(end), "size of " + path);
  }
  return total;
}

WrittenFile write_gguf(const std::string& path, const GgufMetadata& metadata,
                       const std::vector<GgufTensorSource>& tensors, bool hash_tensors) {
  check(path, tensors);
  if (metadata.integer("general.alignment").value_or(kAlignment) != kAlignment) {
    throw UnsupportedError(path + ": only the alignment 32 can be written");
  }
  HashedFile file(path);
  file.write(header_of(path, metadata, tensors));
  WrittenFile written;
  written.name = std::filesystem::path(path).filename();
  for (const GgufTensorSource& tensor : tensors) {
    const uint64_t wanted = bytes_of(tensor);
    uint64_t given = 0;
    if (hash_tensors) file.begin_part();
    tensor.write([&](std::span<const std::byte> piece) {
      given += piece.size();
      if (given <= wanted) file.write(piece);
    });
    if (given != wanted) {
      throw ShapeError(path + ": tensor " + in_quotes(tensor.name) + ": its source gave " +
                       std::to_string(given) + " bytes, " + to_string(tensor.shape) + " " +
                       std::string(tensor.format->name()) + " has " + std::to_string(wanted));
    }
    if (hash_tensors) written.tensor_sha256.emplace_back(tensor.name, file.end_part());
    file.pad(padding_after(wanted));
  }
  written.bytes = file.size();
  written.sha256 = file.commit();
  return written;
}

}  // namespace assay
