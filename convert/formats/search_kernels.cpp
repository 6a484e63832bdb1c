#include "convert/formats/search_kernels.h"

#include "convert/core/isa.h"

namespace assay {

#if defined(__x86_64__)
const SearchKernels& search_kernels_avx2();
#endif

const SearchKernels* search_kernels() {
#if defined(__x86_64__)
  if (active_isa() != Isa::kScalar) return &search_kernels_avx2();
#endif
  return nullptr;
}

}  // namespace assay
