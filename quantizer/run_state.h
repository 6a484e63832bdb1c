#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/walk.h"
#include "convert/safetensors.h"
#include "quantizer/report.h"

namespace assay {

/// Holds a folder for one process: its file `lock` is locked as long as the object lives.
class FolderLock {
 public:
  /// Makes the folder if it is not there. Throws FileError if another process holds it.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

/// What a run has finished, kept in a folder of its own so that another process can go on after a
/// kill at any moment: per layer one safetensors file of its quantized tensors, the activations
/// that go into the next layer, and state.json, whose rename is the moment at which a layer counts
/// as done. Nothing that state.json does not name is ever read.
class RunState {
 public:
  /// Opens the folder, creating it if need be, and takes its lock (FileError if another process
  /// holds it). A state that is there must have this fingerprint (UsageError naming the field) and
  /// at most `n_layers` layers (FormatError, as for anything else in it that cannot be).
  RunState(std::string folder, Json fingerprint, int n_layers);

  /// Whether the folder holds a state from which a run can go on.
  static bool exists(const std::string& folder);

  const std::string& folder() const { return folder_; }
  int n_layers_done() const { return static_cast<int>(layers_.size()); }
  const std::vector<LayerReport>& reports() const { return reports_; }

  /// Makes one more layer durable. `walks`: the streams to go on with.
  void commit_layer(const LayerReport& report, std::vector<TensorSource> tensors,
                    const std::vector<const StreamWalk*>& walks);
  /// Puts the activations back that go into the first layer that is not done, into as many walks as
  /// were committed. FormatError if a file was changed.
  void restore_walks(const std::vector<StreamWalk*>& walks) const;
  /// Files with the tensors of the layers that are done, checked against their hashes.
  std::vector<SafetensorsFile> open_layers() const;
  /// Removes the folder; called when the result has its final name.
  void remove();

 private:
  struct Layer {
    std::string file;
    std::string sha256;
  };
  struct Stream {
    std::string file;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    std::vector<int> registers;
  };
  void read(const Json& fingerprint, int n_layers);
  void read_layers(const Json& layers, int n_layers);
  void read_stream_entry(const Json& json);
  void write() const;
  Stream write_stream(const StreamWalk& walk, const std::string& name) const;
  void read_stream(const Stream& stream, StreamWalk& walk) const;

  std::string folder_;
  Json fingerprint_;
  FolderLock lock_;
  std::vector<Layer> layers_;
  std::vector<LayerReport> reports_;
  std::vector<Stream> streams_;
};

/// Order-dependent 64-bit checksum of temporary data: finds damage, proves nothing.
class Checksum {
 public:
  void update(std::span<const std::byte> bytes);  // multiples of 4 bytes
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x9e3779b97f4a7c15u;
};

}  // namespace assay
