#include "calibrate/gradient_kernels_impl.h"

namespace assay {

const GradientKernels& gradient_kernels_scalar() { return kKernels; }

}  // namespace assay
