#include "quantizer/solver_kernels.h"

#include "runtime/isa.h"

namespace assay {

const SolverKernels& solver_kernels() {
  switch (active_isa()) {
    case Isa::kAvx512:
      return solver_kernels_avx512();
    case Isa::kAvx2:
      return solver_kernels_avx2();
    case Isa::kScalar:
      break;
  }
  return solver_kernels_scalar();
}

}  // namespace assay
