#include "quantizer/solver_kernels.h"

#include "convert/core/isa.h"

namespace assay {

const SolverKernels& solver_kernels() {
  return by_isa<solver_kernels_scalar, solver_kernels_avx2, solver_kernels_avx512>();
}

}  // namespace assay
