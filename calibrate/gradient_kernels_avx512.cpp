// Compiled with the instructions of Isa::kAvx512; reached through gradient_kernels() only.
#if defined(__AVX512F__)

#include "calibrate/gradient_kernels_impl.h"

namespace assay {
const GradientKernels& gradient_kernels_avx512() { return kKernels; }
}  // namespace assay

#endif
