#include "runtime/float_environment.h"

#include <cfenv>

#include "convert/core/error.h"

namespace assay {

void check_float_environment() {
  if (std::fegetround() != FE_TONEAREST) {
    throw UnsupportedError(
        "floating-point rounding mode of this thread is not nearest-even; reset it with "
        "fesetround(FE_TONEAREST) before calling");
  }
  // volatile: the sums and products must be made at run time, in the mode of this thread.
  volatile float smallest_normal = 0x1p-126f;
  volatile float smallest = 0x1p-149f;
  const volatile float result = smallest_normal * 0.5f;  // 0 if results are flushed
  const volatile float input = smallest * 0x1p100f;      // 0 if inputs are flushed
  if (result == 0.0f || input == 0.0f) {
    throw UnsupportedError(
        "this thread flushes subnormal numbers to zero (MXCSR FTZ or DAZ); canonical arithmetic "
        "needs them, switch the mode off before calling");
  }
}

}  // namespace assay
