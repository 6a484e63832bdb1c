#include "calibrate/gradient_kernels.h"

#include "convert/core/isa.h"

namespace assay {

const GradientKernels& gradient_kernels() {
  return by_isa<gradient_kernels_scalar, gradient_kernels_avx2, gradient_kernels_avx512>();
}

}  // namespace assay
