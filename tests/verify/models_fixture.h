#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "convert/commands.h"
#include "tests/convert/cli_fixture.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"
#include "verify/commands.h"
#include "verify/equivalence.h"

namespace assay::test {

/// Folders of models, and the program to compare them with.
class Models : public testing::Test {
 protected:
  std::string write(const TinyModel& model, const std::string& name, int n_shards = 1) {
    return model.write(folder_.file(name), n_shards);
  }
  std::string good() { return write(make_tiny_model(), "good"); }
  std::string quantized(const std::string& name, const TinyQuantization& options = {}) {
    TinyModel model = make_tiny_model();
    quantize_as_compressed_tensors(model, options);
    return write(model, name);
  }

  EquivalenceReport compare(const std::string& a, const std::string& b,
                            const EquivalenceOptions& options = {}) {
    Side side_a = Side::open(a), side_b = Side::open(b);
    return verify_equivalence(side_a, side_b, options);
  }

  static const Check& find(const EquivalenceReport& report, std::string_view name) {
    for (const Check& check : report.checks) {
      if (check.name == name) return check;
    }
    throw std::runtime_error("no check " + std::string(name));
  }

  cli::RunResult run(std::vector<std::string> words) {
    words.insert(words.begin(), "verify-equivalence");
    cli::FakeProcess process;
    return process.run(words, {&cli::verify_equivalence_command()});
  }

  /// A GGUF file of a folder, by the program's own conversion.
  std::string gguf(const std::string& model, const std::string& name,
                   const std::string& type = "auto") {
    const std::string path = folder_.file(name);
    cli::FakeProcess process;
    const cli::RunResult result =
        process.run({"convert", model, "--out", path, "--type", type}, {&cli::convert_command()});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return path;
  }

  TemporaryDirectory folder_;
};

}  // namespace assay::test
