// Every family goes through the whole pipeline, on the tiny random models of tests/data/families.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "convert/checkpoint.h"
#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "convert/gguf_export.h"
#include "convert/hf_export.h"
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

// Blocks that predict further tokens are no part of the decoder: a run keeps them as they are. GGUF
// is without those that are not whole, and both say so.
TEST(QuantizedMtp, IsKeptBitForBitAndNamedWhereItIsLeftOut) {
  const QuantizeRun fixture;
  test::TinyModel model = test::read_model(test::family_model_path("qwen3_5"));
  model.tokenizer_json = test::make_tiny_model({.vocab_size = 256}).tokenizer_json;
  model.config.set("mtp_num_hidden_layers", 1);
  const Tensor matrix = model.tensor("model.layers.0.mlp.gate_proj.weight");
  model.add("mtp.fc.weight", matrix);
  model.add("mtp.layers.0.mlp.gate_proj.weight", matrix);
  model.write(fixture.path("mtp"));
  test::write_tokens(fixture.path("ids.npy"), 5, 32, 9, 256);
  RunOptions options = fixture.options();
  options.model = fixture.path("mtp");
  options.calibration = fixture.path("ids.npy");
  std::vector<std::string> notes;

  run_quantization(options, {.on_note = [&](std::string_view note) { notes.emplace_back(note); }});
  GgufExport gguf(Checkpoint::open(options.out), {});
  gguf.write(fixture.path("out.gguf"));

  EXPECT_THAT(notes, testing::Contains(testing::HasSubstr("left out: mtp (2 tensors")));
  EXPECT_THAT(gguf.warnings(), testing::Contains(testing::HasSubstr("left out: mtp (2 tensors")));
  const auto kept = SafetensorsModel::open(options.out);
  for (const char* name : {"mtp.fc.weight", "mtp.layers.0.mlp.gate_proj.weight"}) {
    ASSERT_NE(kept.find(name), nullptr) << name;
    EXPECT_TRUE(std::ranges::equal(kept.find(name)->view.bytes, matrix.bytes)) << name;
  }
  const Json config = read_json_file(options.out + "/config.json");
  EXPECT_EQ(config.at("mtp_num_hidden_layers").as_integer(), 1);
  const auto ignore = config.at("quantization_config").at("ignore").as_array();
  EXPECT_THAT(ignore, testing::IsSupersetOf({Json("mtp.fc"), Json("mtp.layers.0.mlp.gate_proj")}));
  const auto file = Checkpoint::open(fixture.path("out.gguf"));
  EXPECT_EQ(file->spec().layers.size(), 4u);
}

}  // namespace
}  // namespace assay
