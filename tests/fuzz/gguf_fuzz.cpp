#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"
#include "tests/fuzz/fuzz_support.h"

/// Any bytes are opened or refused with a typed error; every tensor of an opened file can be read,
/// has whole rows of its format, and is found by its name.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const fuzz::MemoryFile memory;
  memory.set(data, size);
  try {
    const GgufFile file = GgufFile::open(memory.path());
    for (const auto& [key, value] : file.metadata().items()) {
      fuzz::require(file.metadata().find(key) == &value);
    }
    for (const GgufTensor& tensor : file.tensors()) {
      const int64_t columns = tensor.shape.back();
      const auto rows = static_cast<uint64_t>(n_elements(tensor.shape) / columns);
      fuzz::require(tensor.bytes.size() == rows * tensor.format->row_bytes(columns));
      fuzz::require(file.find(tensor.name) == &tensor);
      fuzz::touch(tensor.bytes);
    }
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
