#include "runtime/ops/step_kernel_cuda.cuh"

namespace assay::cuda {

template void launch_step_as<CacheType::kF32, 128>(const StepArguments&, int, cudaStream_t);

}  // namespace assay::cuda
