#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>
#include <type_traits>

#include "convert/core/error.h"
#include "convert/core/hashed_file.h"
#include "convert/core/json.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "convert/core/sha256_streams.h"
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

std::string WrittenGguf::contents_sha256() const {
  Sha256 hash;
  const auto add = [&](const std::string& part, const std::string& of) {
    const std::string line = part + "  " + of + "\n";
    hash.update(std::as_bytes(std::span(line)));
  };
  add(header_sha256, "(header)");
  for (const auto& [tensor, part] : tensor_sha256) add(part, tensor);
  return hash.finish();
}

// ---------------------------------------------------------------------------------------------
// Tensor data

namespace {

constexpr uint64_t kSmallBytes = uint64_t{1} << 20;   // such tensors are made in advance
constexpr uint64_t kRunBytes = uint64_t{1} << 29;     // read twice, so they should stay in memory
constexpr uint64_t kWriteBytes = uint64_t{4} << 20;   // a piece for the system
constexpr uint64_t kHashBytes = uint64_t{256} << 10;  // a piece for the cache of one core

/// A tensor whose bytes are all there: `stored`, or made in advance.
struct ReadyTensor {
  size_t index;
  uint64_t bytes;
  const StoredRows* stored;
  std::vector<std::byte> made;
};

/// The tensor's bytes in order, in pieces of about `piece_bytes` where the rows lie one after
/// another; `at_end` is called behind the last. `tensor` must stay.
ByteStream pieces_of(const ReadyTensor& tensor, uint64_t piece_bytes, bool check,
                     const std::function<void()>& at_end) {
  if (tensor.stored == nullptr) {
    return {tensor.bytes, [left = std::span(tensor.made)]() mutable {
              return std::exchange(left, std::span<const std::byte>());
            }};
  }
  const StoredRows& rows = *tensor.stored;
  return {tensor.bytes, [&rows, piece_bytes, check, at_end, next = int64_t{0}]() mutable {
            std::span<const std::byte> piece;
            for (; next < rows.n && piece.size() < piece_bytes; ++next) {
              const std::span<const std::byte> row = rows.row(next);
              if (!piece.empty() && row.data() != piece.data() + piece.size()) break;
              if (check && rows.check) rows.check(next);
              piece = {piece.empty() ? row.data() : piece.data(), piece.size() + row.size()};
            }
            if (piece.empty()) at_end();
            return piece;
          }};
}

/// Writes one file's tensors in order and hashes them.
class TensorWriter {
 public:
  TensorWriter(const std::string& path, const std::vector<GgufTensorSource>& tensors,
               const std::function<void(size_t, uint64_t)>& progress, HashedFile& file)
      : path_(path), tensors_(tensors), progress_(progress), file_(file), hashes_(tensors.size()) {}

  std::vector<std::string> run() {
    for (size_t i = 0; i < tensors_.size();) {
      const std::vector<ReadyTensor> ready = ready_from(i);
      if (ready.empty()) {
        write_as_it_comes(i++);
      } else {
        write_ready(ready);
        i += ready.size();
      }
    }
    return std::move(hashes_);
  }

 private:
  /// Bytes of a tensor: written, and when progress_ was last told.
  struct Place {
    uint64_t done = 0;
    uint64_t told = 0;
  };

  void write_piece(size_t index, Place& place, std::span<const std::byte> piece) {
    const bool tell = place.done == 0 || place.done - place.told >= kWriteBytes;
    if (tell && progress_) progress_(index, place.done);
    if (tell) place.told = place.done;
    file_.write(piece);
    place.done += piece.size();
  }

  void make(size_t index, const std::function<void(std::span<const std::byte>)>& use) const {
    const GgufTensorSource& tensor = tensors_[index];
    const uint64_t wanted = bytes_of(tensor);
    uint64_t given = 0;
    tensor.write([&](std::span<const std::byte> piece) {
      given += piece.size();
      if (given <= wanted) use(piece);
    });
    check_size(tensor, given, wanted);
  }

  void check_size(const GgufTensorSource& tensor, uint64_t given, uint64_t wanted) const {
    if (given == wanted) return;
    throw ShapeError(path_ + ": tensor " + in_quotes(tensor.name) + ": its source gave " +
                     std::to_string(given) + " bytes, " + to_string(tensor.shape) + " " +
                     std::string(tensor.format->name()) + " has " + std::to_string(wanted));
  }

  /// Each piece is hashed and written at the same time.
  void write_as_it_comes(size_t index) {
    file_.begin_part();
    Place place;
    make(index, [&](std::span<const std::byte> piece) { write_piece(index, place, piece); });
    hashes_[index] = file_.end_part();
    file_.pad(padding_after(bytes_of(tensors_[index])));
  }

  /// As many tensors from `first` on as are ready, at most about kRunBytes of them.
  std::vector<ReadyTensor> ready_from(size_t first) const {
    std::vector<ReadyTensor> ready;
    uint64_t total = 0;
    for (size_t i = first; i < tensors_.size() && total < kRunBytes; ++i) {
      const GgufTensorSource& tensor = tensors_[i];
      const uint64_t bytes = bytes_of(tensor);
      const StoredRows* const stored = tensor.stored ? &*tensor.stored : nullptr;
      if (stored == nullptr && bytes > kSmallBytes) break;
      ready.push_back({i, bytes, stored, {}});
      if (stored == nullptr) {
        std::vector<std::byte>& made = ready.back().made;
        make(i, [&](auto piece) { made.insert(made.end(), piece.begin(), piece.end()); });
      }
      total += bytes;
    }
    return ready;
  }

  /// One thread writes all of them in order, the others check and hash them.
  void write_ready(const std::vector<ReadyTensor>& ready) {
    // Who comes second finds the pages of a tensor in memory, and lets them go.
    std::vector<std::atomic<int>> n_done(ready.size());
    const auto at_end = [&](size_t i) {
      return [&, i] {
        const StoredRows& rows = *ready[i].stored;
        if (n_done[i].fetch_add(1) == 1 && rows.release) rows.release();
      };
    };
    std::vector<ByteStream> streams;
    for (size_t i = 0; i < ready.size(); ++i) {
      streams.push_back(pieces_of(ready[i], kHashBytes, true, at_end(i)));
    }
    Sha256Streams hashes(std::move(streams));
    parallel_for(n_threads() + 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i > 0) {
          hashes.work();
          continue;
        }
        try {
          for (size_t k = 0; k < ready.size(); ++k) write(ready[k], at_end(k));
        } catch (...) {
          hashes.stop();
          throw;
        }
      }
    });
    std::vector<std::string> found = hashes.finish();
    for (size_t i = 0; i < ready.size(); ++i) hashes_[ready[i].index] = std::move(found[i]);
  }

  void write(const ReadyTensor& ready, const std::function<void()>& at_end) {
    const ByteStream bytes = pieces_of(ready, kWriteBytes, false, at_end);
    Place place;
    for (auto piece = bytes.next(); !piece.empty(); piece = bytes.next()) {
      write_piece(ready.index, place, piece);
    }
    check_size(tensors_[ready.index], place.done, ready.bytes);
    file_.pad(padding_after(ready.bytes));
  }

  const std::string& path_;
  const std::vector<GgufTensorSource>& tensors_;
  const std::function<void(size_t, uint64_t)>& progress_;
  HashedFile& file_;
  std::vector<std::string> hashes_;
};

}  // namespace

WrittenGguf write_gguf(const std::string& path, const GgufMetadata& metadata,
                       const std::vector<GgufTensorSource>& tensors,
                       const std::function<void(size_t, uint64_t)>& progress) {
  check(path, tensors);
  if (metadata.integer("general.alignment").value_or(kAlignment) != kAlignment) {
    throw UnsupportedError(path + ": only the alignment 32 can be written");
  }
  const std::string header = header_of(path, metadata, tensors);
  HashedFile file(path, /*hash_file=*/false);
  file.write(header);
  const std::vector<std::string> hashes = TensorWriter(path, tensors, progress, file).run();
  WrittenGguf written;
  written.name = std::filesystem::path(path).filename();
  written.header_sha256 = sha256_hex(std::as_bytes(std::span(header)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    written.tensor_sha256.emplace_back(tensors[i].name, hashes[i]);
  }
  written.bytes = file.size();
  file.commit();
  return written;
}

}  // namespace assay
