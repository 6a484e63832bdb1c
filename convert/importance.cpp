#include "convert/importance.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"

namespace assay {
namespace {

constexpr std::string_view kSquares = ".in_sum2";
constexpr std::string_view kCounts = ".counts";
constexpr uint32_t kMaxNameBytes = 1024;

std::vector<float> floats_of(const GgufTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

ImportanceMatrix ImportanceMatrix::open(const std::string& path) {
  ImportanceMatrix matrix;
  matrix.path_ = path;
  bool is_gguf = false;
  {
    const MappedFile file = MappedFile::open(path);
    is_gguf = file.size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
  }
  if (is_gguf) {
    matrix.read_gguf();
  } else {
    matrix.read_legacy();
  }
  return matrix;
}

std::string ImportanceMatrix::file_name() const {
  return std::filesystem::path(path_).filename().string();
}

const Importance* ImportanceMatrix::find(std::string_view weight) const {
  const auto found = entries_.find(weight);
  return found == entries_.end() ? nullptr : &found->second;
}

void ImportanceMatrix::add(const std::string& weight, Importance importance) {
  for (size_t i = 0; i < importance.values.size(); ++i) {
    const float value = importance.values[i];
    if (!std::isfinite(value) || value < 0.0f) {
      throw FormatError(fmt::format("{}: {}: value {} is {}, expected finite and not negative",
                                    path_, in_quotes(weight), i, value));
    }
  }
  if (!entries_.emplace(weight, std::move(importance)).second) {
    throw FormatError(fmt::format("{}: {} occurs twice", path_, in_quotes(weight)));
  }
}

void ImportanceMatrix::read_gguf() {
  const GgufFile file = GgufFile::open(path_);
  const auto fail = [this](const std::string& what) { throw FormatError(path_ + ": " + what); };
  if (const auto type = file.metadata().string("general.type"); type && *type != "imatrix") {
    fail(
        fmt::format("general.type is {}, an importance matrix says \"imatrix\"", in_quotes(*type)));
  }
  chunk_count_ = file.metadata().integer("imatrix.chunk_count").value_or(0);
  if (const GgufValue* datasets = file.metadata().find("imatrix.datasets")) {
    const GgufArray* array = std::get_if<GgufArray>(datasets);
    const auto* names =
        array != nullptr ? std::get_if<std::vector<std::string>>(&array->values) : nullptr;
    if (names == nullptr) fail("key \"imatrix.datasets\": expected an array of strings");
    datasets_ = *names;
  }
  const WeightFormat& f32 = scalar_format(DType::kF32);
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.format != &f32) fail(in_quotes(tensor.name) + ": is not F32");
  }
  for (const GgufTensor& squares : file.tensors()) {
    if (!squares.name.ends_with(kSquares)) continue;
    const std::string weight = squares.name.substr(0, squares.name.size() - kSquares.size());
    const GgufTensor* counts = file.find(weight + std::string(kCounts));
    if (counts == nullptr) fail(in_quotes(squares.name) + ": there are no counts for it");
    const std::vector<float> n_tokens = floats_of(*counts);
    Importance importance{.values = floats_of(squares),
                          .n_matrices = static_cast<int64_t>(n_tokens.size())};
    if (importance.values.size() % n_tokens.size() != 0) {
      fail(fmt::format("{}: {} values for {} counts", in_quotes(squares.name),
                       importance.values.size(), n_tokens.size()));
    }
    const size_t columns = importance.values.size() / n_tokens.size();
    for (size_t m = 0; m < n_tokens.size(); ++m) {
      const float count = std::round(n_tokens[m]);  // NaN stays and is not above 0
      for (size_t i = columns * m; i < columns * (m + 1); ++i) {
        // An expert that saw no token: all its columns count alike.
        importance.values[i] = count > 0.0f ? importance.values[i] / count : 1.0f;
      }
    }
    add(weight, std::move(importance));
  }
  if (entries_.empty()) fail("holds no importance values (tensors named ….in_sum2)");
}

void ImportanceMatrix::read_legacy() {
  const MappedFile file = MappedFile::open(path_);
  ByteReader reader(path_, file.bytes());
  const auto fail = [this](const std::string& what) { throw FormatError(path_ + ": " + what); };
  const uint32_t n_entries = reader.read_u32("the number of entries");
  // An entry has at least a name's length and a byte of it, two counts and a value.
  if (n_entries == 0 || n_entries > reader.remaining() / 17) {
    fail(
        fmt::format("{} entries in a file of {} bytes; this is no importance matrix (GGUF, or the "
                    "older .dat)",
                    n_entries, file.size()));
  }
  for (uint32_t entry = 0; entry < n_entries; ++entry) {
    const std::string what = fmt::format("entry {}", entry);
    const uint32_t name_bytes = reader.read_u32("the name's length of " + what);
    if (name_bytes == 0 || name_bytes > kMaxNameBytes) {
      fail(
          fmt::format("{}: a name of {} bytes, expected 1 to {}", what, name_bytes, kMaxNameBytes));
    }
    const std::string name = text_of(reader.read_bytes(name_bytes, "the name of " + what));
    const auto n_calls = static_cast<int32_t>(reader.read_u32("the calls of " + what));
    const uint32_t n_values = reader.read_u32("the number of values of " + what);
    if (n_values == 0 || n_values > reader.remaining() / sizeof(float)) {
      fail(fmt::format("{} has {} values, the file ends at {}", in_quotes(name), n_values,
                       file.size()));
    }
    Importance importance;
    importance.values.resize(n_values);
    const auto bytes = reader.read_bytes(n_values * sizeof(float), "the values of " + what);
    std::memcpy(importance.values.data(), bytes.data(), bytes.size());
    if (n_calls > 0) {
      for (float& value : importance.values) value = value / static_cast<float>(n_calls);
    }
    add(name, std::move(importance));
  }
  if (reader.remaining() == 0) return;  // what follows is optional
  chunk_count_ = static_cast<int32_t>(reader.read_u32("the number of chunks"));
  if (reader.remaining() == 0) return;
  const uint32_t name_bytes = reader.read_u32("the length of the data set's name");
  if (name_bytes > 0) datasets_.push_back(text_of(reader.read_bytes(name_bytes, "its name")));
}

void write_importance(const std::string& path, const ImportanceSource& source) {
  GgufMetadata metadata;
  metadata.set("general.type", std::string("imatrix"));
  metadata.set("imatrix.datasets", GgufArray{std::vector<std::string>{source.dataset}});
  metadata.set("imatrix.chunk_count", static_cast<uint32_t>(source.chunk_count));
  metadata.set("imatrix.chunk_size", static_cast<uint32_t>(source.chunk_size));
  const WeightFormat& f32 = scalar_format(DType::kF32);
  std::vector<GgufTensorSource> tensors;
  for (const auto& [weight, sums] : source.weights) {
    const auto n_matrices = static_cast<int64_t>(sums.n_tokens.size());
    const std::vector<float>& squares = sums.squares;
    const std::vector<float> counts(sums.n_tokens.begin(), sums.n_tokens.end());
    Shape squares_shape{static_cast<int64_t>(squares.size()) / n_matrices};
    Shape counts_shape{1};
    if (n_matrices > 1) {
      squares_shape.insert(squares_shape.begin(), n_matrices);
      counts_shape.insert(counts_shape.begin(), n_matrices);
    }
    tensors.push_back({weight + std::string(kSquares), squares_shape, &f32,
                       [&squares](const auto& sink) { sink(std::as_bytes(std::span(squares))); }});
    tensors.push_back({weight + std::string(kCounts), counts_shape, &f32,
                       [counts](const auto& sink) { sink(std::as_bytes(std::span(counts))); }});
  }
  write_gguf(path, metadata, tensors);
}

}  // namespace assay
