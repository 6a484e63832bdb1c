#include "calibrate/npy.h"
#include "convert/core/error.h"
#include "tests/fuzz/fuzz_support.h"

/// Any bytes are read as an array of integers or refused with a typed error; an array has as many
/// values as its shape says.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const fuzz::MemoryFile memory;
  memory.set(data, size);
  try {
    const NpyIntegers array = read_npy_integers(memory.path());
    uint64_t n = 1;
    for (const int64_t dimension : array.shape) {
      fuzz::require(dimension >= 0);
      n *= static_cast<uint64_t>(dimension);
    }
    fuzz::require(n == array.values.size() && n <= size);
  } catch (const FormatError&) {
  }
  return 0;
}
