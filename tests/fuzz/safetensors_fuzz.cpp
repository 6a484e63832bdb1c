#include "convert/core/error.h"
#include "convert/safetensors.h"
#include "tests/fuzz/fuzz_support.h"

/// Any bytes are opened or refused with a typed error; every view of an opened file can be read,
/// has the size of its shape, and is found by its name.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const fuzz::MemoryFile memory;
  memory.set(data, size);
  try {
    const SafetensorsFile file = SafetensorsFile::open(memory.path());
    for (const SafetensorsEntry& entry : file.tensors()) {
      const auto n = static_cast<uint64_t>(n_elements(entry.view.shape));
      fuzz::require(entry.view.bytes.size() == n * dtype_bytes(entry.view.dtype));
      fuzz::require(file.find(entry.name) == &entry);
      fuzz::touch(entry.view.bytes);
    }
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
