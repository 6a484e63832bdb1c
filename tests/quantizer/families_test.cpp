// Every family goes through the whole pipeline, on the tiny random models of tests/data/families.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "convert/checkpoint.h"
#include "convert/core/parallel.h"
#include "convert/hf_export.h"
#include "runtime/isa.h"
#include "tests/quantizer/run_fixture.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::QuantizeRun;

class QuantizedFamily : public testing::TestWithParam<std::string> {
 protected:
  QuantizedFamily() { test::write_tokens(fixture_.path("ids.npy"), 5, 32, 9, 256); }
  void TearDown() override {
    force_isa(best_isa());
    set_n_threads(threads_before_);
  }

  RunOptions options(const std::string& out) const {
    return with_family(fixture_.best_options(), out);
  }
  RunOptions with_family(RunOptions options, const std::string& out) const {
    options.model = test::family_model_path(GetParam());
    options.calibration = fixture_.path("ids.npy");
    options.min_expert_tokens = 8;
    options.out = fixture_.path(out);
    return options;
  }

  QuantizeRun fixture_;
  int threads_before_ = n_threads();
};

INSTANTIATE_TEST_SUITE_P(Families, QuantizedFamily, testing::ValuesIn(test::family_models()),
                         [](const auto& model) { return model.param; });

TEST_P(QuantizedFamily, OpensAndHoldsEveryLinearInFourBits) {
  const RunResult result = fixture_.run(options("out"));

  const auto checkpoint = Checkpoint::open(fixture_.path("out"));
  int64_t n_quantized = 0;
  for (const TensorEntry& entry : checkpoint->tensors()) {
    const bool packed = checkpoint->stored(entry).scale_dtype.has_value();
    EXPECT_EQ(packed, entry.quantizable) << entry.hf_name;
    n_quantized += packed ? 1 : 0;
  }
  int64_t n_reported = 0;
  for (const LayerReport& layer : result.layers) {
    n_reported += static_cast<int64_t>(layer.modules.size());
  }
  EXPECT_EQ(n_quantized, n_reported);
}

TEST_P(QuantizedFamily, HasTheNamesOfItsSourceAgainAsAPlainFolder) {
  fixture_.run(options("out"));
  std::filesystem::create_directories(fixture_.path("plain"));

  HfExport(Checkpoint::open(fixture_.path("out")), {}).write(fixture_.path("plain"));

  const auto source = SafetensorsModel::open(test::family_model_path(GetParam()));
  const auto plain = SafetensorsModel::open(fixture_.path("plain"));
  ASSERT_EQ(plain.names(), source.names());
  for (const std::string& name : source.names()) {
    EXPECT_EQ(plain.find(name)->view.shape, source.find(name)->view.shape) << name;
  }
  EXPECT_EQ(Checkpoint::open(fixture_.path("plain"))->kind(), CheckpointKind::kHuggingFace);
}

TEST_P(QuantizedFamily, HasLossesBelowThoseOfRoundToNearest) {
  // The plain recipe: with a target of its own the loss against the weights says less.
  const RunResult result = fixture_.run(with_family(fixture_.options(), "out"));

  for (const LayerReport& layer : result.layers) {
    for (const ModuleReport& module : layer.modules) {
      EXPECT_LT(module.loss, module.rtn_loss) << module.module;
    }
  }
}

TEST_P(QuantizedFamily, HasTheSameBytesForEveryInstructionSetThreadsAndBatch) {
  fixture_.run(options("first"));
  RunOptions other = options("second");
  other.batch_tokens = 32;
  force_isa(Isa::kScalar);
  set_n_threads(2);

  fixture_.run(other);

  EXPECT_EQ(QuantizeRun::contents(fixture_.path("second")),
            QuantizeRun::contents(fixture_.path("first")));
}

}  // namespace
}  // namespace assay
