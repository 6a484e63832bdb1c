#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "convert/core/error.h"
#include "convert/safetensors.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

/// A folder with two good shards, beside whose index the fuzzer writes.
std::string make_folder() {
  std::string folder =
      (std::filesystem::temp_directory_path() / "assay-index-fuzz-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  const std::vector<std::byte> bytes(8);
  const assay::TensorView view{assay::DType::kF32, {2}, bytes};
  assay::write_safetensors(folder + "/model-00001-of-00002.safetensors",
                           {assay::source_of("a", view), assay::source_of("b", view)});
  assay::write_safetensors(folder + "/model-00002-of-00002.safetensors",
                           {assay::source_of("c", view)});
  static std::string to_remove = folder;
  std::atexit([] {
    std::error_code ignored;
    std::filesystem::remove_all(to_remove, ignored);
  });
  return folder;
}

}  // namespace

/// An index is accepted only if it names all tensors of each file that it names, and no others.
/// (Whether these are all that a model needs is for Checkpoint to say.)
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const std::string folder = make_folder();
  std::ofstream(folder + "/model.safetensors.index.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const SafetensorsModel model = SafetensorsModel::open(folder);
    const std::vector<std::string> names = model.names();
    fuzz::require(names == std::vector<std::string>{"a", "b", "c"} ||
                  names == std::vector<std::string>{"a", "b"} ||
                  names == std::vector<std::string>{"c"});
    for (const std::string& name : model.names()) fuzz::touch(model.find(name)->view.bytes);
  } catch (const FormatError&) {
  }
  return 0;
}
