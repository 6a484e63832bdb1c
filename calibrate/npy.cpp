#include "calibrate/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/words.h"

namespace assay {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMostHeaderBytes = 1 << 16;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw FormatError(path + ": " + what +
                    "; expected a NumPy array file of integers (np.save of token ids)");
}

// The value of 'key' in the header, a Python dict literal that np.save writes in one form only.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  const std::string quoted = "'" + std::string(key) + "':";
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) fail(path, "the header has no key " + std::string(key));
  std::string_view value = header.substr(at + quoted.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

std::vector<int64_t> parse_shape(std::string_view text, const std::string& path) {
  const size_t end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) {
    fail(path, "the header's shape is no tuple");
  }
  text = text.substr(1, end - 1);
  std::vector<int64_t> shape;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" ,"), text.size()));
    if (text.empty()) return shape;
    int64_t size = 0;
    const auto [next, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size < 0) fail(path, "the header's shape has no number");
    text.remove_prefix(static_cast<size_t>(next - text.data()));
    shape.push_back(size);
  }
}

template <typename T>
void widen(std::span<const std::byte> bytes, std::vector<int64_t>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): a number
  }
}

struct IntegerType {
  std::string_view descr;
  uint64_t bytes;
  void (*widen)(std::span<const std::byte>, std::vector<int64_t>&);
};
constexpr IntegerType kTypes[] = {
    {"'<i4'", 4, widen<int32_t>},  {"'<i8'", 8, widen<int64_t>}, {"'<u4'", 4, widen<uint32_t>},
    {"'<u2'", 2, widen<uint16_t>}, {"'<i2'", 2, widen<int16_t>}, {"'<u8'", 8, widen<uint64_t>},
    {"'|u1'", 1, widen<uint8_t>},  {"'|i1'", 1, widen<int8_t>},
};

}  // namespace

NpyIntegers read_npy_integers(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  ByteReader reader(path, file.bytes());
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  if (text(reader.read_bytes(kMagic.size(), "the magic string")) != kMagic) {
    fail(path, "does not begin with the magic string of NumPy");
  }
  const int major = reader.read_u8("the version");
  reader.read_u8("the version");
  if (major < 1 || major > 3) fail(path, "format version " + std::to_string(major));
  const uint64_t header_bytes =
      major == 1 ? reader.read_u16("the header length") : reader.read_u32("the header length");
  if (header_bytes > kMostHeaderBytes) fail(path, "the header is too long");
  const std::string_view header = text(reader.read_bytes(header_bytes, "the header"));
  if (!value_of(header, "fortran_order", path).starts_with("False")) {
    fail(path, "the array is in Fortran order");
  }
  NpyIntegers out;
  out.shape = parse_shape(value_of(header, "shape", path), path);
  uint64_t n = 1;
  for (const int64_t size : out.shape) {
    n = checked_multiply(n, static_cast<uint64_t>(size), path + ": the array's size");
  }
  const std::string_view descr = value_of(header, "descr", path);
  for (const IntegerType& type : kTypes) {
    if (!descr.starts_with(type.descr)) continue;
    const uint64_t bytes = checked_multiply(n, type.bytes, path + ": the array's size");
    const std::span<const std::byte> data = reader.read_bytes(bytes, "the array");
    if (reader.remaining() != 0) {
      fail(path, std::to_string(reader.remaining()) + " bytes follow the array");
    }
    out.values.resize(n);
    type.widen(data, out.values);
    return out;
  }
  fail(path, "element type " + std::string(descr.substr(0, descr.find(','))));
}

void write_npy_int32(const std::string& path, std::span<const int64_t> shape,
                     std::span<const int32_t> values) {
  std::string tuple = join_words(shape, ", ", [](int64_t size) { return std::to_string(size); });
  if (shape.size() == 1) tuple += ",";
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (" + tuple + "), }";
  // Magic, version and length take 10 bytes; data begin at a multiple of 64.
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  AtomicFile file(path);
  file.write(kMagic);
  const auto n = static_cast<uint16_t>(header.size());
  const char lengths[] = {1, 0, static_cast<char>(n & 0xff), static_cast<char>(n >> 8)};
  file.write(std::string_view(lengths, sizeof(lengths)));
  file.write(header);
  file.write(std::as_bytes(values));
  file.commit();
}

}  // namespace assay
