// Compiled with the instructions of Isa::kAvx2; reached through gradient_kernels() only.
#if defined(__AVX2__) && defined(__FMA__)

#include "calibrate/gradient_kernels_impl.h"

namespace assay {
const GradientKernels& gradient_kernels_avx2() { return kKernels; }
}  // namespace assay

#endif
