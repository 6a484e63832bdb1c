#pragma once

#include <cuda_runtime_api.h>

namespace assay::cuda {

/// Read bandwidth of the device's memory in GB/s (10^9 bytes): the best of several passes over 4 GB
/// with 16-byte loads. The bound that benchmarks are measured against.
double measure_read_gbps(cudaStream_t stream);

}  // namespace assay::cuda
