#include "runtime/device/cuda_support.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <stdexcept>

namespace assay::cuda {

void throw_status(cudaError_t status, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());
  const std::string message = std::string(call) + " failed with " + cudaGetErrorName(status) +
                              " (" + cudaGetErrorString(status) + ") at " + file + ":" +
                              std::to_string(line);
  if (status == cudaErrorMemoryAllocation) throw ResourceError(message);
  throw DeviceError(message);
}

cudaError_t configure_shared(const void* kernel, int dynamic_bytes) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

int use_device(int index) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status == cudaErrorNoDevice)
    static_cast<void>(cudaGetLastError());
  else if (status != cudaSuccess)
    throw_status(status, "cudaGetDeviceCount", __FILE__, __LINE__);
  if (index < 0 || index >= count)
    throw DeviceError(fmt::format(
        "there is no GPU of index {}: this process sees {}; CUDA_VISIBLE_DEVICES chooses which",
        index,
        count == 0   ? "none"
        : count == 1 ? "one, cuda:0"
                     : fmt::format("{}, cuda:0 to cuda:{}", count, count - 1)));
  ASSAY_CUDA(cudaSetDevice(index));
  return index;
}

DeviceLimits device_limits(int index) {
  DeviceLimits limits;
  const auto read = [index](int& to, cudaDeviceAttr attribute) {
    ASSAY_CUDA(cudaDeviceGetAttribute(&to, attribute, index));
  };
  read(limits.multiprocessors, cudaDevAttrMultiProcessorCount);
  read(limits.major, cudaDevAttrComputeCapabilityMajor);
  read(limits.block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  read(limits.multi_shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  read(limits.reserved_shared, cudaDevAttrReservedSharedMemoryPerBlock);
  return limits;
}

DeviceLimits device_limits() {
  int index = 0;
  ASSAY_CUDA(cudaGetDevice(&index));
  return device_limits(index);
}

const DeviceLimits& current_limits() {
  static std::mutex mutex;
  static std::map<int, DeviceLimits> known;
  int index = 0;
  ASSAY_CUDA(cudaGetDevice(&index));
  const std::lock_guard lock(mutex);
  const auto found = known.find(index);
  return found != known.end() ? found->second
                              : known.emplace(index, device_limits(index)).first->second;
}

void allow_shared(const void* kernel, int dynamic_bytes, std::string_view what) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;  // per device and kernel, bytes
  int index = 0;
  ASSAY_CUDA(cudaGetDevice(&index));
  const std::lock_guard lock(mutex);
  auto found = allowed.find({index, kernel});
  if (found == allowed.end()) {
    cudaFuncAttributes attributes{};
    ASSAY_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    const int most =
        device_limits(index).block_shared - static_cast<int>(attributes.sharedSizeBytes);
    ASSAY_CUDA(configure_shared(kernel, most));
    found = allowed.emplace(std::pair(index, kernel), most).first;
  }
  if (dynamic_bytes > found->second)
    throw UnsupportedError(fmt::format(
        "cuda: {} needs {} bytes of shared memory, a thread block of this GPU has {}; use --device "
        "cpu",
        what, dynamic_bytes, found->second));
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  if (bytes != 0) ASSAY_CUDA(cudaMalloc(&data, bytes));
  data_ = static_cast<std::byte*>(data);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

PinnedBuffer::PinnedBuffer(size_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  if (bytes != 0) ASSAY_CUDA(cudaHostAlloc(&data, bytes, cudaHostAllocDefault));
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}

Stream::Stream() { ASSAY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

Stream::~Stream() {
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

GraphExec::GraphExec(cudaGraph_t graph) { ASSAY_CUDA(cudaGraphInstantiate(&exec_, graph, 0)); }

GraphExec::~GraphExec() {
  if (exec_ != nullptr) static_cast<void>(cudaGraphExecDestroy(exec_));
}

void GraphExec::launch(cudaStream_t stream) const { ASSAY_CUDA(cudaGraphLaunch(exec_, stream)); }

std::byte* Arena::take(size_t bytes) {
  const size_t aligned = (bytes + 255) / 256 * 256;
  if (aligned > buffer_.bytes() - used_) {
    throw std::logic_error("device arena of " + std::to_string(buffer_.bytes()) +
                           " bytes is too small by " +
                           std::to_string(used_ + aligned - buffer_.bytes()));
  }
  std::byte* part = buffer_.data() + used_;
  used_ += aligned;
  return part;
}

}  // namespace assay::cuda
