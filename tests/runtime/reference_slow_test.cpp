// Logits, hidden states, cache contents, greedy runs and NLL of six trained models of three
// families against an independent fp32 implementation (the folder `references`).
//
// Tolerances. Two things part canonical-1 from exact arithmetic:
// 1. fp32 additions in some order. noise.json gives what that costs: the largest rms over the ways
//    of computing the same in fp32 and fp64.
// 2. The block-int16 step in front of every linear. Its error is measured here, not assumed: at
//    each QuantizeOp, eps = rms(s·q − x) / rms(x), about 4e-5 … 1.4e-4 (a step is at most
//    2·amax/32,639 and an even error of one step has rms step/√12, so eps ≤ 1.8e-5 · amax/rms).
//    A linear turns a relative error eps of its input into about the same of its output, since the
//    error has no preferred direction. Errors of different steps are independent, so after steps
//    1 … n the relative rms error is at most √(Σ eps²), each counted as if it reached the whole
//    stream. (The 16-bit weights are rounded in the same manner; bf16 values above 1/256 of their
//    group's maximum are exact, so that adds less than a tenth.)
// Hence rms ≤ kSafety · √(Σ eps²) · rms(reference) + 4 · noise rms. The largest error of many is a
// multiple of the rms that depends on the tensor (the residual stream has a few huge channels):
// at most 6 for normal errors, or 1.5 times what noise.json shows for that tensor.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "convert/core/sha256.h"
#include "runtime/cpu_executor.h"
#include "runtime/ops/nll.h"
#include "tests/runtime/references.h"
#include "tests/support/shared_data.h"

namespace assay {
namespace {

using test::Difference;
using test::difference;
using test::floats_of;
using test::References;

constexpr double kSafety = 1.5;

/// Measures the relative error of every QuantizeOp of a run.
class StepErrors {
 public:
  void see(const Op& op, const RegisterSpec& spec, std::span<const float> values) {
    const auto* quantize = std::get_if<QuantizeOp>(&op.kind);
    if (quantize == nullptr) {
      for (const Register r : writes(op)) last_[r.index].assign(values.begin(), values.end());
      return;
    }
    EXPECT_TRUE(spec.block_int16);
    const std::vector<float>& before = last_[quantize->in.index];
    const double eps = difference(values, before).rms / test::rms(before);
    sum_of_squares_ += eps * eps;
  }
  /// √(Σ eps²) of the steps so far.
  double relative() const { return std::sqrt(sum_of_squares_); }

 private:
  std::map<int, std::vector<float>> last_;  // by register
  double sum_of_squares_ = 0.0;
};

/// What fp32 alone does to a tensor, over all ways of noise.json but bf16.
struct Noise {
  double rms = 0.0;
  double peak = 6.0;  // largest error in units of the rms
};

class Reference : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto models = test::shared_path(std::string("models/") + GetParam());
    const auto folder = test::shared_path(std::string("references/") + GetParam());
    if (!models || !folder) {
      GTEST_SKIP() << "needs models and references in the folder that ASSAY_SHARED names";
    }
    checkpoint_ = Checkpoint::open(*models);
    references_ = std::make_unique<References>(*folder);
  }

  std::unique_ptr<Executor> load(KvType type, int64_t context = 4096) const {
    return make_cpu_device()->load(checkpoint_, {.kv_type = type, .context = context});
  }

  /// `group` of noise.json ("logits", "hidden", "state"); every tensor where `tensor` is empty.
  Noise noise(const char* group, const std::string& tensor = "") const {
    Noise result;
    const Json document = references_->json("noise.json");
    for (const Json& row : document.at(group).as_array()) {
      if (row.at("way").as_string() == "bf16 eager") continue;
      const Json* name = row.find("tensor");
      if (!tensor.empty() && (name == nullptr || name->as_string() != tensor)) continue;
      const double rms = row.at("rms").as_number();
      result.rms = std::max(result.rms, rms);
      if (rms > 0.0) {
        result.peak = std::max(result.peak, 1.5 * row.at("max_abs").as_number() / rms);
      }
    }
    return result;
  }

  static double rms_tolerance(std::span<const float> expected, double relative,
                              const Noise& noise) {
    return kSafety * relative * test::rms(expected) + 4.0 * noise.rms;
  }

  static void expect_close(const std::string& what, std::span<const float> actual,
                           std::span<const float> expected, double relative, const Noise& noise) {
    const Difference d = difference(actual, expected);
    const double tolerance = rms_tolerance(expected, relative, noise);
    EXPECT_LE(d.rms, tolerance) << what;
    EXPECT_LE(d.max_abs, noise.peak * tolerance) << what;
  }

  /// Error of the steps of one long prompt, for tests that have no observer.
  double relative_error(Executor& executor) const {
    StepErrors steps;
    test::prompt_logits(executor, references_->prompt("all0160"), LogitRows::kLast,
                        [&](const auto&... seen) { steps.see(seen...); });
    return steps.relative();
  }

  /// The matrices (n_value_heads, value_dim, key_dim) that layer 0 carries on after a prompt.
  std::vector<float> state_after(const std::vector<int32_t>& ids) const {
    const Program program = build_program(checkpoint_->spec(), checkpoint_->tensors());
    const auto n = static_cast<int64_t>(ids.size());
    const int end = program.layers.front().end;
    CpuWeights weights;
    bind_weights(program, checkpoint_, 0, end, n, weights);
    KvCache cache(program.cache_layers, KvType::kF32, 1, n, program.state_layers);
    cache.reset(0);
    CpuContext context;
    context.weights = &weights;
    context.cache = &cache;
    context.token_ids = ids;
    for (int64_t t = 0; t < n; ++t) context.rows.push_back({0, t});
    prepare_registers(program, 0, end, n, context);
    for (int i = 0; i < end; ++i) run_op(program.ops[static_cast<size_t>(i)], context);
    const float* state = cache.matrix_state(0, 0);
    return {state, state + program.state_layers.front().matrix_values()};
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<References> references_;
};

TEST_P(Reference, FinalLogitsOfEveryPromptAreWithinTheDerivedTolerance) {
  const auto executor = load(KvType::kF32);
  const SafetensorsFile file = references_->file("logits.safetensors");
  for (const auto& [id, ids] : references_->prompts()) {
    StepErrors steps;

    const std::vector<float> logits = test::prompt_logits(
        *executor, ids, LogitRows::kLast, [&](const auto&... seen) { steps.see(seen...); });

    const std::vector<float> expected = floats_of(file, "final." + id);
    expect_close(id, logits, expected, steps.relative(), noise("logits"));
    EXPECT_EQ(argmax(logits), argmax(expected)) << id;
  }
}

/// (a, b, c) -> (a, c, b), or with a and b swapped.
std::vector<float> turned(const std::vector<float>& values, const Shape& shape, bool outer) {
  std::vector<float> result(values.size());
  size_t from = 0;
  for (int64_t a = 0; a < shape[0]; ++a) {
    for (int64_t b = 0; b < shape[1]; ++b) {
      for (int64_t c = 0; c < shape[2]; ++c, ++from) {
        const int64_t to =
            outer ? (b * shape[0] + a) * shape[2] + c : (a * shape[2] + c) * shape[1] + b;
        result[static_cast<size_t>(to)] = values[from];
      }
    }
  }
  return result;
}

/// The tensor of cache.safetensors that an op's result is compared with, and its values as that op
/// gives them; "": none.
struct CacheTensor {
  std::string name;
  std::vector<float> expected;
};

CacheTensor cache_tensor_of(const Op& op, const LayerSpec& layer, const SafetensorsFile& cache) {
  const std::string prefix = "layer." + std::to_string(op.layer);
  // Values are normed after the projection where the family has such a norm.
  const char* v_op = layer.attention.v_norm ? "v_norm" : "v_proj";
  CacheTensor tensor;
  if (op.name.ends_with("rope_k")) tensor.name = prefix + ".k";
  if (op.name.ends_with(v_op)) tensor.name = prefix + ".v";
  if (op.name.ends_with("in_proj_qkv")) tensor.name = prefix + ".conv_state";
  const SafetensorsEntry* entry = tensor.name.empty() ? nullptr : cache.find(tensor.name);
  if (entry == nullptr) return {};
  const Shape& shape = entry->view.shape;
  tensor.expected = floats_of(cache, tensor.name);
  // (n_kv_heads, n_tokens, head_dim) -> (n_tokens, n_kv_heads, head_dim), or
  // (channels, kernel) -> (kernel, channels)
  tensor.expected = shape.size() == 3 ? turned(tensor.expected, shape, true)
                                      : turned(tensor.expected, {1, shape[0], shape[1]}, false);
  return tensor;
}

TEST_P(Reference, HiddenStatesCacheContentsAndAllLogitsAreWithinTheDerivedTolerance) {
  const auto executor = load(KvType::kF32);
  const Program& program = executor->program();
  const SafetensorsFile hidden = references_->file("hidden.safetensors");
  const SafetensorsFile cache = references_->file("cache.safetensors");
  const SafetensorsFile logits = references_->file("logits.safetensors");
  const auto ids = references_->prompt("all0160");
  StepErrors steps;
  std::vector<float> final_norm;
  std::vector<std::string> compared;
  const auto compare = [&](const char* group, const std::string& tensor,
                           std::span<const float> values, std::span<const float> expected) {
    compared.push_back(tensor);
    // Of a long convolution's inputs the last ones are kept.
    expect_close(tensor, values.last(expected.size()), expected, steps.relative(),
                 noise(group, tensor));
  };

  const std::vector<float> all = test::prompt_logits(
      *executor, ids, LogitRows::kAll,
      [&](const Op& op, const RegisterSpec& spec, std::span<const float> values) {
        steps.see(op, spec, values);
        if (op.name == "norm") final_norm.insert(final_norm.end(), values.begin(), values.end());
        const auto index = static_cast<int>(&op - program.ops.data());
        if (index + 1 == program.layers.front().begin) {
          compare("hidden", "embeddings", values, floats_of(hidden, "embeddings"));
        }
        if (op.layer < 0) return;
        const auto layer = static_cast<size_t>(op.layer);
        if (index + 1 == program.layers[layer].end) {
          const std::string name = "layer." + std::to_string(op.layer) + ".output";
          compare("hidden", name, values, floats_of(hidden, name));
        }
        const CacheTensor tensor = cache_tensor_of(op, program.spec.layers[layer], cache);
        if (!tensor.name.empty()) compare("state", tensor.name, values, tensor.expected);
      });

  if (cache.find("layer.0.recurrent_state") != nullptr) {
    compare("state", "layer.0.recurrent_state", state_after(ids),
            turned(floats_of(cache, "layer.0.recurrent_state"),
                   cache.find("layer.0.recurrent_state")->view.shape, false));
  }
  EXPECT_EQ(compared.size(), 1 + program.layers.size() + 4) << testing::PrintToString(compared);
  expect_close("final_norm", final_norm, floats_of(hidden, "final_norm"), steps.relative(),
               noise("hidden", "final_norm"));
  expect_close("all logits", all, floats_of(logits, "all.all0160"), steps.relative(),
               noise("hidden", "logits"));
}

TEST_P(Reference, GreedyIdsAreEqualWhereverTheMarginExceedsTheTolerance) {
  const auto executor = load(KvType::kF32);
  const double relative = relative_error(*executor);
  const SafetensorsFile file = references_->file("logits.safetensors");
  const Json greedy = references_->json("greedy.json");
  int decided = 0, undecided = 0, equal = 0;
  for (const Json& run : greedy.at("prompts").as_array()) {
    const std::string id = run.at("id").as_string();
    const std::vector<int32_t> expected = test::ids_of(run.at("token_ids"));
    const std::vector<float> final_logits = floats_of(file, "final." + id);
    const Noise fp32 = noise("logits");
    // Two logits, each off by at most the largest error.
    const double tolerance = 2.0 * fp32.peak * rms_tolerance(final_logits, relative, fp32);
    std::vector<float> logits =
        test::prompt_logits(*executor, references_->prompt(id), LogitRows::kLast);
    for (size_t i = 0; i < expected.size(); ++i) {
      const int32_t chosen = argmax(logits);
      equal += chosen == expected[i];
      if (run.at("margin").as_array()[i].as_number() > tolerance) {
        ++decided;
        EXPECT_EQ(chosen, expected[i]) << id << " step " << i;
      } else {
        ++undecided;
      }
      // Always the reference's token, so that a tie does not decide the rest.
      const BatchItem item{0, std::span(&expected[i], 1), LogitRows::kLast};
      executor->forward(std::span(&item, 1), logits);
    }
  }
  RecordProperty("equal_ids", equal);
  RecordProperty("undecided_steps", undecided);
  EXPECT_GT(decided, 990);  // of 1,024: the tolerance must leave something to test
}

/// Scores the windows of nll.safetensors.
struct NllResult {
  std::vector<double> window_mean;  // per window
  double mean = 0.0;                // over all windows
  int64_t argmax_wrong = 0;         // where the reference margin exceeds the tolerance
  int64_t argmax_decided = 0;
};

NllResult score_windows(Executor& executor, const SafetensorsFile& file, double margin_tolerance) {
  const auto ids = test::int32s_of(file, "token_ids");
  const auto best = test::int32s_of(file, "argmax");
  const auto margin = floats_of(file, "margin");
  constexpr size_t kWindow = 1024;
  const auto vocab = static_cast<size_t>(executor.program().spec.vocab_size);
  NllResult result;
  double total = 0.0;
  for (size_t w = 0; w < ids.size() / kWindow; ++w) {
    const auto window = std::span(ids).subspan(w * kWindow, kWindow);
    const auto logits = test::prompt_logits(executor, window, LogitRows::kAll);
    double sum = 0.0;
    for (size_t row = 0; row + 1 < kWindow; ++row) {
      const auto values = std::span(logits).subspan(row * vocab, vocab);
      sum += static_cast<double>(nll(values, window[row + 1]));
      const size_t at = w * (kWindow - 1) + row;
      if (static_cast<double>(margin[at]) <= margin_tolerance) continue;
      ++result.argmax_decided;
      result.argmax_wrong += argmax(values) != best[at];
    }
    result.window_mean.push_back(sum / (kWindow - 1));
    total += sum;
  }
  result.mean = total / static_cast<double>(result.window_mean.size() * (kWindow - 1));
  return result;
}

TEST_P(Reference, NllOfEveryWindowWithAnF16CacheIsWithin2e4) {
  const auto executor = load(KvType::kF16, 1024);
  const SafetensorsFile file = references_->file("nll.safetensors");
  const Json expected = references_->json("nll.json");

  const NllResult result = score_windows(*executor, file, 1e9);

  const auto& sums = expected.at("window_sum").as_array();
  ASSERT_EQ(result.window_mean.size(), sums.size());
  double largest = 0.0;
  for (size_t w = 0; w < sums.size(); ++w) {
    const double difference = result.window_mean[w] - sums[w].as_number() / 1023.0;
    largest = std::max(largest, std::fabs(difference));
    EXPECT_LE(std::fabs(difference), 2e-4) << "window " << w;
  }
  RecordProperty("largest_window_difference", std::to_string(largest));
  RecordProperty("mean_difference",
                 std::to_string(result.mean - expected.at("nll_mean").as_number()));
}

TEST_P(Reference, MeanNllWithAnF32CacheIsWithin2e5AndTheLikeliestTokensAgree) {
  const auto executor = load(KvType::kF32, 1024);
  const SafetensorsFile file = references_->file("nll.safetensors");
  const Json expected = references_->json("nll.json");
  const std::vector<float> some_logits =
      floats_of(references_->file("logits.safetensors"), "all.all0160");
  const Noise fp32 = noise("hidden", "logits");
  const double tolerance =
      2.0 * fp32.peak * rms_tolerance(some_logits, relative_error(*executor), fp32);

  const NllResult result = score_windows(*executor, file, tolerance);

  EXPECT_NEAR(result.mean, expected.at("nll_mean").as_number(), 2e-5);
  EXPECT_EQ(result.argmax_wrong, 0);
  EXPECT_GT(result.argmax_decided, 0.9 * static_cast<double>(expected.at("n_scored").as_integer()));
  RecordProperty("mean_difference",
                 std::to_string(1e6 * (result.mean - expected.at("nll_mean").as_number())) + "e-6");
}

INSTANTIATE_TEST_SUITE_P(Models, Reference,
                         testing::Values("llama-tiny", "llama-small", "gemma4-tiny", "gemma4-small",
                                         "qwen3_5-tiny", "qwen3_5-small"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace assay
