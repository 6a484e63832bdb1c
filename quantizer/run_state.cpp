#include "quantizer/run_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/sha256.h"
#include "quantizer/fingerprint.h"

namespace assay {
namespace {

constexpr int kStateVersion = 2;

std::string numbered(const char* prefix, int number, const char* suffix) {
  std::string digits = std::to_string(number);
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return prefix + digits + suffix;
}

std::string layer_file(int layer) { return numbered("layer-", layer, ".safetensors"); }
/// Activations of one of the streams that go into the layer.
std::string stream_file(int layer, size_t index) {
  return numbered("stream-", layer, "-") + std::to_string(index) + ".f32";
}
std::string state_file(const std::string& folder) { return folder + "/state.json"; }

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw FormatError(path + ": " + what +
                    "; the state of the interrupted run is damaged, start again with --force");
}

}  // namespace

void Checksum::update(std::span<const std::byte> bytes) {
  uint64_t value = value_;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    value = (value ^ word) * 0x9fb21c651e98df25u;
    value ^= value >> 29;
  }
  value_ = value;
}

bool RunState::exists(const std::string& folder) { return file_exists(state_file(folder)); }

FolderLock::FolderLock(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    throw_system_error(folder + ": cannot make the folder", errno);
  }
  const std::string path = folder + "/lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_system_error(path + ": cannot open", errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(fd_);
  if (error == EWOULDBLOCK) {
    throw FileError(path + ": another process is working on this result");
  }
  throw_system_error(path + ": cannot be locked", error);
}

FolderLock::~FolderLock() { ::close(fd_); }

RunState::RunState(std::string folder, Json fingerprint, int n_layers)
    : folder_(std::move(folder)), fingerprint_(std::move(fingerprint)), lock_(folder_) {
  if (exists(folder_)) {
    read(fingerprint_, n_layers);
  } else {
    write();
  }
}

void RunState::read(const Json& fingerprint, int n_layers) {
  const std::string path = state_file(folder_);
  const Json state = read_json_file(path);
  try {
    if (state.at("version").as_integer() != kStateVersion) {
      throw UsageError(path + ": written by another version; start again with --force");
    }
    const std::string difference = fingerprint_difference(state.at("fingerprint"), fingerprint);
    if (!difference.empty()) {
      throw UsageError(path + ": the interrupted run differs from this one in " + difference +
                       "; use the same model, data and options, or start again with --force");
    }
    read_layers(state.at("layers"), n_layers);
    for (const Json& stream : state.at("streams").as_array()) read_stream_entry(stream);
  } catch (const FormatError& error) {
    damaged(path, error.what());
  }
}

// Names follow from positions, so that a state cannot name a file outside of its folder.
void RunState::read_layers(const Json& layers, int n_layers) {
  for (const Json& json : layers.as_array()) {
    const int layer = n_layers_done();
    if (layer == n_layers) throw FormatError("holds more layers than the model");
    Layer done{json.at("file").as_string(), json.at("sha256").as_string()};
    LayerReport report = layer_report_from_json(json.at("report"));
    if (done.file != layer_file(layer) || report.layer != layer) {
      throw FormatError("holds \"" + done.file + "\" and the report of layer " +
                        std::to_string(report.layer) + " as layer " + std::to_string(layer));
    }
    layers_.push_back(std::move(done));
    reports_.push_back(std::move(report));
  }
}

void RunState::read_stream_entry(const Json& json) {
  const std::string& file = json.at("file").as_string();
  const std::string& checksum = json.at("checksum").as_string();
  const int64_t bytes = json.at("bytes").as_integer();
  if (file != stream_file(n_layers_done(), streams_.size())) {
    throw FormatError("a stream is \"" + file + "\"");
  }
  if (bytes < 0) throw FormatError("a stream has " + std::to_string(bytes) + " bytes");
  Stream stream;
  const char* const end = checksum.data() + checksum.size();
  const auto parsed = std::from_chars(checksum.data(), end, stream.checksum, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    throw FormatError("the checksum of a stream is \"" + checksum + "\"");
  }
  stream.file = file;
  stream.bytes = static_cast<uint64_t>(bytes);
  for (const Json& r : json.at("registers").as_array()) {
    const int64_t index = r.as_integer();
    if (index < 0 || index > std::numeric_limits<int>::max()) {
      throw FormatError("a stream has a register " + std::to_string(index));
    }
    stream.registers.push_back(static_cast<int>(index));
  }
  streams_.push_back(std::move(stream));
}

void RunState::write() const {
  Json layers = Json::array();
  for (size_t i = 0; i < layers_.size(); ++i) {
    Json layer = Json::object();
    layer.set("file", layers_[i].file)
        .set("sha256", layers_[i].sha256)
        .set("report", to_json(reports_[i]));
    layers.push(layer);
  }
  Json streams = Json::array();
  for (const Stream& stream : streams_) {
    Json registers = Json::array();
    for (const int r : stream.registers) registers.push(r);
    char checksum[17];
    std::snprintf(checksum, sizeof(checksum), "%016llx",
                  static_cast<unsigned long long>(stream.checksum));
    streams.push(Json::object()
                     .set("file", stream.file)
                     .set("bytes", stream.bytes)
                     .set("checksum", checksum)
                     .set("registers", registers));
  }
  Json state = Json::object();
  state.set("version", kStateVersion)
      .set("fingerprint", fingerprint_)
      .set("layers", layers)
      .set("streams", streams);
  write_text_file(state_file(folder_), state.dump() + "\n");
}

RunState::Stream RunState::write_stream(const StreamWalk& walk, const std::string& name) const {
  Stream stream;
  stream.file = name;
  stream.registers = walk.held_registers();
  AtomicFile file(folder_ + "/" + stream.file);
  Checksum checksum;
  walk.save([&](std::span<const float> values) {
    checksum.update(std::as_bytes(values));
    file.write(std::as_bytes(values));
  });
  stream.bytes = file.size();
  stream.checksum = checksum.value();
  file.commit();
  return stream;
}

void RunState::commit_layer(const LayerReport& report, std::vector<TensorSource> tensors,
                            const std::vector<const StreamWalk*>& walks) {
  const int layer = n_layers_done();
  const std::string name = layer_file(layer);
  const WrittenFile written = write_safetensors(folder_ + "/" + name, std::move(tensors));
  std::vector<Stream> next;
  for (const StreamWalk* walk : walks) {
    next.push_back(write_stream(*walk, stream_file(layer + 1, next.size())));
  }
  const std::vector<Stream> old = std::exchange(streams_, std::move(next));
  layers_.push_back({name, written.sha256});
  reports_.push_back(report);
  write();
  for (const Stream& stream : old) ::unlink((folder_ + "/" + stream.file).c_str());
}

void RunState::restore_walks(const std::vector<StreamWalk*>& walks) const {
  if (walks.size() != streams_.size()) damaged(state_file(folder_), "has other streams");
  for (size_t i = 0; i < walks.size(); ++i) read_stream(streams_[i], *walks[i]);
}

void RunState::read_stream(const Stream& stream, StreamWalk& walk) const {
  const std::string path = folder_ + "/" + stream.file;
  if (!walk.can_restore(stream.registers)) {
    damaged(state_file(folder_), "names activations that this model does not have");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) damaged(path, std::string("cannot open: ") + std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat info;
  if (::fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != stream.bytes) {
    damaged(path, "has another size than it was written with");
  }
  Checksum checksum;
  walk.restore(stream.registers, [&](std::span<float> out) {
    auto bytes = std::as_writable_bytes(out);
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::read(fd, bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) damaged(path, n < 0 ? std::strerror(errno) : "ends too early");
      done += static_cast<size_t>(n);
    }
    checksum.update(bytes);
  });
  if (checksum.value() != stream.checksum) damaged(path, "has other contents than were written");
}

std::vector<SafetensorsFile> RunState::open_layers() const {
  std::vector<SafetensorsFile> files;
  for (const Layer& layer : layers_) {
    const std::string path = folder_ + "/" + layer.file;
    if (!file_exists(path) || sha256_of_file(path) != layer.sha256) {
      damaged(path, "is missing or has other contents than were written");
    }
    files.push_back(SafetensorsFile::open(path));
  }
  return files;
}

void RunState::remove() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  if (error) throw_system_error(folder_ + ": cannot remove the folder", error.value());
}

}  // namespace assay
