#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "convert/core/error.h"

/// Checks a CUDA runtime call; throws DeviceError with call, status name and place. Clears the
/// sticky status first, so that a caught failure does not surface at the next call.
#define ASSAY_CUDA(call)                                                    \
  do {                                                                      \
    const cudaError_t assay_status = (call);                                \
    if (assay_status != cudaSuccess)                                        \
      ::assay::cuda::throw_status(assay_status, #call, __FILE__, __LINE__); \
  } while (0)

namespace assay::cuda {

[[noreturn]] void throw_status(cudaError_t status, const char* call, const char* file, int line);

/// Allows a kernel `dynamic_bytes` of dynamic shared memory, and asks for the largest share of it:
/// kernels of one setting can run side by side on a multiprocessor.
cudaError_t configure_shared(const void* kernel, int dynamic_bytes);

/// What a device has, as its driver reports it.
struct DeviceLimits {
  int multiprocessors = 0;
  int major = 0;            // compute capability
  int block_shared = 0;     // bytes of shared memory that one thread block may take
  int multi_shared = 0;     // bytes that a multiprocessor has
  int reserved_shared = 0;  // bytes of these that each thread block takes beside its own
};

/// Makes a device the current one of this thread and returns its index. Throws DeviceError with the
/// number of devices if there is none of that index.
int use_device(int index);

DeviceLimits device_limits(int index);
/// Of the current device.
DeviceLimits device_limits();

/// The same, asked for once; for launchers.
const DeviceLimits& current_limits();

/// Makes a kernel ready for launches with `dynamic_bytes` of shared memory on the current device:
/// the first time on each device it is allowed all that the device has (configure_shared). Throws
/// UnsupportedError naming `what` if that is less.
void allow_shared(const void* kernel, int dynamic_bytes, std::string_view what);

/// Memory of the device; move-only. Contents are undefined until written.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Page-locked memory of the host; move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// A stream that does not synchronise with the default one; move-only.
class Stream {
 public:
  Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An instantiated graph; move-only, empty until built.
class GraphExec {
 public:
  GraphExec() = default;
  explicit GraphExec(cudaGraph_t graph);
  GraphExec(GraphExec&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  GraphExec& operator=(GraphExec&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~GraphExec();
  explicit operator bool() const { return exec_ != nullptr; }
  void launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t exec_ = nullptr;
};

/// A part of one arena. Parts are handed out in order and never given back singly.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes) : buffer_(bytes) {}
  /// Next `bytes` bytes, 256-byte aligned. Throws std::logic_error past the end: the ledger is
  /// wrong.
  std::byte* take(size_t bytes);
  size_t used() const { return used_; }
  size_t bytes() const { return buffer_.bytes(); }

 private:
  DeviceBuffer buffer_;
  size_t used_ = 0;
};

}  // namespace assay::cuda
