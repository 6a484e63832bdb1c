#include <cmath>

#include "convert/core/error.h"
#include "convert/importance.h"
#include "tests/fuzz/fuzz_support.h"

/// Any bytes are opened as an importance matrix (GGUF or the older file) or refused with a typed
/// error; all values are finite, not negative, and as many as the matrices divide.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const fuzz::MemoryFile memory;
  memory.set(data, size);
  try {
    const ImportanceMatrix matrix = ImportanceMatrix::open(memory.path());
    fuzz::require(!matrix.entries().empty());
    for (const auto& [name, importance] : matrix.entries()) {
      fuzz::require(matrix.find(name) == &importance);
      fuzz::require(importance.n_matrices >= 1 && !importance.values.empty());
      fuzz::require(importance.values.size() % static_cast<size_t>(importance.n_matrices) == 0);
      for (const float value : importance.values) {
        fuzz::require(std::isfinite(value) && value >= 0.0f);
      }
    }
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
