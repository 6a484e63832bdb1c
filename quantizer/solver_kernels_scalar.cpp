#include "quantizer/solver_kernels_impl.h"

namespace assay {

const SolverKernels& solver_kernels_scalar() { return kKernels; }

}  // namespace assay
