#include "quantizer/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "calibrate/dataset.h"
#include "calibrate/npy.h"
#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "convert/gguf_export.h"
#include "convert/model_card.h"
#include "runtime/cpu_executor.h"
#include "tests/calibrate/every_isa.h"
#include "tests/quantizer/run_fixture.h"
#include "verify/nll.h"

namespace assay {
namespace {

using test::QuantizeRun;
using testing::HasSubstr;

template <typename ErrorType, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error of the expected type";
  return {};
}

std::vector<float> weights_of(const Checkpoint& checkpoint, Role role, int layer) {
  const CheckpointMatrix matrix = checkpoint.matrix(role, layer);
  std::vector<float> out(static_cast<size_t>(matrix.view.rows * matrix.view.columns));
  for (int64_t row = 0; row < matrix.view.rows; ++row) {
    matrix.decode_row(row, std::span(out).subspan(static_cast<size_t>(row * matrix.view.columns),
                                                  static_cast<size_t>(matrix.view.columns)));
  }
  return out;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST(Quantize, WritesAFolderThatOpensAndIsNearTheModel) {
  const QuantizeRun fixture;
  const RunResult result = fixture.run(fixture.options());

  const auto source = Checkpoint::open(fixture.model());
  const auto quantized = Checkpoint::open(fixture.path("out"));
  EXPECT_EQ(quantized->format().name, "compressed-tensors");
  for (int layer = 0; layer < 2; ++layer) {
    for (const Role role : {Role::kQProj, Role::kOProj, Role::kDownProj}) {
      EXPECT_LT(relative_difference(weights_of(*quantized, role, layer),
                                    weights_of(*source, role, layer)),
                0.2);
    }
  }
  EXPECT_EQ(result.layers.size(), 2u);
  EXPECT_EQ(result.layers[1].modules.size(), 7u);
  EXPECT_EQ(result.layers[1].modules[0].n_tokens, 96);
  EXPECT_FALSE(file_exists(fixture.path("out.partial")));
  EXPECT_FALSE(file_exists(fixture.path("out.state")));
}

TEST(Quantize, LossesAreBelowThoseOfRoundToNearest) {
  const QuantizeRun fixture;

  const RunResult result = fixture.run(fixture.options());

  EXPECT_TRUE(modules_not_better_than_rtn(result.layers).empty());
}

// Rows without a calibration run: the same files, no stream.
TEST(Quantize, RoundToNearestNeedsNoCalibration) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  options.calibration.clear();
  options.quantize.algorithm = "rtn";
  options.quantize.scale_search = ScaleSearch::kMinMax;

  const RunResult result = fixture.run(options);

  EXPECT_EQ(Checkpoint::open(options.out)->format().name, "compressed-tensors");
  EXPECT_EQ(result.n_windows, 0);
  for (const ModuleReport& module : result.layers[0].modules) {
    EXPECT_EQ(module.loss, module.rtn_loss);
  }
  options.force = true;
  options.quantize.scale_search = ScaleSearch::kHessianGrid;
  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(options); }), HasSubstr("--calibration"));
  options.quantize.algorithm = "gptq";
  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(options); }), HasSubstr("--calibration"));
}

TEST(Quantize, CodesOfTheQ4KGridMoveIntoGgufUnchanged) {
  const QuantizeRun fixture({.hidden_size = 256, .intermediate_size = 512});
  RunOptions options = fixture.best_options();
  options.quantize.grid = GridKind::kQ4K;
  fixture.run(options);
  const auto folder = Checkpoint::open(options.out);

  GgufExport(folder, {}).write(fixture.path("out.gguf"));

  const auto gguf = Checkpoint::open(fixture.path("out.gguf"));
  for (int layer = 0; layer < 2; ++layer) {
    for (const Role role :
         {Role::kQProj, Role::kKProj, Role::kOProj, Role::kUpProj, Role::kDownProj}) {
      EXPECT_EQ(gguf->stored(role, layer).format->name(), "Q4_K");
      EXPECT_EQ(weights_of(*gguf, role, layer), weights_of(*folder, role, layer));
    }
  }
}

TEST(Quantize, LinearsThatQ4KCannotHoldKeepFreeScalesAndAreNamed) {
  const QuantizeRun fixture({.hidden_size = 256, .intermediate_size = 96});
  RunOptions options = fixture.best_options();
  options.quantize.grid = GridKind::kQ4K;
  std::vector<std::string> notes;

  EXPECT_THAT(dry_run(options).off_lattice, testing::SizeIs(2));
  const RunResult result = run_quantization(
      options, {.on_note = [&](std::string_view note) { notes.emplace_back(note); }});

  EXPECT_THAT(notes, testing::Contains(HasSubstr("model.layers.0.mlp.down_proj (96 columns), "
                                                 "model.layers.1.mlp.down_proj (96 columns)")));
  for (const LayerReport& layer : result.layers) {
    for (const ModuleReport& module : layer.modules) {
      EXPECT_EQ(module.off_lattice, module.in_features == 96) << module.module;
    }
  }
  const auto folder = Checkpoint::open(options.out);
  GgufExport(folder, {}).write(fixture.path("out.gguf"));
  const auto gguf = Checkpoint::open(fixture.path("out.gguf"));
  EXPECT_EQ(gguf->stored(Role::kUpProj, 0).format->name(), "Q4_K");
  EXPECT_THAT(gguf->stored(Role::kDownProj, 0).format->name(), testing::AnyOf("Q4_1", "Q5_0"));
  EXPECT_EQ(weights_of(*gguf, Role::kDownProj, 0), weights_of(*folder, Role::kDownProj, 0));
}

TEST(Quantize, Q4KGridTellsWhatItCannotHave) {
  const QuantizeRun fixture;  // rows of 64 and 96 columns
  RunOptions options = fixture.best_options();
  options.quantize.grid = GridKind::kQ4K;
  const auto refused = [&] { return message_of<UsageError>([&] { fixture.run(options); }); };

  EXPECT_THAT(refused(), HasSubstr("self_attn.q_proj (64 columns)"));
  options.quantize.bits = 8;
  EXPECT_THAT(refused(), HasSubstr("8 bits, expected 4"));
  options.quantize.bits = 4;
  options.quantize.group_size = 96;
  EXPECT_THAT(refused(), HasSubstr("group size 96"));
  options.quantize.group_size = -1;
  EXPECT_THAT(refused(), HasSubstr("group size -1"));
  options.quantize.group_size = 32;
  options.quantize.scale_search = ScaleSearch::kMinMax;
  EXPECT_THAT(refused(), HasSubstr("--scales min-max"));
  options.quantize.scale_search = ScaleSearch::kHessianGrid;
  options.quantize.algorithm = "rtn";
  options.quantize.target_alpha = options.quantize.residual_alpha = 0.0;
  options.quantize.target_windows = 0;
  options.quantize.refit_rounds = options.quantize.regrid_rounds = 0;
  options.calibration.clear();
  EXPECT_THAT(refused(), HasSubstr("--grid q4_k needs calibration data"));
}

TEST(Quantize, ThreeBitsLieInBothLayoutsAndMoveIntoGguf) {
  const QuantizeRun fixture;
  RunOptions options = fixture.best_options();
  options.quantize.bits = 3;
  options.quantize.symmetric = true;
  fixture.run(options);
  const auto folder = Checkpoint::open(options.out);
  options.out = fixture.path("gptq");
  options.layout = "gptq";
  fixture.run(options);
  const auto gptq = Checkpoint::open(options.out);

  GgufExport(folder, {}).write(fixture.path("out.gguf"));

  const auto gguf = Checkpoint::open(fixture.path("out.gguf"));
  EXPECT_EQ(folder->stored(Role::kQProj, 0).format->name(), "W3");
  EXPECT_EQ(gguf->stored(Role::kQProj, 0).format->name(), "Q4_0");
  for (const Role role : {Role::kQProj, Role::kOProj, Role::kDownProj}) {
    EXPECT_EQ(weights_of(*gguf, role, 1), weights_of(*folder, role, 1));
    EXPECT_EQ(weights_of(*gptq, role, 1), weights_of(*folder, role, 1));
  }
}

TEST(Quantize, WritesACardOfWhatWasDoneAndMeasured) {
  const QuantizeRun fixture;
  write_text_file(fixture.model() + "/README.md",
                  "---\nlicense: other\nlicense_link: LICENSE\nbase_model: not/this\n---\nOld\n");
  RunOptions options = fixture.best_options();
  options.card = Json::object().set("base_model", "org/name");
  options.held_out_windows = 2;
  const DryRun dry = dry_run(options);

  const RunResult result = fixture.run(options);

  const std::string card = read_text_file(options.out + "/README.md");
  EXPECT_THAT(card, testing::StartsWith("---\n"
                                        "base_model: org/name\n"
                                        "base_model_relation: quantized\n"
                                        "license: other\n"
                                        "license_link: LICENSE\n"
                                        "library_name: transformers\n"
                                        "pipeline_tag: text-generation\n"
                                        "tags:\n- compressed-tensors\n- w4a16\n"
                                        "model-index:\n- name: W4A16_ASYM\n"));
  const Json& held_out = result.layers.back().held_out;
  for (const std::string& part :
       {result.calibration_sha256, card_figure(held_out.at("kld_windows").at("mean").as_number()),
        card_figure(held_out.at("delta_nll_windows").at("mean").as_number()),
        std::string("--target-alpha 0.75"), std::string("--held-out 2"),
        std::string("--windows 4 --window-length 16")}) {
    EXPECT_THAT(card, HasSubstr(part));
  }
  for (const OutputFile& file : result.files) {
    if (file.name == "model.safetensors") {
      EXPECT_THAT(card, HasSubstr(file.sha256));
    }
  }
  EXPECT_THAT(card, testing::Not(testing::AnyOf(HasSubstr("Old"), HasSubstr(fixture.path("")))));
  EXPECT_EQ(dry.estimate.output_bytes, result.output_bytes);
}

TEST(Quantize, TheCardOfARunWithoutAComparisonHasNoFigures) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  options.calibration.clear();
  options.quantize.algorithm = "rtn";
  options.quantize.scale_search = ScaleSearch::kMinMax;
  fixture.run(options);

  const std::string card = read_text_file(options.out + "/README.md");

  EXPECT_THAT(card, testing::AllOf(HasSubstr("did not compare"), HasSubstr("| calibration | none"),
                                   testing::Not(HasSubstr("model-index")),
                                   testing::Not(HasSubstr("base_model"))));
}

TEST(Quantize, AnotherCardIsAnotherRun) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  fixture.run(options);
  options.resume = true;
  EXPECT_TRUE(fixture.run(options).was_complete);

  options.card = Json::object().set("license", "mit");

  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(options); }), HasSubstr("option card"));
}

// Scored by another way: the written folder and the model, loaded as any model is.
TEST(Quantize, HeldOutFiguresAreThoseOfTheWrittenModel) {
  const QuantizeRun fixture;
  for (const bool two_streams : {true, false}) {
    RunOptions options = two_streams ? fixture.best_options() : fixture.options();
    options.held_out_windows = 2;
    options.force = true;
    options.report = fixture.path("report.json");
    const RunResult result = fixture.run(options);
    EXPECT_EQ(result.n_windows, 4);
    EXPECT_EQ(result.n_held_out, 2);

    const auto device = make_cpu_device();
    const auto plain = device->load(Checkpoint::open(fixture.model()), {});
    const auto quantized = device->load(Checkpoint::open(options.out), {});
    const TokenWindows all =
        load_calibration(fixture.tokens(), {}, 320, [] { return TextEncoder{}; });
    NllComparer comparer;
    for (const int64_t w : {4, 5}) {
      comparer.add(
          {score_window(*plain, all.window(w)), score_window(*quantized, all.window(w)), {}});
    }
    const NllComparison expected = comparer.finish();
    const Json held_out = read_json_file(options.report).at("held_out");

    EXPECT_EQ(held_out.at("n_scored").as_integer(), 30);
    EXPECT_EQ(held_out.at("delta_nll").as_number(), expected.delta);
    EXPECT_EQ(held_out.at("mean_nll_a").as_number(), expected.mean_a);
    EXPECT_EQ(held_out.at("top1_agreement").as_number(), expected.top1_agreement);
    EXPECT_GT(held_out.at("kld").as_number(), 0.0);
    EXPECT_FALSE(held_out.at("buckets").as_array().empty());
  }
}

TEST(Quantize, HeldOutWindowsThatCannotBeAreRefused) {
  const QuantizeRun fixture;
  RunOptions options = fixture.best_options();
  const auto refused = [&] { return message_of<UsageError>([&] { fixture.run(options); }); };

  options.per_module = PerModule::kAlpha;
  EXPECT_THAT(refused(), HasSubstr("--held-out N"));
  options.held_out_windows = 6;
  EXPECT_THAT(refused(), HasSubstr("has 6 windows"));
  options.held_out_windows = 2;
  options.capture = CaptureMode::kLayer;
  EXPECT_THAT(refused(), HasSubstr("--capture sequential"));
  options.capture = CaptureMode::kTrueSequential;
  options.overrides = {{{"*no_such_proj"}, Json::object().set("damp_percent", 0.1)}};
  EXPECT_THAT(refused(), HasSubstr("\"*no_such_proj\""));
  options.overrides = {{{}, Json::object().set("target_alpha", 1.5)}};
  EXPECT_THAT(refused(), HasSubstr("1.5"));
}

TEST(Quantize, PerModuleTakesTheSmallestDistanceOnHeldOutWindows) {
  const QuantizeRun fixture;
  for (const PerModule what : {PerModule::kAlpha, PerModule::kDamp}) {
    RunOptions options = fixture.best_options();
    options.held_out_windows = 2;
    options.per_module = what;
    options.force = true;

    const RunResult result = fixture.run(options);

    for (const LayerReport& layer : result.layers) {
      for (const ModuleReport& module : layer.modules) {
        const auto& tried = module.choice.at("tried").as_array();
        const char* name = what == PerModule::kAlpha ? "target_alpha" : "damp_percent";
        ASSERT_EQ(tried.size(), what == PerModule::kAlpha ? 4u : 5u);
        const auto best =
            std::min_element(tried.begin(), tried.end(), [](const Json& a, const Json& b) {
              return a.at("held_out_distance").as_number() < b.at("held_out_distance").as_number();
            });
        EXPECT_EQ(module.choice.at(name), best->at(name)) << module.module;
      }
    }
  }
}

TEST(Quantize, ResumesWithHeldOutWindows) {
  const QuantizeRun fixture;
  RunOptions options = fixture.best_options();
  options.held_out_windows = 2;
  const RunResult whole = fixture.run(options);
  const auto expected = QuantizeRun::contents(options.out);
  options.force = true;
  EXPECT_THROW(run_quantization(options, {.stop_requested = [] { return true; }}), StoppedError);
  options.force = false;
  options.resume = true;
  std::filesystem::remove_all(options.out);

  const RunResult resumed = fixture.run(options);

  EXPECT_EQ(resumed.n_layers_resumed, 1);
  EXPECT_EQ(QuantizeRun::contents(options.out), expected);
  EXPECT_EQ(resumed.layers.back().held_out, whole.layers.back().held_out);
}

TEST(Quantize, MeasuresThePlainRecipeWithoutAChange) {
  const QuantizeRun fixture;
  RunOptions options = fixture.best_options();
  options.quantize.target_alpha = options.quantize.residual_alpha = 0.0;
  options.quantize.sensitivity_windows = 0;
  options.quantize.measure_plain = true;

  const RunResult result = fixture.run(options);

  for (const ModuleReport& module : result.layers[0].modules) {
    ASSERT_TRUE(module.plain_loss.has_value());
    EXPECT_LT(module.loss, *module.plain_loss) << module.module;
    EXPECT_LT(*module.plain_loss, module.rtn_loss) << module.module;
  }
}

void expect_same_bytes(const QuantizeRun& fixture, RunOptions options) {
  options.force = true;
  fixture.run(options);
  const auto expected = QuantizeRun::contents(options.out);
  const int threads_before = n_threads();
  test::with_every_isa([&] {
    for (const int threads : {1, 4}) {
      set_n_threads(threads);
      options.batch_tokens = threads == 1 ? 1 : 64;
      options.quantize.solve_block_size = threads == 1 ? 1 : 1000;
      options.activation_memory = threads == 1 ? 0 : uint64_t{1} << 30;
      fixture.run(options);

      EXPECT_EQ(QuantizeRun::contents(options.out), expected);
    }
  });
  set_n_threads(threads_before);
}

TEST(Quantize, Case_B44_SameBytesForEveryIsaThreadsBatchBlockAndSpill) {
  const QuantizeRun fixture;

  expect_same_bytes(fixture, fixture.options());
}

TEST(Quantize, Case_B44_SameBytesWithAllStepsOfTheBestRecipe) {
  const QuantizeRun fixture;

  expect_same_bytes(fixture, fixture.best_options());
}

TEST(Quantize, StepsAfterTheColumnLoopLowerTheLoss) {
  const QuantizeRun fixture({.n_layers = 1});
  RunOptions options = fixture.options();
  const RunResult plain = fixture.run(options);
  options.force = true;
  options.quantize.refit_rounds = 3;
  options.quantize.descent_passes = 1;

  const RunResult refined = fixture.run(options);

  double plain_loss = 0.0;
  double refined_loss = 0.0;
  for (size_t i = 0; i < 7; ++i) {
    plain_loss += plain.layers[0].modules[i].relative_loss();
    refined_loss += refined.layers[0].modules[i].relative_loss();
    ASSERT_TRUE(refined.layers[0].modules[i].steps.has_value());
    EXPECT_GE(refined.layers[0].modules[i].steps->refit, 0.0);
    EXPECT_GE(refined.layers[0].modules[i].steps->descent, 0.0);
  }
  EXPECT_LT(refined_loss, plain_loss);
}

// The first linears of the first layer see the same inputs in both streams.
TEST(Quantize, OutputDistanceIsKnownWhereTheStreamsDiffer) {
  const QuantizeRun fixture;

  const RunResult result = fixture.run(fixture.best_options());

  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t i = 0; i < 7; ++i) {
      const ModuleReport& module = result.layers[layer].modules[i];
      EXPECT_EQ(module.output_distance.has_value(), layer > 0 || i >= 3) << module.module;
    }
  }
}

TEST(Quantize, ManifestNamesTheValuesOfAllSteps) {
  const QuantizeRun fixture;
  const RunOptions options = fixture.best_options();
  fixture.run(options);

  const Json fingerprint = read_json_file(options.out + "/assay_manifest.json").at("fingerprint");

  EXPECT_EQ(fingerprint.at("option target_alpha").as_number(), options.quantize.target_alpha);
  EXPECT_EQ(fingerprint.at("option refit_rounds").as_integer(), options.quantize.refit_rounds);
  EXPECT_EQ(fingerprint.at("option descent_passes").as_integer(), 1);
  EXPECT_EQ(fingerprint.at("option scales").as_string(), "grid");
}

// Two streams with the layer's own 16-bit weights: a third walk beside them.
TEST(Quantize, BestRecipeRunsWithInputsFromTheLayersOwnWeights) {
  const QuantizeRun fixture;
  RunOptions options = fixture.best_options();
  options.capture = CaptureMode::kLayer;

  const RunResult result = fixture.run(options);

  ASSERT_EQ(result.layers.size(), 2u);
  EXPECT_TRUE(result.layers[1].modules[0].output_distance.has_value());
  EXPECT_NO_THROW(Checkpoint::open(options.out));
}

TEST(Quantize, DryRunKnowsTheExactSize) {
  for (const uint64_t shard_bytes : {uint64_t{5'000'000'000}, uint64_t{60'000}}) {
    const QuantizeRun fixture;
    RunOptions options = fixture.options();
    options.max_shard_bytes = shard_bytes;
    const DryRun dry = dry_run(options);
    EXPECT_FALSE(file_exists(options.out));

    const RunResult result = fixture.run(options);

    EXPECT_EQ(dry.estimate.output_bytes, result.output_bytes);
    ASSERT_EQ(dry.estimate.files.size(), result.files.size());
    for (size_t i = 0; i < result.files.size(); ++i) {
      EXPECT_EQ(dry.estimate.files[i].name, result.files[i].name);
      EXPECT_EQ(dry.estimate.files[i].bytes, result.files[i].bytes);
      EXPECT_EQ(std::filesystem::file_size(options.out + "/" + result.files[i].name),
                result.files[i].bytes);
    }
    EXPECT_EQ(dry.n_linears, 14);
    EXPECT_EQ(dry.n_windows * dry.window_length, 96);
  }
}

TEST(Quantize, ManifestHashesEveryFileAndTensor) {
  const QuantizeRun fixture;
  const RunOptions options = fixture.options();
  const RunResult result = fixture.run(options);

  const Json manifest = read_json_file(options.out + "/assay_manifest.json");
  EXPECT_EQ(manifest.at("files").as_object().size(), result.files.size() - 1);
  for (const auto& [name, file] : manifest.at("files").as_object()) {
    EXPECT_EQ(file.at("sha256").as_string(), sha256_of_file(options.out + "/" + name)) << name;
  }
  const auto model = SafetensorsModel::open(options.out);
  EXPECT_EQ(manifest.at("tensors").as_object().size(), model.names().size());
  for (const auto& [name, tensor] : manifest.at("tensors").as_object()) {
    EXPECT_EQ(tensor.at("sha256").as_string(), sha256_hex(model.find(name)->view.bytes)) << name;
  }
  EXPECT_EQ(manifest.at("calibration").at("n_tokens").as_integer(), 96);
  EXPECT_EQ(manifest.at("assay").at("arithmetic").as_string(), "canonical-1");
}

TEST(Quantize, Case_B46_CompanionsAreByteForByteThoseOfTheModel) {
  const QuantizeRun fixture;
  write_text_file(fixture.model() + "/chat_template.jinja", "{{ messages }}\n");
  write_text_file(fixture.model() + "/generation_config.json", "{ \"eos_token_id\": [1]}");
  write_text_file(fixture.model() + "/LICENSE.txt", "do as you like");
  write_text_file(fixture.model() + "/modeling.py", "import os");
  RunOptions options = fixture.options();
  options.dataset.max_tokens = 64;

  const RunResult result = fixture.run(options);

  EXPECT_EQ(result.n_windows * result.window_length, 64);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "LICENSE.txt"}) {
    EXPECT_EQ(read_text_file(options.out + "/" + name),
              read_text_file(fixture.model() + "/" + name))
        << name;
  }
  EXPECT_FALSE(file_exists(options.out + "/modeling.py"));
}

TEST(Quantize, ConfigGainsOneMemberAndLosesNoByte) {
  const QuantizeRun fixture;
  const RunOptions options = fixture.options();
  fixture.run(options);

  const std::string before = read_text_file(fixture.model() + "/config.json");
  const std::string after = read_text_file(options.out + "/config.json");
  const size_t same = static_cast<size_t>(
      std::mismatch(before.begin(), before.end(), after.begin()).first - before.begin());
  EXPECT_EQ(before.substr(same), after.substr(after.size() - (before.size() - same)));
  const Json config = parse_json(after, "config.json").at("quantization_config");
  EXPECT_EQ(config.at("ignore").as_array().front().as_string(), "lm_head");
  EXPECT_FALSE(config.at("config_groups").at("group_0").at("weights").at("symmetric").as_bool());
}

TEST(Quantize, Case_B59_UnquantizedTensorsKeepTypeAndBytes) {
  const QuantizeRun fixture({.attention_bias = true});
  const RunOptions options = fixture.options();
  fixture.run(options);

  const auto source = SafetensorsModel::open(fixture.model());
  const auto quantized = SafetensorsModel::open(options.out);
  int n_kept = 0;
  for (const std::string& name : source.names()) {
    const SafetensorsEntry* kept = quantized.find(name);
    if (kept == nullptr) {
      EXPECT_NE(quantized.find(name + "_packed"), nullptr) << name;
      continue;
    }
    ++n_kept;
    EXPECT_EQ(kept->view.dtype, source.find(name)->view.dtype) << name;
    EXPECT_TRUE(std::ranges::equal(kept->view.bytes, source.find(name)->view.bytes)) << name;
  }
  EXPECT_EQ(n_kept, 3 + 2 * (2 + 4));  // embedding, norm, head; norms and biases of two layers
}

TEST(Quantize, SkippedLinearsStayAndAreNamedInTheConfig) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  options.skip = {"*.1.mlp.down_proj", "model.layers.0.self_attn.*"};
  const RunResult result = fixture.run(options);

  EXPECT_EQ(result.layers[0].modules.size(), 3u);
  EXPECT_EQ(result.layers[1].modules.size(), 6u);
  const auto model = SafetensorsModel::open(options.out);
  EXPECT_NE(model.find("model.layers.1.mlp.down_proj.weight"), nullptr);
  EXPECT_THAT(read_text_file(options.out + "/config.json"),
              HasSubstr("\"model.layers.1.mlp.down_proj\""));
  EXPECT_NO_THROW(Checkpoint::open(options.out));
  options.skip = {"*.no_such_linear"};
  options.force = true;
  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(options); }), HasSubstr("*.no_such_linear"));
}

TEST(Quantize, GptqFoldersHoldTheSameNumbers) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  options.quantize.symmetric = true;
  options.layout = "gptq";
  fixture.run(options);

  const auto checkpoint = Checkpoint::open(options.out);
  EXPECT_EQ(checkpoint->format().name, "GPTQ");
  EXPECT_LT(relative_difference(weights_of(*checkpoint, Role::kUpProj, 1),
                                weights_of(*Checkpoint::open(fixture.model()), Role::kUpProj, 1)),
            0.2);
  EXPECT_EQ(read_json_file(options.out + "/quantize_config.json"),
            read_json_file(options.out + "/config.json").at("quantization_config"));
  options.quantize.symmetric = false;
  options.force = true;
  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(options); }), HasSubstr("symmetric"));
}

TEST(Quantize, CaptureModesGiveDifferentResults) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  fixture.run(options);
  const auto sequential = QuantizeRun::contents(options.out);
  options.force = true;

  options.capture = CaptureMode::kLayer;
  fixture.run(options);
  const auto layer = QuantizeRun::contents(options.out);
  options.quantize.propagate = false;
  options.capture = CaptureMode::kTrueSequential;
  fixture.run(options);
  const auto plain = QuantizeRun::contents(options.out);

  const std::string tensors = "model.safetensors";
  EXPECT_NE(layer.at(tensors), sequential.at(tensors));
  EXPECT_NE(plain.at(tensors), sequential.at(tensors));
  EXPECT_NE(plain.at(tensors), layer.at(tensors));
}

// The first layer sees the same inputs whether later layers are propagated to or not.
TEST(Quantize, CapturedFirstLayerEqualsThatOfThePlainStream) {
  const QuantizeRun fixture({.n_layers = 1});
  RunOptions options = fixture.options();
  options.capture = CaptureMode::kLayer;
  fixture.run(options);
  const auto captured = QuantizeRun::contents(options.out);
  options.quantize.propagate = false;
  options.force = true;

  fixture.run(options);

  EXPECT_EQ(QuantizeRun::contents(options.out).at("model.safetensors"),
            captured.at("model.safetensors"));
}

TEST(Quantize, Case_B30_AFailedFactorNamesTheModuleAndLeavesNoFolder) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  options.dataset.n_windows = 1;  // 16 tokens, 64 columns
  options.quantize.damp_percent = 0.0;

  const std::string message = message_of<NumericError>([&] { fixture.run(options); });

  EXPECT_THAT(message, HasSubstr("model.layers.0.self_attn.q_proj"));
  EXPECT_THAT(message, HasSubstr("16 calibration tokens"));
  EXPECT_FALSE(file_exists(options.out));
  options.quantize.damp_retries = {0.05};
  options.force = true;
  EXPECT_EQ(fixture.run(options).layers[0].modules[0].damp_percent, 0.05);
}

TEST(Quantize, Case_B32_InputsThatAreAllZeroAreRefused) {
  const QuantizeRun fixture;
  auto model = test::make_tiny_model();
  auto& norm = model.tensor("model.layers.1.input_layernorm.weight").bytes;
  std::fill(norm.begin(), norm.end(), std::byte{0});
  model.write(fixture.model());

  const std::string message = message_of<NumericError>([&] { fixture.run(fixture.options()); });

  EXPECT_THAT(message, HasSubstr("model.layers.1.self_attn.q_proj"));
  EXPECT_THAT(message, HasSubstr("zero"));
  EXPECT_FALSE(file_exists(fixture.path("out")));
}

TEST(Quantize, Case_B38_EveryLinearThatDoesNotDivideIsListedBeforeAnyWork) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  options.quantize.group_size = 64;  // 96 columns of down_proj

  const std::string message = message_of<UsageError>([&] { fixture.run(options); });

  EXPECT_THAT(message, HasSubstr("2 linears do not fit"));
  EXPECT_THAT(message, HasSubstr("model.layers.0.mlp.down_proj (64 × 96)"));
  EXPECT_THAT(message, HasSubstr("model.layers.1.mlp.down_proj (64 × 96)"));
  EXPECT_FALSE(file_exists(options.out));
  EXPECT_FALSE(file_exists(options.out + ".state"));
}

// One column a hundred times larger: it is decided first, and stands where it stood.
TEST(Quantize, Case_B40_ActivationOrderLeavesColumnsInTheirPlaces) {
  const QuantizeRun fixture;
  auto model = test::make_tiny_model();
  auto& norm = model.tensor("model.layers.0.input_layernorm.weight").bytes;
  const uint16_t large = f32_to_bf16(100.0f);
  std::memcpy(norm.data() + 2 * 17, &large, sizeof(large));
  model.write(fixture.model());
  RunOptions options = fixture.options();
  options.quantize.scale_search = ScaleSearch::kMinMax;

  fixture.run(options);

  const auto source = weights_of(*Checkpoint::open(fixture.model()), Role::kQProj, 0);
  const auto quantized = weights_of(*Checkpoint::open(options.out), Role::kQProj, 0);
  for (size_t row = 0; row < 64; ++row) {
    float largest = 0.0f;
    for (size_t j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(source[row * 64 + j]));
    // First in order, so plainly rounded: within half a step of its group.
    EXPECT_LE(std::fabs(quantized[row * 64 + 17] - source[row * 64 + 17]), 2.0f * largest / 15.0f);
  }
  EXPECT_EQ(
      SafetensorsModel::open(options.out).find("model.layers.0.self_attn.q_proj.weight_g_idx"),
      nullptr);
}

TEST(Quantize, Case_B82_AnOutputThatCannotBeWrittenIsRefusedBeforeAnyWork) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  write_text_file(fixture.path("file"), "not a folder");
  options.out = fixture.path("file") + "/out";

  EXPECT_THAT(message_of<FileError>([&] { fixture.run(options); }), HasSubstr("file"));
}

TEST(Quantize, RefusesToReplaceUnlessForced) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  fixture.run(options);

  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(options); }), HasSubstr("--force"));
  options.force = true;
  EXPECT_NO_THROW(fixture.run(options));
}

TEST(Quantize, RefusesAModelThatIsQuantizedAlready) {
  const QuantizeRun fixture;
  RunOptions options = fixture.options();
  fixture.run(options);
  options.model = options.out;
  options.out = fixture.path("again");

  EXPECT_THROW(fixture.run(options), UnsupportedError);
}

TEST(Quantize, WindowsLongerThanTheContextAreRefused) {
  const QuantizeRun fixture({.config = {{"max_position_embeddings", 8}}});

  EXPECT_THAT(message_of<UsageError>([&] { fixture.run(fixture.options()); }),
              HasSubstr("context is 8"));
}

TEST(Quantize, Case_B85_ProgressRisesToItsEnd) {
  const QuantizeRun fixture;
  double last = 0.0;
  double share = 0.0;
  int n_modules = 0;
  const RunEvents events{.on_module = [&](const ModuleReport&) { ++n_modules; },
                         .on_progress =
                             [&](double done, double total, std::string_view label) {
                               if (label == "writing") return;
                               EXPECT_GE(done, last - 1e-12);
                               EXPECT_LE(done, total * (1 + 1e-9));
                               last = done;
                               share = done / total;
                             }};

  run_quantization(fixture.options(), events);

  EXPECT_EQ(n_modules, 14);
  EXPECT_NEAR(share, 1.0, 1e-9);
}

// ---------------------------------------------------------------- stopping and going on

class Resume : public testing::Test {
 protected:
  Resume() : fixture_({.n_layers = 4}) {
    RunOptions options = fixture_.best_options();
    options.out = fixture_.path("whole");
    fixture_.run(options);
    expected_ = QuantizeRun::contents(options.out);
  }

  /// Runs until `n` layers are done.
  void stop_after(int n, const RunOptions& options) const {
    int asked = 0;
    const RunEvents events{.stop_requested = [&] { return ++asked == n; }};
    EXPECT_THROW(run_quantization(options, events), StoppedError);
    EXPECT_FALSE(file_exists(options.out));
  }

  QuantizeRun fixture_;
  std::map<std::string, std::string> expected_;
};

TEST_F(Resume, Case_B84_AResumedRunGivesTheBytesOfAnUninterruptedOne) {
  for (int n = 1; n <= 3; ++n) {
    RunOptions options = fixture_.best_options();
    options.out = fixture_.path("out" + std::to_string(n));
    stop_after(n, options);
    options.resume = true;

    const RunResult result = fixture_.run(options);

    EXPECT_EQ(result.n_layers_resumed, n);
    EXPECT_EQ(result.layers.size(), 4u);
    EXPECT_EQ(QuantizeRun::contents(options.out), expected_);
  }
}

TEST_F(Resume, EveryLayerMayBeAProcessOfItsOwn) {
  RunOptions options = fixture_.best_options();
  options.resume = true;
  for (int n = 0; n < 3; ++n) stop_after(1, options);

  fixture_.run(options);

  EXPECT_EQ(QuantizeRun::contents(options.out), expected_);
}

TEST_F(Resume, Case_B84_ADifferentTokenIsRefusedByName) {
  RunOptions options = fixture_.best_options();
  stop_after(2, options);
  NpyIntegers tokens = read_npy_integers(fixture_.tokens());
  std::vector<int32_t> ids(tokens.values.begin(), tokens.values.end());
  ids[40] += 1;
  write_npy_int32(fixture_.tokens(), tokens.shape, ids);
  options.resume = true;

  EXPECT_THAT(message_of<UsageError>([&] { fixture_.run(options); }),
              HasSubstr("calibration token_ids_sha256"));
}

TEST_F(Resume, ADifferentOptionOrModelIsRefusedByName) {
  RunOptions options = fixture_.best_options();
  stop_after(2, options);
  options.resume = true;
  RunOptions other = options;
  other.quantize.damp_percent = 0.02;
  EXPECT_THAT(message_of<UsageError>([&] { fixture_.run(other); }),
              HasSubstr("option damp_percent: found 0.01, expected 0.02"));
  test::make_tiny_model({.n_layers = 4, .seed = 9}).write(fixture_.model());

  EXPECT_THAT(message_of<UsageError>([&] { fixture_.run(options); }),
              HasSubstr("model model.safetensors"));
}

TEST_F(Resume, AnInterruptedRunIsNotOverwrittenUnasked) {
  RunOptions options = fixture_.best_options();
  stop_after(1, options);

  EXPECT_THAT(message_of<UsageError>([&] { fixture_.run(options); }), HasSubstr("--resume"));
  options.force = true;
  fixture_.run(options);

  EXPECT_EQ(QuantizeRun::contents(options.out), expected_);
}

TEST_F(Resume, DamagedStateIsNoticed) {
  for (const char* name : {"stream-00002-0.f32", "stream-00002-1.f32", "layer-00001.safetensors"}) {
    RunOptions options = fixture_.best_options();
    options.out = fixture_.path(name);
    stop_after(2, options);
    const std::string path = options.out + ".state/" + name;
    std::string bytes = read_text_file(path);
    bytes[bytes.size() / 2] ^= 4;
    write_text_file(path, bytes);
    options.resume = true;

    EXPECT_THAT(message_of<FormatError>([&] { fixture_.run(options); }), HasSubstr(name));
  }
}

TEST_F(Resume, AStateThatCannotBeIsRefused) {
  const std::pair<const char*, const char*> changes[] = {
      {"layer-00001.safetensors", "../model.safetensors"},
      {"stream-00002-0.f32", "/dev/zero"},
      {"\"checksum\":\"", "\"checksum\":\"x"},
      {"\"registers\":[", "\"registers\":[-1,"},
      {"\"registers\":[", "\"registers\":[99999,"},
      {"\"registers\":[", "\"registers\":[],\"more\":["},
      {"\"streams\":[", "\"streams\":[],\"more\":["},
      {"\"layers\":[", "\"layers\":[0,"},
  };
  RunOptions options = fixture_.options();
  options.out = fixture_.path("impossible");
  stop_after(2, options);
  options.resume = true;
  const std::string path = options.out + ".state/state.json";
  const std::string good = read_json_file(path).dump(0);
  for (const auto& [from, to] : changes) {
    std::string changed = good;
    changed.replace(changed.find(from), std::strlen(from), to);
    write_text_file(path, changed);

    EXPECT_THAT(message_of<FormatError>([&] { fixture_.run(options); }), HasSubstr("state.json"))
        << to;
  }
}

TEST_F(Resume, ACompleteResultIsLeftAlone) {
  RunOptions options = fixture_.best_options();
  options.out = fixture_.path("whole");
  options.resume = true;

  EXPECT_TRUE(fixture_.run(options).was_complete);

  options.quantize.damp_percent = 0.5;
  EXPECT_THAT(message_of<UsageError>([&] { fixture_.run(options); }),
              HasSubstr("option damp_percent"));
}

TEST_F(Resume, ResumeWithoutAStateBegins) {
  RunOptions options = fixture_.best_options();
  options.resume = true;

  fixture_.run(options);

  EXPECT_EQ(QuantizeRun::contents(options.out), expected_);
}

}  // namespace
}  // namespace assay
