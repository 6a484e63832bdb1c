#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "runtime/device/cuda_executor.h"
#include "runtime/device/plugin.h"

namespace assay::cuda {
namespace {

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(use_device(index)) {}

  std::string name() const override { return "cuda:" + std::to_string(index_); }

  std::vector<LedgerItem> estimate(const Checkpoint& checkpoint,
                                   const ExecutorOptions& options) const override {
    return cuda::estimate(checkpoint, build_program(checkpoint.spec(), checkpoint.tensors()),
                          options, device_limits(index_));
  }

  std::unique_ptr<Executor> load(std::shared_ptr<const Checkpoint> checkpoint,
                                 const ExecutorOptions& options) override {
    return std::make_unique<CudaExecutor>(index_, std::move(checkpoint), options);
  }

 private:
  int index_;
};

}  // namespace
}  // namespace assay::cuda

extern "C" __attribute__((visibility("default"))) assay::Device* assay_open_cuda_device(
    int abi, int index, char* error, size_t error_size) {
  std::string message;
  try {
    if (abi == assay::kPluginAbi) return new assay::cuda::CudaDevice(index);
    message = "the plug-in has interface " + std::to_string(assay::kPluginAbi) + ", the program " +
              std::to_string(abi);
  } catch (const std::exception& caught) {
    message = caught.what();
  }
  const size_t n = std::min(message.size(), error_size - 1);
  std::memcpy(error, message.data(), n);
  error[n] = 0;
  return nullptr;
}
