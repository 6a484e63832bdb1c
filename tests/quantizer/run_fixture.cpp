#include "tests/quantizer/run_fixture.h"

#include <filesystem>

#include "calibrate/npy.h"
#include "convert/core/file.h"
#include "quantizer/recipe.h"
#include "tests/support/random.h"

namespace assay::test {

void write_tokens(const std::string& path, int64_t n_windows, int64_t window_length, uint64_t seed,
                  uint64_t vocab_size) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n_windows * window_length; ++i) {
    ids.push_back(static_cast<int32_t>(random.below(vocab_size)));
  }
  const std::vector<int64_t> shape = {n_windows, window_length};
  write_npy_int32(path, shape, ids);
}

QuantizeRun::QuantizeRun(const TinyModelOptions& model) {
  make_tiny_model(model).write(path("model"));
  write_tokens(tokens(), 6, 16, 3);
}

RunOptions QuantizeRun::options() const {
  RunOptions options;
  options.model = model();
  options.out = path("out");
  options.calibration = tokens();
  options.quantize.group_size = 32;
  return options;
}

RunOptions QuantizeRun::best_options() const {
  RunOptions best = options();
  apply_recipe(find_recipe("best"), true, best.quantize);
  return best;
}

std::map<std::string, std::string> QuantizeRun::contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().string().substr(folder.size() + 1);
    files[name] = read_text_file(entry.path().string());
  }
  return files;
}

}  // namespace assay::test
