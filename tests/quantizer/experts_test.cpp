// Quantizing experts: each with the tokens routed to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "tests/quantizer/run_fixture.h"
#include "tests/support/bits_equal.h"

namespace assay {
namespace {

using test::QuantizeRun;
using test::TinyModel;
using testing::HasSubstr;

constexpr int kExperts = 6;
constexpr int64_t kHidden = 64;

class QuantizedExperts : public testing::Test {
 protected:
  QuantizedExperts() { test::write_tokens(fixture_.path("ids.npy"), 5, 32, 9, 256); }

  static TinyModel model() { return test::read_model(test::family_model_path("qwen3_moe")); }
  RunOptions options(const TinyModel& model, const std::string& out = "out") {
    RunOptions options = fixture_.options();
    options.model = model.write(fixture_.path("model of " + out));
    options.calibration = fixture_.path("ids.npy");
    options.out = fixture_.path(out);
    options.min_expert_tokens = 1;
    return options;
  }
  RunResult run(const RunOptions& options) {
    notes_.clear();
    return run_quantization(
        options, {.on_note = [this](std::string_view note) { notes_.emplace_back(note); }});
  }

  QuantizeRun fixture_;
  std::vector<std::string> notes_;
};

/// Top 1 of six, of which the last never wins: the first two have opposite logits, its own is 0.
TinyModel with_a_lost_expert() {
  TinyModel model = test::read_model(test::family_model_path("qwen3_moe"));
  model.config.set("num_experts_per_tok", 1);
  for (const int layer : {0, 1}) {
    Tensor& router = model.tensor("model.layers." + std::to_string(layer) + ".mlp.gate.weight");
    std::byte* rows = router.bytes.data();
    constexpr size_t kRowBytes = kHidden * 2;  // bf16
    std::memcpy(rows + kRowBytes, rows, kRowBytes);
    for (size_t i = 1; i < kRowBytes; i += 2) rows[kRowBytes + i] ^= std::byte{0x80};  // signs
    std::memset(rows + (kExperts - 1) * kRowBytes, 0, kRowBytes);
  }
  return model;
}

bool is_of_expert(const ModuleReport& module, int expert) {
  return module.module.find(".experts." + std::to_string(expert) + ".") != std::string::npos;
}

TEST_F(QuantizedExperts, EveryTokenCountsForEachOfItsExperts) {
  const RunResult result = run(options(model()));

  for (const LayerReport& layer : result.layers) {
    int64_t n_gate = 0, n_up = 0, n_down = 0;
    for (const ModuleReport& module : layer.modules) {
      if (module.module.find(".experts.") == std::string::npos) continue;
      if (module.module.ends_with("gate_proj")) n_gate += module.n_tokens;
      if (module.module.ends_with("up_proj")) n_up += module.n_tokens;
      if (module.module.ends_with("down_proj")) n_down += module.n_tokens;
    }
    EXPECT_EQ(n_gate, 5 * 32 * 2);
    EXPECT_EQ(n_up, 5 * 32 * 2);
    EXPECT_EQ(n_down, 5 * 32 * 2);
  }
}

TEST_F(QuantizedExperts, Case_B41_AnExpertWithoutTokensIsRoundedToNearestAndListed) {
  RunOptions run_options = options(with_a_lost_expert());
  run_options.min_expert_tokens = 4;

  const RunResult result = run(run_options);

  EXPECT_THAT(notes_, testing::Contains(testing::AllOf(HasSubstr("fewer than 4 calibration tokens"),
                                                       HasSubstr("5 (0)"))));
  for (const LayerReport& layer : result.layers) {
    for (const ModuleReport& module : layer.modules) {
      if (!is_of_expert(module, kExperts - 1)) continue;
      EXPECT_TRUE(module.starved) << module.module;
      EXPECT_EQ(module.n_tokens, 0) << module.module;
    }
  }
  const auto out = Checkpoint::open(fixture_.path("out"));
  std::vector<float> row(kHidden);
  for (const TensorEntry& entry : out->tensors()) {
    if (entry.expert < 0) continue;
    const CheckpointMatrix matrix = out->matrix(entry);
    for (int64_t r = 0; r < matrix.view.rows; ++r) {
      matrix.decode_row(r, row);
      EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST_F(QuantizedExperts, Case_B41_StarvedExpertsEndTheRunWhereTheOptionsSaySo) {
  RunOptions run_options = options(with_a_lost_expert());
  run_options.starved_experts = StarvedExperts::kError;

  try {
    run(run_options);
    ADD_FAILURE();
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("layer 0"), HasSubstr("5 (0)")));
  }
}

TEST_F(QuantizedExperts, Case_B41_ASingleTokenIsEnoughWhereTheThresholdIsOne) {
  test::write_tokens(fixture_.path("ids.npy"), 1, 2, 9, 256);

  const RunResult result = run(options(model()));

  for (const LayerReport& layer : result.layers) {
    int n_with_one = 0;
    for (const ModuleReport& module : layer.modules) {
      if (module.module.find(".experts.") == std::string::npos) continue;
      EXPECT_EQ(module.starved, module.n_tokens == 0) << module.module;
      n_with_one += module.n_tokens == 1 ? 1 : 0;
    }
    EXPECT_GT(n_with_one, 0);
  }
}

/// The same model with the experts of a layer in two tensors.
TinyModel stacked(const TinyModel& model) {
  TinyModel out = model;
  std::erase_if(out.tensors, [](const test::NamedTensor& named) {
    return named.name.find(".experts.") != std::string::npos;
  });
  TinyModel source = model;
  for (const int layer : {0, 1}) {
    const std::string module = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    Tensor gate_up{DType::kBF16, {kExperts, 128, kHidden}, {}};
    Tensor down{DType::kBF16, {kExperts, kHidden, 64}, {}};
    const auto append = [&](Tensor& to, const std::string& name) {
      const std::vector<std::byte>& bytes = source.tensor(name).bytes;
      to.bytes.insert(to.bytes.end(), bytes.begin(), bytes.end());
    };
    for (int e = 0; e < kExperts; ++e) {
      const std::string expert = module + std::to_string(e);
      append(gate_up, expert + ".gate_proj.weight");
      append(gate_up, expert + ".up_proj.weight");
      append(down, expert + ".down_proj.weight");
    }
    out.add(module + "gate_up_proj", gate_up);
    out.add(module + "down_proj", down);
  }
  return out;
}

TEST_F(QuantizedExperts, AreTheSameFromOneTensorForAllAndFromOneEach) {
  run(options(model(), "single"));

  run(options(stacked(model()), "stacked"));

  EXPECT_EQ(QuantizeRun::contents(fixture_.path("single")).at("model.safetensors"),
            QuantizeRun::contents(fixture_.path("stacked")).at("model.safetensors"));
}

TEST_F(QuantizedExperts, ThatAreSkippedStayAsTheyAreWhenTheirStackIsReplaced) {
  RunOptions run_options = options(stacked(model()));
  run_options.skip = {"*.experts.3.*"};

  run(run_options);

  const auto out = Checkpoint::open(fixture_.path("out"));
  TinyModel source = model();
  for (const TensorEntry& entry : out->tensors()) {
    if (entry.expert < 0) continue;
    EXPECT_EQ(out->stored(entry).scale_dtype.has_value(), entry.expert != 3) << entry.hf_name;
    if (entry.expert != 3) continue;
    EXPECT_TRUE(
        std::ranges::equal(out->matrix(entry).view.data, source.tensor(entry.hf_name).bytes))
        << entry.hf_name;
  }
}

}  // namespace
}  // namespace assay
