// Verification of real models: small ones made from seeds, and the same with one thing wrong. Every
// fault must be found, and located.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/gguf.h"
#include "tests/support/shared_data.h"
#include "tests/verify/models_fixture.h"
#include "verify/equivalence_output.h"
#include "verify/weights.h"

namespace assay {
namespace {

using test::Models;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kDown = "model.layers.1.mlp.down_proj";

TEST_F(Models, AreCalledWhatTheyAreStoredAs) {
  const auto kind_of = [&](void (*quantize)(test::TinyModel&, const test::TinyQuantization&),
                           const std::string& name) {
    test::TinyModel model = test::make_tiny_model();
    quantize(model, {.symmetric = false, .scale_dtype = DType::kF16});
    return Side::open(write(model, name)).kind_name();
  };

  EXPECT_EQ(Side::open(good()).kind_name(), "Hugging Face folder");
  EXPECT_EQ(kind_of(test::quantize_as_compressed_tensors, "ct"), "compressed-tensors folder");
  EXPECT_EQ(kind_of(test::quantize_as_gptq, "gptq"), "GPTQ folder");
  EXPECT_EQ(kind_of(test::quantize_as_awq, "awq"), "AWQ folder");
}

TEST_F(Models, AreEqualToTheirCopyInEveryCheck) {
  const std::string a = good(), b = write(test::make_tiny_model(), "copy", /*n_shards=*/2);
  EquivalenceOptions options;
  options.tokens.text_file = folder_.write("text.txt", std::string(900, 'a') + "\nSome words.\n");
  options.tokens.window_length = 100;
  options.tokens.n_windows = 3;

  const EquivalenceReport report = compare(a, b, options);

  EXPECT_TRUE(report.policy.bitwise);
  for (const Check& check : report.checks) {
    EXPECT_EQ(check.outcome, Outcome::kEqual) << check.name << ": " << check.summary;
  }
  EXPECT_EQ(report.checks.size(), 7u);
  EXPECT_THAT(report.windows, HasSubstr("BOS 0 overwrites the first id of each window"));
}

// Weights are no more than numbers: what is computed with them must be the same, too.
TEST_F(Models, DifferInSettingsThatNoTensorShows) {
  const auto difference = [&](const std::string& family, const std::string& key,
                              const Json& value) {
    test::TinyModel model = test::read_model(test::family_model_path(family));
    model.config.set(key, value);
    EquivalenceOptions options;
    options.logits = options.greedy = options.self_equality = false;
    const EquivalenceReport report =
        compare(test::family_model_path(family), write(model, family + "-" + key), options);
    EXPECT_FALSE(report.equal()) << key;
    return report.checks.front().details.empty() ? "" : report.checks.front().details.front();
  };

  EXPECT_THAT(difference("qwen3_moe", "norm_topk_prob", false),
              HasSubstr("layer 0: expert weights divided by their sum: true against false"));
  EXPECT_THAT(difference("gemma4", "final_logit_softcapping", 20.0),
              HasSubstr("softcap of the logits: 30 against 20"));
}

TEST_F(Models, HaveTheSettingsOfTheirGgufFiles) {
  for (const std::string& family : test::family_models()) {
    test::TinyModel model = test::read_model(test::family_model_path(family));
    model.tokenizer_json = test::piece_tokenizer_json();
    const std::string folder = write(model, family);
    const auto a = Checkpoint::open(folder), b = Checkpoint::open(gguf(folder, family + ".gguf"));

    EXPECT_THAT(compare_specs(a->spec(), b->spec()), testing::IsEmpty()) << family;
  }
}

TEST_F(Models, OfOtherShapesHaveNoRootMeanSquare) {
  const std::string a = good(), b = write(test::make_tiny_model({.hidden_size = 128}), "wide");

  const std::string summary = compare(a, b).checks.front().summary;

  EXPECT_THAT(summary, AllOf(HasSubstr("tensors differ"), HasSubstr("cannot be compared"),
                             Not(HasSubstr("rms"))));
}

TEST_F(Models, AreFedATextByTheirTokenizerModel) {
  test::TinyModel model = test::make_tiny_model({.vocab_size = 4096});
  model.tokenizer_json.clear();
  model.tokenizer_config_json.clear();
  const std::string a = write(model, "pieces");
  write_text_file(a + "/tokenizer.model",
                  read_text_file(test::source_path("tests/data/pieces/bpe.model")));
  EquivalenceOptions options;
  options.tokens.text_file = folder_.write("text.txt", "Some words, and then some more.");

  const EquivalenceReport report = compare(a, a, options);

  EXPECT_EQ(find(report, "nll").outcome, Outcome::kEqual);
}

TEST_F(Models, AreNotReadWhereTheOptionsAreWrong) {
  Side a = Side::open(good()), b = Side::open(write(test::make_tiny_model(), "copy"));
  EquivalenceOptions missing, both;
  missing.tokens.text_file = folder_.file("nothing");
  EquivalenceOptions bytes;
  bytes.tokens.text_file = folder_.write("bytes", "a text \xff");
  both.policy.bitwise = true;
  both.policy.max_logit_difference = 0.5;
  const auto begin = [](double, std::string_view) { throw StoppedError("work has begun"); };

  EXPECT_THROW(verify_equivalence(a, b, missing, begin), FileError);
  EXPECT_THROW(verify_equivalence(a, b, bytes, begin), FormatError);
  EXPECT_THROW(verify_equivalence(a, b, both, begin), UsageError);
}

TEST_F(Models, ArePlannedByADryRunThatRunsNothing) {
  const std::string a = good(), b = quantized("quantized");
  const std::string text = folder_.write("text.txt", std::string(900, 'a') + "\nSome words.\n");

  const cli::RunResult run = this->run({a, b, "--text", text, "--windows", "2", "--window-length",
                                        "100", "--skip", "greedy", "--dry-run", "--json"});

  ASSERT_EQ(run.exit_code, 0) << run.error;
  const Json plan = parse_json(run.out, "plan");
  std::vector<std::string> checks;
  for (const Json& check : plan.at("checks").as_array()) checks.push_back(check.as_string());
  EXPECT_THAT(checks, ElementsAre("weights", "tokenizer", "logits", "nll", "self-equality A",
                                  "self-equality B"));
  EXPECT_THAT(plan.at("windows").as_string(), HasSubstr("2 windows of 100 tokens"));
  EquivalenceOptions options;
  options.tokens.text_file = text;
  options.tokens.n_windows = 2;
  options.tokens.window_length = 100;
  options.greedy = false;
  Side side_a = Side::open(a), side_b = Side::open(b);
  verify_equivalence(side_a, side_b, options);
  uint64_t measured = 0;
  for (Side* side : {&side_a, &side_b}) {
    for (const LedgerItem& item : side->executor().ledger()) measured += item.bytes;
  }
  EXPECT_EQ(static_cast<uint64_t>(plan.at("memory_bytes").as_integer()), measured);
}

TEST_F(Models, WithOneFlippedBitAreFoundAndLocated) {
  test::TinyModel model = test::make_tiny_model();
  Tensor& tensor = model.tensor(std::string(kDown) + ".weight");
  // Row 5, column 7 of (hidden_size, intermediate_size) bf16: the lowest exponent bit.
  const size_t at = static_cast<size_t>(5 * tensor.shape[1] + 7) * 2;
  tensor.bytes[at] ^= std::byte{0x80};

  const EquivalenceReport report = compare(good(), write(model, "flipped"));

  EXPECT_FALSE(report.equal());
  const Check& weights = find(report, "weights");
  EXPECT_EQ(weights.outcome, Outcome::kDifferent);
  ASSERT_EQ(weights.details.size(), 1u);
  EXPECT_THAT(weights.details[0], AllOf(HasSubstr("model.layers.1.mlp.down_proj.weight: 1 of"),
                                        HasSubstr("first at row 5, column 7")));
  const Json& location = find(report, "logits").data.at("location");
  EXPECT_EQ(location.at("module").as_string(), kDown);
  EXPECT_EQ(location.at("layer").as_integer(), 1);
  EXPECT_EQ(location.at("index").as_integer(), 5);
  EXPECT_THAT(location.at("weight").as_string(), HasSubstr("weight row 5, column 7"));
}

TEST_F(Models, WithTwoSwappedScalesAreFoundAndLocated) {
  test::TinyModel model = test::make_tiny_model();
  test::quantize_as_compressed_tensors(model, {});
  Tensor& scales = model.tensor("model.layers.0.self_attn.k_proj.weight_scale");
  // Groups 0 and 1 of row 3.
  const auto n_groups = static_cast<size_t>(scales.shape[1]);
  ASSERT_GE(n_groups, 2u);
  std::byte* row = &scales.bytes[3 * n_groups * 2];
  ASSERT_NE(std::memcmp(row, row + 2, 2), 0);
  std::swap_ranges(row, row + 2, row + 2);

  const EquivalenceReport report = compare(quantized("good"), write(model, "swapped"));

  const Check& weights = find(report, "weights");
  EXPECT_EQ(weights.outcome, Outcome::kDifferent);
  ASSERT_EQ(weights.details.size(), 1u);
  EXPECT_THAT(weights.details[0],
              AllOf(HasSubstr("self_attn.k_proj"), HasSubstr("in 1 rows differ"),
                    HasSubstr("first at row 3, column "), HasSubstr("(group 0)")));
  const Json& location = find(report, "logits").data.at("location");
  EXPECT_EQ(location.at("module").as_string(), "model.layers.0.self_attn.k_proj");
  EXPECT_EQ(location.at("index").as_integer(), 3);
}

TEST_F(Models, WithADroppedShardAreRefusedByName) {
  const std::string path = write(test::make_tiny_model(), "sharded", /*n_shards=*/2);
  std::filesystem::remove(path + "/model-00002-of-00002.safetensors");

  const cli::RunResult result = run({good(), path});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_EQ(result.out, "");
}

TEST_F(Models, WithAnotherTokenizerAreNotComparedOverAText) {
  test::TinyModel model = test::make_tiny_model();
  Json tokenizer = parse_json(model.tokenizer_json, "tokenizer.json");
  Json merges = tokenizer.at("model").at("merges");
  merges.as_array().resize(1);
  Json bpe = tokenizer.at("model");
  tokenizer.set("model", bpe.set("merges", merges));
  model.tokenizer_json = tokenizer.dump();
  const std::string b = write(model, "other-tokenizer");
  const std::string text =
      folder_.write("text.txt", "The theory of the thing is there in the other then.");

  const cli::RunResult result = run({good(), b, "--text", text});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, AllOf(HasSubstr("token ids differ at index"), HasSubstr("window 0")));
}

TEST_F(Models, WithAnotherRopeThetaDifferInTheirSettings) {
  test::TinyModelOptions options;
  options.config = {{"rope_theta", Json(5000.0)}};

  const EquivalenceReport report =
      compare(good(), write(test::make_tiny_model(options), "other-theta"));

  const Check& weights = find(report, "weights");
  EXPECT_EQ(weights.outcome, Outcome::kDifferent);
  EXPECT_THAT(weights.details[0], HasSubstr("layer 0: rope inverse frequencies differ at index 1"));
  EXPECT_EQ(find(report, "logits").data.at("location").at("kind").as_string(), "rope");
}

TEST_F(Models, WithAnotherVocabularyCannotBeCompared) {
  test::TinyModelOptions options;
  options.vocab_size = 330;

  const EquivalenceReport report = compare(good(), write(test::make_tiny_model(options), "larger"));

  EXPECT_FALSE(report.equal());
  EXPECT_EQ(find(report, "vocabulary").outcome, Outcome::kDifferent);
}

TEST_F(Models, ThatAreQuantizedAreOnlyReportedWithoutLimits) {
  EquivalenceOptions options;
  options.tokens.token_ids_file =
      folder_.write("ids.json", "[[0,5,9,44,23,99,3,120,7,8],[0,50,90,4,2,9,30,12,70,80]]");

  const EquivalenceReport report = compare(good(), quantized("w4"), options);

  EXPECT_TRUE(report.equal());
  EXPECT_FALSE(report.policy.bitwise);
  EXPECT_EQ(find(report, "weights").outcome, Outcome::kReported);
  EXPECT_EQ(find(report, "nll").outcome, Outcome::kReported);
  EXPECT_GT(find(report, "nll").data.at("kld").as_number(), 0.0);
}

TEST_F(Models, ThatAreQuantizedMustKeepTheirPlainTensors) {
  test::TinyModel model = test::make_tiny_model();
  test::quantize_as_compressed_tensors(model, {});
  model.tensor("model.layers.0.input_layernorm.weight").bytes[20] ^= std::byte{0x40};

  const EquivalenceReport report = compare(good(), write(model, "norm"));

  const Check& weights = find(report, "weights");
  EXPECT_EQ(weights.outcome, Outcome::kDifferent);
  EXPECT_THAT(weights.details[0],
              AllOf(HasSubstr("model.layers.0.input_layernorm.weight"), HasSubstr("column 10")));
}

TEST_F(Models, ThatAreQuantizedFailALimitThatIsTooTight) {
  const std::string ids = folder_.write("ids.json", "[[0,5,9,44,23,99,3,120,7,8]]");

  const cli::RunResult result =
      run({good(), quantized("w4"), "--token-ids", ids, "--max-kld", "1e-9"});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("the limit is 1.000e-09"), HasSubstr("DIFFERENT")));
}

TEST_F(Models, InGptqFormGiveTheSameBitsAsCompressedTensors) {
  const test::TinyQuantization options = {.scale_dtype = DType::kF16};
  test::TinyModel model = test::make_tiny_model();
  test::quantize_as_gptq(model, options);

  const EquivalenceReport report = compare(quantized("ct", options), write(model, "gptq"));

  EXPECT_TRUE(report.policy.bitwise);
  EXPECT_TRUE(report.equal()) << to_text(report);
}

TEST_F(Models, InGgufFormGiveTheSameBitsAsTheirFolder) {
  const std::string a = good();

  for (const std::string type : {"BF16", "F32"}) {
    const EquivalenceReport report = compare(a, gguf(a, type + ".gguf", type));

    EXPECT_TRUE(report.policy.bitwise);
    EXPECT_TRUE(report.equal()) << to_text(report);
    EXPECT_EQ(find(report, "weights").outcome, Outcome::kEqual);
  }
}

TEST_F(Models, WithRepackedCodesHoldEqualWeights) {
  // Groups of 64 become blocks of 32: the same values, summed in other pieces.
  test::TinyModelOptions sizes;
  sizes.intermediate_size = 128;
  test::TinyModel model = test::make_tiny_model(sizes);
  test::quantize_as_compressed_tensors(model, {.group_size = 64, .scale_dtype = DType::kF16});
  const std::string a = write(model, "w4");

  const EquivalenceReport report = compare(a, gguf(a, "repacked.gguf"));

  EXPECT_FALSE(report.policy.bitwise);
  EXPECT_EQ(report.policy.weights, Policy::Weights::kAll);
  EXPECT_EQ(find(report, "weights").outcome, Outcome::kEqual);
  EXPECT_TRUE(report.equal()) << to_text(report);
}

TEST_F(Models, InGgufFormWithOneFlippedBitAreFoundAndLocated) {
  const std::string a = good(), b = gguf(a, "flipped.gguf", "BF16");
  const GgufFile file = GgufFile::open(b);
  const GgufTensor* tensor = file.find("blk.1.ffn_down.weight");
  ASSERT_NE(tensor, nullptr);
  std::string bytes = read_text_file(b);
  // Row 5, column 7: found by the tensor's first bytes.
  const std::string_view head(reinterpret_cast<const char*>(tensor->bytes.data()), 64);
  const size_t begin = bytes.find(head),
               at = begin + static_cast<size_t>(5 * tensor->shape[1] + 7) * 2;
  bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
  write_text_file(b, bytes);

  const EquivalenceReport report = compare(a, b);

  ASSERT_EQ(find(report, "weights").details.size(), 1u);
  EXPECT_THAT(find(report, "weights").details[0],
              AllOf(HasSubstr(std::string(kDown)), HasSubstr("first at row 5, column 7")));
  EXPECT_EQ(find(report, "logits").data.at("location").at("module").as_string(), kDown);
}

TEST_F(Models, PrintOneJsonDocumentAndWriteFiles) {
  const std::string a = good(), json_file = folder_.file("verdict.json"),
                    junit = folder_.file("verdict.xml");

  const cli::RunResult result = run({a, a, "--json", "--json-out", json_file, "--junit", junit});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(parse_json(result.out, "stdout").at("equal").as_bool());
  EXPECT_EQ(read_text_file(json_file), result.out);
  EXPECT_THAT(read_text_file(junit), HasSubstr("failures=\"0\""));
}

TEST_F(Models, Case_B80_EndWithTheExitCodeOfTheFault) {
  const std::string a = good();

  EXPECT_EQ(run({a, a}).exit_code, 0);
  EXPECT_EQ(run({a}).exit_code, 2);
  EXPECT_EQ(run({a, a, "--policy", "bitwise", "--max-kld", "1"}).exit_code, 2);
  EXPECT_EQ(run({a, a, "--kv-type", "f8"}).exit_code, 2);
  EXPECT_EQ(run({a, folder_.file("missing")}).exit_code, 3);
  EXPECT_EQ(run({a, folder_.write("x.gguf", "GGUF")}).exit_code, 3);
  EXPECT_EQ(run({a, a, "--device", "cuda"}).exit_code, 5);
  test::TinyModel broken = test::make_tiny_model();
  Tensor& norm = broken.tensor("model.norm.weight");
  for (size_t i = 0; i < norm.bytes.size(); i += 2) {
    const uint16_t largest = 0x7f7f;  // of bf16: its products overflow
    std::memcpy(&norm.bytes[i], &largest, 2);
  }
  EXPECT_EQ(run({a, write(broken, "overflow")}).exit_code, 4);
}

TEST_F(Models, WriteABundleThatTheyEqual) {
  const std::string a = good(), bundle = folder_.file("bundle");
  const std::string prompts = folder_.write("prompts.json", R"({"bos_id": 0, "prompts": [
      {"id": "short", "kind": "length", "token_ids": [0, 5, 9]},
      {"id": "all", "kind": "all_positions", "token_ids": [0, 7, 8, 9, 10, 11, 12, 13]}]})");
  const std::string text = folder_.write("text.txt", "Some words to be scored, one after another.");

  const cli::RunResult written =
      run({a, "--write-reference", bundle, "--prompts", prompts, "--text", text, "--kv-type", "f32",
           "--new-tokens", "5", "--window-length", "16"});
  const cli::RunResult compared = run({a, bundle});

  const std::string shorter = folder_.write("shorter.txt", "Some words to be scored, one");
  const cli::RunResult other_text = run({a, bundle, "--text", shorter});

  ASSERT_EQ(written.exit_code, 0) << written.error;
  EXPECT_EQ(other_text.exit_code, 3);
  EXPECT_THAT(other_text.error, HasSubstr("not of the same text"));
  EXPECT_EQ(written.out, bundle + "\n");
  EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.error;
  EXPECT_THAT(compared.out, AllOf(HasSubstr("KV type  f32"), HasSubstr("EQUAL, bit for bit")));
}

TEST_F(Models, WriteTheSameBundleWhereverThePromptsLie) {
  const std::string a = good();
  std::vector<std::string> texts;
  for (const std::string place : {"one", "another/place"}) {
    std::filesystem::create_directories(folder_.file(place));
    const std::string prompts = folder_.write(place + "/ids.json", "[[0, 5, 9, 12]]");
    const std::string bundle = folder_.file(place + "/bundle");
    ASSERT_EQ(run({a, "--write-reference", bundle + "/", "--prompts", prompts}).exit_code, 0);
    texts.push_back(read_text_file(bundle + "/prompts.json"));
  }

  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0], HasSubstr("\"ids.json\""));
}

TEST_F(Models, AreFoundDifferentFromABundleOfAnotherKvType) {
  const std::string a = good(), bundle = folder_.file("bundle");
  const std::string prompts = folder_.write("ids.json", "[[0, 5, 9, 12, 15, 18]]");
  ASSERT_EQ(
      run({a, "--write-reference", bundle, "--prompts", prompts, "--kv-type", "f32"}).exit_code, 0);

  const cli::RunResult result =
      run({a, bundle, "--kv-type", "bf16", "--max-logit-difference", "0"});

  EXPECT_EQ(result.exit_code, 1);
}

class SharedModels : public Models, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Tiny, SharedModels,
                         testing::Values("llama-tiny", "gemma4-tiny", "qwen3_5-tiny"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(SharedModels, AgreeWithTheResultsOfAnotherProgram) {
  ASSAY_SHARED_OR_SKIP(bundle, std::string("references/") + GetParam());
  ASSAY_SHARED_OR_SKIP(model, std::string("models/") + GetParam());
  EquivalenceOptions options;
  options.kv_type = KvType::kF32;
  options.tokens.n_windows = 2;

  const EquivalenceReport report = compare(bundle, model, options);

  EXPECT_TRUE(report.equal()) << to_text(report);
  EXPECT_EQ(find(report, "greedy").data.at("n_equal").as_integer(), 8);
}

}  // namespace
}  // namespace assay
