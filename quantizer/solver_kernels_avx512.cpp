// Compiled with the instructions of Isa::kAvx512; reached through solver_kernels() only.
#if defined(__AVX512F__)

#include "quantizer/solver_kernels_impl.h"

namespace assay {
const SolverKernels& solver_kernels_avx512() { return kKernels; }
}  // namespace assay

#endif
