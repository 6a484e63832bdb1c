#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "convert/core/error.h"
#include "quantizer/run_state.h"
#include "tests/calibrate/small_program.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/support/random.h"

namespace {

using namespace assay;

constexpr int kLayers = 2;

Json fingerprint() { return Json::object().set("program", "fuzz").set("option bits", 4); }

/// A folder with one layer of two done, beside which the fuzzer writes state.json.
class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "assay-state-fuzz-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
    model_ = test::make_small_model(kLayers, 1);
    windows_.n_windows = 2;
    windows_.window_length = 4;
    windows_.ids.assign(8, 1);
    memory_ = std::make_unique<ActivationMemory>(uint64_t{1} << 24, path_);
    RunState state(path_, fingerprint(), kLayers);
    StreamWalk walk = make_walk();
    walk.restore({model_.program.residual.index}, [](std::span<float> out) {
      const std::vector<float> values = test::random_floats(out.size(), 1);
      std::copy(values.begin(), values.end(), out.begin());
    });
    LayerReport report;
    report.layer = 0;
    report.modules.push_back({.module = "model.layers.0.mlp.up_proj", .layer = 0});
    const std::vector<std::byte> bytes(8);
    state.commit_layer(report, {source_of("a", TensorView{DType::kF32, {2}, bytes})}, {&walk});
    const Json good = read_json_file(path_ + "/state.json");
    layer_sha256_ = good.at("layers").as_array().front().at("sha256").as_string();
    stream_checksum_ = good.at("streams").as_array().front().at("checksum").as_string();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  /// @sha256 and @checksum stand for those of the files that are there: no fuzzer finds these.
  void set_state(const uint8_t* data, size_t size) const {
    std::string text(reinterpret_cast<const char*>(data), size);
    for (const auto& [mark, value] :
         {std::pair("@sha256", &layer_sha256_), std::pair("@checksum", &stream_checksum_)}) {
      const size_t at = text.find(mark);
      if (at != std::string::npos) text.replace(at, std::string_view(mark).size(), *value);
    }
    std::ofstream(path_ + "/state.json", std::ios::binary) << text;
  }
  StreamWalk make_walk() const {
    return StreamWalk(model_.program, model_.weights, windows_, {}, *memory_);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string layer_sha256_;
  std::string stream_checksum_;
  test::SmallModel model_;
  TokenWindows windows_;
  std::unique_ptr<ActivationMemory> memory_;
};

}  // namespace

/// Any state.json is gone on from or refused with a typed error; one that is accepted names the
/// layers and activations that are there, and nothing outside of its folder.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  folder.set_state(data, size);
  try {
    const RunState state(folder.path(), fingerprint(), kLayers);
    fuzz::require(state.n_layers_done() <= kLayers);
    fuzz::require(state.reports().size() == static_cast<size_t>(state.n_layers_done()));
    for (const SafetensorsFile& file : state.open_layers()) {
      for (const SafetensorsEntry& entry : file.tensors()) fuzz::touch(entry.view.bytes);
    }
    StreamWalk walk = folder.make_walk();
    state.restore_walks({&walk});
    fuzz::require(state.n_layers_done() <= 1);
  } catch (const FormatError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
