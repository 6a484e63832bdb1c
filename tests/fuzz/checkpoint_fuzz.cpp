#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "tests/fuzz/fuzz_support.h"

/// Any bytes are a GGUF model or refused with a typed error; every row of an opened model can be
/// read in both forms.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const fuzz::MemoryFile memory;
  memory.set(data, size);
  try {
    const auto checkpoint = Checkpoint::open(memory.path());
    for (const TensorEntry& entry : checkpoint->tensors()) {
      if (entry.shape.size() == 1) {
        const std::vector<float> vector = checkpoint->vector(entry.role, entry.layer);
        fuzz::touch(std::as_bytes(std::span(vector)));
        continue;
      }
      const CheckpointMatrix matrix = checkpoint->matrix(entry.role, entry.layer);
      std::vector<float> values(static_cast<size_t>(matrix.view.columns));
      IntegerRow integers;
      for (int64_t row = 0; row < matrix.view.rows; ++row) {
        matrix.decode_row(row, values);
        matrix.read_integers(row, integers);
        fuzz::touch(std::as_bytes(std::span(values)));
      }
    }
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
