#include "runtime/ops/attention_prefill_cuda.cuh"

namespace assay::cuda {

template bool run_tiles<CacheType::kF32>(const AttentionArguments&, cudaStream_t);

}  // namespace assay::cuda
