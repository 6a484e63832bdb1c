#pragma once

#include <map>
#include <string>

#include "quantizer/pipeline.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay::test {

/// A tiny model and calibration ids on disk, and options that quantize it in a moment.
class QuantizeRun {
 public:
  explicit QuantizeRun(const TinyModelOptions& model = {});

  /// GPTQ, 4 bits with zero points, groups of 32, 6 windows of 16 tokens, out "out".
  RunOptions options() const;
  /// The same with all steps of the best recipe.
  RunOptions best_options() const;
  RunResult run(const RunOptions& options) const { return run_quantization(options, {}); }

  /// Contents of every file below a folder, by name.
  static std::map<std::string, std::string> contents(const std::string& folder);
  std::string path(const std::string& name) const { return folder_.file(name); }
  std::string model() const { return path("model"); }
  std::string tokens() const { return path("tokens.npy"); }

 private:
  TemporaryDirectory folder_;
};

/// Token ids that depend on the seed alone.
void write_tokens(const std::string& path, int64_t n_windows, int64_t window_length, uint64_t seed,
                  uint64_t vocab_size = 300);

}  // namespace assay::test
