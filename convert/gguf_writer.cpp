#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>
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

constexpr uint64_t kSmallBytes = uint64_t{1} << 20;    // such tensors are made in advance
constexpr uint64_t kMadeBytes = uint64_t{1} << 27;     // as many of them as fill this
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;  // hashed, then written from the cache
constexpr uint64_t kWaitingBytes = uint64_t{2} << 20;  // hashed at most while others write
constexpr uint64_t kTellBytes = uint64_t{4} << 20;     // between two calls of `progress`

/// A tensor whose bytes are all there: `stored`, or made in advance.
struct ReadyTensor {
  size_t index;
  uint64_t bytes;
  const StoredRows* stored;
  std::vector<std::byte> made;
};

/// The bytes of a ready tensor in order, in pieces of about kPieceBytes. The tensor must stay.
class Pieces {
 public:
  explicit Pieces(const ReadyTensor& tensor) : tensor_(&tensor) {}

  /// None at the end.
  std::span<const std::byte> next() {
    if (tensor_->stored == nullptr) {
      return next_row_++ == 0 ? std::span(tensor_->made) : std::span<const std::byte>();
    }
    const StoredRows& rows = *tensor_->stored;
    std::span<const std::byte> piece;
    gathered_.clear();
    for (; next_row_ < rows.n && piece.size() < kPieceBytes; ++next_row_) {
      const std::span<const std::byte> row = rows.row(next_row_);
      if (rows.check) rows.check(next_row_);
      if (piece.empty()) {
        piece = row;
      } else if (row.data() == piece.data() + piece.size()) {
        piece = {piece.data(), piece.size() + row.size()};
      } else {  // elsewhere in the source
        if (gathered_.empty()) gathered_.assign(piece.begin(), piece.end());
        gathered_.insert(gathered_.end(), row.begin(), row.end());
        piece = gathered_;
      }
    }
    return piece;
  }
  /// Whether the last piece stays until the next() call only.
  bool is_gathered() const { return !gathered_.empty(); }

 private:
  const ReadyTensor* tensor_;
  int64_t next_row_ = 0;
  std::vector<std::byte> gathered_;
};

/// Writes a ready tensor at its place in the file, piece by piece as they are hashed. A file takes
/// one write at a time; while others write, a tensor's pieces wait, and hashing goes on.
class TensorCopy {
 public:
  TensorCopy(const ReadyTensor& tensor, uint64_t offset, const HashedFile& file, std::mutex& turn)
      : tensor_(&tensor), offset_(offset), file_(&file), turn_(&turn), pieces_(tensor) {}

  /// The next piece to hash; none at the end, when all is written.
  std::span<const std::byte> next() {
    write_waiting(pieces_.is_gathered() || waiting_.size() >= kWaitingBytes);
    const std::span<const std::byte> piece = pieces_.next();
    if (!waiting_.empty() && piece.data() == waiting_.data() + waiting_.size()) {
      waiting_ = {waiting_.data(), waiting_.size() + piece.size()};
      return piece;
    }
    write_waiting(true);
    waiting_ = piece;
    if (piece.empty() && tensor_->stored != nullptr && tensor_->stored->release) {
      tensor_->stored->release();
    }
    return piece;
  }
  uint64_t written() const { return written_; }

 private:
  /// Now, or only if nobody else is writing.
  void write_waiting(bool now) {
    if (waiting_.empty()) return;
    std::unique_lock lock(*turn_, std::defer_lock);
    if (now) {
      lock.lock();
    } else if (!lock.try_lock()) {
      return;
    }
    file_->write_at(offset_ + written_, waiting_);
    written_ += waiting_.size();
    waiting_ = {};
  }

  const ReadyTensor* tensor_;
  uint64_t offset_;
  const HashedFile* file_;
  std::mutex* turn_;
  Pieces pieces_;
  std::span<const std::byte> waiting_;
  uint64_t written_ = 0;
};

/// Writes one file's tensors and hashes them.
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
  /// `bytes` more of a tensor are about to be written; by any thread.
  void tell(size_t index, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool tell = done_ == 0 || done_ - told_ >= kTellBytes;
    if (tell) told_ = done_;
    if (tell && progress_) progress_(index, done_);
    done_ += bytes;
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
    make(index, [&](std::span<const std::byte> piece) {
      tell(index, piece.size());
      file_.write(piece);
    });
    hashes_[index] = file_.end_part();
    file_.pad(padding_after(bytes_of(tensors_[index])));
  }

  /// As many tensors from `first` on as are ready.
  std::vector<ReadyTensor> ready_from(size_t first) const {
    std::vector<ReadyTensor> ready;
    uint64_t made_bytes = 0;
    for (size_t i = first; i < tensors_.size() && made_bytes < kMadeBytes; ++i) {
      const GgufTensorSource& tensor = tensors_[i];
      const uint64_t bytes = bytes_of(tensor);
      const StoredRows* const stored = tensor.stored ? &*tensor.stored : nullptr;
      if (stored == nullptr && bytes > kSmallBytes) break;
      ready.push_back({i, bytes, stored, {}});
      if (stored != nullptr) continue;
      std::vector<std::byte>& made = ready.back().made;
      make(i, [&](auto piece) { made.insert(made.end(), piece.begin(), piece.end()); });
      made_bytes += bytes;
    }
    return ready;
  }

  /// Each thread takes tensors, hashes a piece and writes it while it is in its cache.
  void write_ready(const std::vector<ReadyTensor>& ready) {
    std::mutex turn;
    std::vector<ByteStream> streams;
    for (const ReadyTensor& tensor : ready) {
      const uint64_t offset = file_.reserve(tensor.bytes);
      file_.pad(padding_after(tensor.bytes));
      streams.push_back(
          {tensor.bytes, [this, &tensor, copy = TensorCopy(tensor, offset, file_, turn)]() mutable {
             const std::span<const std::byte> piece = copy.next();
             if (!piece.empty()) {
               tell(tensor.index, piece.size());
             } else {
               check_size(tensors_[tensor.index], copy.written(), tensor.bytes);
             }
             return piece;
           }});
    }
    Sha256Streams hashes(std::move(streams));
    parallel_for(n_threads(), 1, [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) hashes.work();
    });
    std::vector<std::string> found = hashes.finish();
    for (size_t i = 0; i < ready.size(); ++i) hashes_[ready[i].index] = std::move(found[i]);
  }

  const std::string& path_;
  const std::vector<GgufTensorSource>& tensors_;
  const std::function<void(size_t, uint64_t)>& progress_;
  HashedFile& file_;
  std::vector<std::string> hashes_;
  std::mutex mutex_;
  uint64_t done_ = 0;  // bytes of tensors, and when progress_ was last told
  uint64_t told_ = 0;
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
