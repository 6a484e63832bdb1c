#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "convert/gguf.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

/// The first and the last row through everything that reads blocks: no block is out of bounds
/// whatever its bits, and integers stay in the range that kernels rely on.
void read_rows(const assay::GgufTensor& tensor, int64_t rows, int64_t columns) {
  using namespace assay;
  const WeightView view{.format = tensor.format,
                        .rows = rows,
                        .columns = columns,
                        .group_size = tensor.format->fixed_group(),
                        .data = tensor.bytes};
  std::vector<float> values(static_cast<size_t>(columns));
  IntegerRow integers;
  for (const int64_t row : {int64_t{0}, rows - 1}) {
    tensor.format->decode_row(view, row, values);
    tensor.format->read_integers(view, row, integers);
    tensor.format->find_fault(view, row);
    for (const uint8_t code : integers.codes) {
      fuzz::require(code < 1 << tensor.format->code_bits());
    }
    for (const int16_t sub : integers.sub_scales) fuzz::require(sub >= -128 && sub <= 127);
  }
}

}  // namespace

/// Any bytes are opened or refused with a typed error; every tensor of an opened file can be read
/// and decoded, has whole rows of its format, and is found by its name.
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
      read_rows(tensor, static_cast<int64_t>(rows), columns);
    }
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
