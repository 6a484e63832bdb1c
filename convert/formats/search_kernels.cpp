#include "convert/formats/search_kernels.h"

#include "convert/core/isa.h"

namespace assay {

const SearchKernels* search_kernels_avx2();  // search_kernels_avx2.cpp

namespace {

const SearchKernels* no_search_kernels() { return nullptr; }

}  // namespace

const SearchKernels* search_kernels() {
  return by_isa<no_search_kernels, search_kernels_avx2, search_kernels_avx2>();
}

}  // namespace assay
