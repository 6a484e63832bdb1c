// How fast a model comes to one GPU, against what limits it: reading its file from the page cache,
// and copying page-locked memory to the card. Prints JSON; rates are of the file's bytes. What the
// host does is also timed by itself: check_s, pack_s.
//
//   load_cuda_bench FILE

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/ops/linear_cuda_pack.h"

namespace assay::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds of reading a whole file with read calls, on one thread or on all.
double read_seconds(const std::string& path, int64_t size, bool all_threads) {
  constexpr int64_t kPiece = int64_t{8} << 20;
  const int file = open(path.c_str(), O_RDONLY);
  if (file < 0) throw FormatError(path + ": cannot be opened");
  const auto start = Clock::now();
  const auto read_range = [&](int64_t begin, int64_t end) {
    thread_local std::vector<char> buffer(static_cast<size_t>(kPiece));
    for (int64_t at = begin; at < end;) {
      const ssize_t n =
          pread(file, buffer.data(), static_cast<size_t>(std::min(kPiece, end - at)), at);
      if (n <= 0) throw FormatError(path + ": cannot be read");
      at += n;
    }
  };
  if (all_threads)
    parallel_for(size, kPiece, read_range);
  else
    read_range(0, size);
  const double seconds = seconds_since(start);
  close(file);
  return seconds;
}

/// Seconds of copying `size` bytes from page-locked memory.
double copy_seconds(int64_t size) {
  constexpr size_t kPiece = size_t{256} << 20;
  const PinnedBuffer host(kPiece);
  const DeviceBuffer device(kPiece);
  const Stream stream;
  const auto copy = [&] {
    ASSAY_CUDA(
        cudaMemcpyAsync(device.data(), host.data(), kPiece, cudaMemcpyHostToDevice, stream.get()));
  };
  copy();
  ASSAY_CUDA(cudaStreamSynchronize(stream.get()));
  const auto start = Clock::now();
  for (int i = 0; i < 8; ++i) copy();
  ASSAY_CUDA(cudaStreamSynchronize(stream.get()));
  return seconds_since(start) / (8.0 * kPiece) * static_cast<double>(size);
}

/// Seconds of the parts of a load that need no card, each over all matrices.
struct HostSeconds {
  double check = 0.0;  // reading every scale of a file just mapped
  double pack = 0.0;
};

HostSeconds host_seconds(const std::string& path) {
  constexpr size_t kPiece = size_t{32} << 20;
  const PinnedBuffer to(kPiece);
  const auto checkpoint = Checkpoint::open(path);
  HostSeconds seconds;
  for (const TensorEntry& entry : checkpoint->tensors()) {
    const StoredTensor& stored = checkpoint->stored(entry);
    if (!entry.is_matrix() || stored.format->fold() == Fold::kFloat) continue;
    auto start = Clock::now();
    const CheckpointMatrix matrix = checkpoint->matrix(entry);
    seconds.check += seconds_since(start);
    start = Clock::now();
    const MatrixPacker packer(
        entry.hf_name, *stored.format, matrix.view.rows, matrix.view.columns,
        stored.group_size > 0 ? stored.group_size : matrix.view.columns,
        [&](int64_t row, IntegerRow& out) { matrix.read_integers(row, out); });
    const int64_t tiles = packer.shape().tiles;
    const auto most = static_cast<int64_t>(kPiece / packer.tile_bytes());
    for (int64_t tile = 0; tile < tiles; tile += most)
      packer.pack(tile, std::min(tiles, tile + most), to.data());
    seconds.pack += seconds_since(start);
  }
  return seconds;
}

void run(const std::string& path) {
  ASSAY_CUDA(cudaFree(nullptr));
  const int file = open(path.c_str(), O_RDONLY);
  const int64_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
  if (file >= 0) close(file);
  read_seconds(path, size, true);  // into the page cache
  std::vector<double> loads;
  double open_s = 0.0;
  rusage before{}, after{};
  for (int i = 0; i < 3; ++i) {
    getrusage(RUSAGE_SELF, &before);
    const auto start = Clock::now();
    const auto checkpoint = Checkpoint::open(path);
    open_s = seconds_since(start);
    const CudaExecutor executor(0, checkpoint, {.context = 512});
    loads.push_back(seconds_since(start));
    getrusage(RUSAGE_SELF, &after);
  }
  const auto cpu_seconds = [](const timeval& from, const timeval& to) {
    return static_cast<double>(to.tv_sec - from.tv_sec) +
           static_cast<double>(to.tv_usec - from.tv_usec) * 1e-6;
  };
  std::sort(loads.begin(), loads.end());
  const HostSeconds host = host_seconds(path);
  const double one = read_seconds(path, size, false), all = read_seconds(path, size, true),
               copied = copy_seconds(size), limit = std::max(one, copied);
  const double gigabytes = static_cast<double>(size) * 1e-9;
  fmt::print(
      "{{\"file_gb\": {:.3f}, \"load_s\": {:.3f}, \"first_to_last_s\": [{:.3f}, {:.3f}], "
      "\"open_s\": {:.3f}, \"check_s\": {:.3f}, \"pack_s\": {:.3f}, \"user_s\": {:.2f}, "
      "\"system_s\": {:.2f}, \"page_faults\": {}, "
      "\"load_gbps\": {:.2f}, \"read_gbps\": {:.2f}, \"read_all_threads_gbps\": {:.2f}, "
      "\"copy_gbps\": {:.2f}, \"share_of_slower\": {:.3f}}}\n",
      gigabytes, loads[1], loads.front(), loads.back(), open_s, host.check, host.pack,
      cpu_seconds(before.ru_utime, after.ru_utime), cpu_seconds(before.ru_stime, after.ru_stime),
      after.ru_minflt - before.ru_minflt, gigabytes / loads[1], gigabytes / one, gigabytes / all,
      gigabytes / copied, limit / loads[1]);
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: load_cuda_bench FILE\n");
    return 2;
  }
  try {
    assay::cuda::run(argv[1]);
    return 0;
  } catch (const assay::Error& error) {
    fmt::print(stderr, "load_cuda_bench: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
