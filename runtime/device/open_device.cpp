#include <dlfcn.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "convert/core/error.h"
#include "runtime/cpu_executor.h"
#include "runtime/device/plugin.h"
#include "runtime/executor.h"

namespace assay {
namespace {

constexpr const char* kLibrary = "libassay-cuda.so";
constexpr const char* kEntry = "assay_open_cuda_device";

/// Where the plug-in may lie: where ASSAY_CUDA_PLUGIN says, beside the program, in ../lib of it,
/// and wherever the dynamic linker looks.
std::vector<std::string> plugin_candidates() {
  if (const char* chosen = std::getenv("ASSAY_CUDA_PLUGIN"); chosen != nullptr && *chosen != 0) {
    return {chosen};
  }
  std::vector<std::string> candidates;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = program.parent_path();
    for (const auto& path : {folder / kLibrary, folder / ".." / "lib" / kLibrary}) {
      if (std::filesystem::exists(path, error)) candidates.push_back(path.string());
    }
  }
  candidates.emplace_back(kLibrary);
  return candidates;
}

/// Loads the plug-in for good: devices hold code of it until the process ends.
OpenCudaDevice load_plugin() {
  std::string reasons;
  for (const std::string& path : plugin_candidates()) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
      continue;
    }
    void* entry = dlsym(library, kEntry);
    if (entry == nullptr) {
      throw DeviceError(path + " has no symbol " + kEntry + "; it belongs to another version");
    }
    return reinterpret_cast<OpenCudaDevice>(entry);
  }
  throw DeviceError(
      "the CUDA plug-in could not be loaded (" + reasons +
      "); build the preset cuda, set ASSAY_CUDA_PLUGIN to the path of libassay-cuda.so, or use "
      "--device cpu");
}

std::unique_ptr<Device> open_cuda_device(int index) {
  const OpenCudaDevice open = load_plugin();
  std::array<char, 1024> error = {};
  std::unique_ptr<Device> device(open(kPluginAbi, index, error.data(), error.size()));
  if (!device) {
    error.back() = 0;
    throw DeviceError("cuda:" + std::to_string(index) + ": " + error.data());
  }
  return device;
}

}  // namespace

std::unique_ptr<Device> open_device(std::string_view name) {
  if (name == "cpu") return make_cpu_device();
  if (name == "cuda") return open_cuda_device(0);
  constexpr std::string_view kPrefix = "cuda:";
  if (name.starts_with(kPrefix)) {
    const std::string_view digits = name.substr(kPrefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0) {
      return open_cuda_device(index);
    }
  }
  throw UsageError("device \"" + std::string(name) + "\" is not known; use cpu, cuda or cuda:N");
}

}  // namespace assay
