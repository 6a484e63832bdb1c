#include "quantizer/run_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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

RunState::RunState(std::string folder, Json fingerprint)
    : folder_(std::move(folder)), fingerprint_(std::move(fingerprint)), lock_(folder_) {
  if (exists(folder_)) {
    read(fingerprint_);
  } else {
    write();
  }
}

void RunState::read(const Json& fingerprint) {
  const std::string path = state_file(folder_);
  const Json state = read_json_file(path);
  if (state.at("version").as_integer() != kStateVersion) {
    throw UsageError(path + ": written by another version; start again with --force");
  }
  const std::string difference = fingerprint_difference(state.at("fingerprint"), fingerprint);
  if (!difference.empty()) {
    throw UsageError(path + ": the interrupted run differs from this one in " + difference +
                     "; use the same model, data and options, or start again with --force");
  }
  for (const Json& layer : state.at("layers").as_array()) {
    layers_.push_back({layer.at("file").as_string(), layer.at("sha256").as_string()});
    reports_.push_back(layer_report_from_json(layer.at("report")));
  }
  for (const Json& stream : state.at("streams").as_array()) {
    Stream& read = streams_.emplace_back();
    read.file = stream.at("file").as_string();
    read.bytes = static_cast<uint64_t>(stream.at("bytes").as_integer());
    read.checksum = std::stoull(stream.at("checksum").as_string(), nullptr, 16);
    for (const Json& r : stream.at("registers").as_array()) {
      read.registers.push_back(static_cast<int>(r.as_integer()));
    }
  }
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
  const std::string name = numbered("layer-", layer, ".safetensors");
  const WrittenFile written = write_safetensors(folder_ + "/" + name, std::move(tensors));
  std::vector<Stream> next;
  for (const StreamWalk* walk : walks) {
    const std::string suffix = "-" + std::to_string(next.size()) + ".f32";
    next.push_back(write_stream(*walk, numbered("stream-", layer + 1, suffix.c_str())));
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
