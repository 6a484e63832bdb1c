// Compiled with the instructions of Isa::kAvx2; reached through solver_kernels() only.
#if defined(__AVX2__) && defined(__FMA__)

#include "quantizer/solver_kernels_impl.h"

namespace assay {
const SolverKernels& solver_kernels_avx2() { return kKernels; }
}  // namespace assay

#endif
