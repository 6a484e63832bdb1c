#pragma once

#include <cstddef>

#include "runtime/executor.h"

namespace assay {

/// Version of the interface between the program and device plug-ins: raised whenever Device,
/// Executor or anything that they hand over changes its layout.
inline constexpr int kPluginAbi = 2;

/// The one symbol that libassay-cuda.so exports, `assay_open_cuda_device`. Returns a Device that
/// the caller deletes, or nullptr with a message in `error` (`error_size` bytes, with the final 0):
/// the abi is another one, there is no such GPU, the driver is too old.
using OpenCudaDevice = Device* (*)(int abi, int index, char* error, size_t error_size);

}  // namespace assay
