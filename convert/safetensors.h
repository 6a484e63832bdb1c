#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/file.h"
#include "convert/core/tensor.h"

namespace assay {

/// One tensor of an opened safetensors file: a view on the map. Source: safetensors' format page.
struct SafetensorsEntry {
  std::string name;
  TensorView view;
};

/// One mapped safetensors file. All checks of the safetensors format are made at open. A sound file
/// with a tensor of a type that DType lacks (F4, F6 and those of the future) is an UnsupportedError
/// that names the tensor.
class SafetensorsFile {
 public:
  /// Throws FormatError (file, tensor, offset) or FileError.
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// In buffer order.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  /// nullptr if there is none of that name.
  const SafetensorsEntry* find(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  /// See MappedFile::release_pages().
  void release_pages() const { file_.release_pages(); }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  MappedFile file_;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

/// All shards of a folder: `model.safetensors`, or `model.safetensors.index.json` with the files it
/// names. Every shard is opened and index and shards compared before this returns (transformers'
/// sharded checkpoints; cases B05, B06, B49).
class SafetensorsModel {
 public:
  static SafetensorsModel open(const std::string& folder);

  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  const SafetensorsEntry* find(std::string_view name) const;
  /// All names, sorted.
  std::vector<std::string> names() const;
  /// See MappedFile::release_pages().
  void release_pages() const {
    for (const SafetensorsFile& shard : shards_) shard.release_pages();
  }

 private:
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, const SafetensorsEntry*, std::less<>> by_name_;
};

/// A tensor to be written: its bytes are asked for once, when its turn comes, so that a writer
/// never holds more than one tensor. `write` calls the sink with successive pieces, in order and
/// from outside parallel_for (the sink uses it); what a piece shows may be reused when the sink
/// returns.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> write;
};

/// A source that copies an existing view, in pieces, so that a sink hears Ctrl-C within a large
/// one.
TensorSource source_of(std::string name, const TensorView& view);

/// One written file with the SHA-256 of its bytes, and of each tensor's bytes.
struct WrittenFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
  std::vector<std::pair<std::string, std::string>> tensor_sha256;  // name, hash; in file order
};

/// Canonical bytes: tensors by dtype descending, then name ascending; header padded to 8 bytes with
/// spaces; `__metadata__` {"format":"pt"} first (safetensors' format page). Written through
/// HashedFile. FormatError for two tensors of one name; ShapeError if a source gives too few or
/// many bytes.
WrittenFile write_safetensors(const std::string& path, std::vector<TensorSource> tensors);

/// Writes `model.safetensors`, or shards of at most `max_shard_bytes` tensor bytes and their index,
/// into `folder`. Tensors are dealt to shards in name order; those that share a name up to the
/// first number (a layer) stay together if they fit into one shard. A tensor larger than a shard
/// gets one of its own. The index is written last and stands last in the result.
std::vector<WrittenFile> write_safetensors_model(const std::string& folder,
                                                 std::vector<TensorSource> tensors,
                                                 uint64_t max_shard_bytes);
/// What write_safetensors_model would write, with empty hashes; `write` of the tensors may be null.
std::vector<WrittenFile> plan_safetensors_model(std::vector<TensorSource> tensors,
                                                uint64_t max_shard_bytes);

}  // namespace assay
