// Verification of real models: small ones made from seeds, and the same with one thing wrong. Every
// fault must be found, and located.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "convert/commands.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/gguf.h"
#include "tests/convert/cli_fixture.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"
#include "verify/commands.h"
#include "verify/equivalence.h"
#include "verify/equivalence_output.h"
#include "verify/weights.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kDown = "model.layers.1.mlp.down_proj";

/// Folders of models, and the program to compare them with.
class Models : public ::testing::Test {
 protected:
  std::string write(const test::TinyModel& model, const std::string& name, int n_shards = 1) {
    return model.write(folder_.file(name), n_shards);
  }
  std::string good() { return write(test::make_tiny_model(), "good"); }
  std::string quantized(const std::string& name, const test::TinyQuantization& options = {}) {
    test::TinyModel model = test::make_tiny_model();
    test::quantize_as_compressed_tensors(model, options);
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

  test::TemporaryDirectory folder_;
};

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

/// What is the same numbers to the weights and another model to whoever talks to it.
class Texts : public Models {
 protected:
  static EquivalenceOptions options() {
    EquivalenceOptions options;
    options.logits = options.greedy = options.self_equality = false;
    return options;
  }
  /// What the check says of a model after `change`, on one line.
  std::string difference(const std::function<void(test::TinyModel&)>& change) {
    test::TinyModel model = test::make_tiny_model();
    change(model);
    const EquivalenceReport report = compare(good(), write(model, "changed"), options());
    EXPECT_FALSE(report.equal());
    EXPECT_EQ(find(report, "weights").outcome, Outcome::kEqual);
    return fmt::format("{}", fmt::join(find(report, "tokenizer").details, "; "));
  }
  static void edit_tokenizer(test::TinyModel& model, const std::string& from,
                             const std::string& to) {
    std::string& text = model.tokenizer_json;
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    for (; at != std::string::npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
};

TEST_F(Texts, ThatBecomeOtherIdsMakeModelsDifferent) {
  const Json tokenizer = parse_json(test::make_tiny_model().tokenizer_json, "tokenizer.json");
  const Json& bpe = tokenizer.at("model");

  const auto with_merges = [&](const std::function<void(Json::Array&)>& change) {
    return difference([&](test::TinyModel& model) {
      Json merges = bpe.at("merges");
      change(merges.as_array());
      model.tokenizer_json = Json(tokenizer).set("model", Json(bpe).set("merges", merges)).dump();
    });
  };

  EXPECT_THAT(with_merges([](auto& merges) { std::swap(merges[0], merges[1]); }),
              HasSubstr("merge 0: "));
  EXPECT_THAT(with_merges([](auto& merges) { merges.pop_back(); }), HasSubstr("against none"));
  EXPECT_THAT(difference([](auto& model) { edit_tokenizer(model, "<|pad|>", "<|pap|>"); }),
              HasSubstr("id 2: \"<|pad|>\" against \"<|pap|>\""));
  EXPECT_THAT(difference([](auto& model) {
                edit_tokenizer(model, "\"lstrip\": false", "\"lstrip\": true");
              }),
              HasSubstr("added tokens differ"));
  EXPECT_THAT(difference([](auto& model) { edit_tokenizer(model, "{1,3}", "{1,2}"); }),
              HasSubstr("split rule: llama-bpe against unnamed"));
}

TEST_F(Texts, ThatEndElsewhereMakeModelsDifferent) {
  EXPECT_THAT(difference([](auto& model) {
                model.generation_config = Json::object().set("eos_token_id", 2);
              }),
              HasSubstr("ids that end a text: 1 against 1 2"));
}

TEST_F(Texts, OfAnotherChatTemplateMakeModelsDifferent) {
  const std::string a = good(), b = write(test::make_tiny_model(), "copy");
  write_text_file(a + "/chat_template.jinja", "{{ messages[0]['content'] }} end");
  EXPECT_EQ(find(compare(a, b, options()), "tokenizer").details,
            std::vector<std::string>{"chat template: only in A"});

  write_text_file(b + "/chat_template.jinja", "{{ messages[0]['content'] }} enD");

  EXPECT_EQ(find(compare(a, b, options()), "tokenizer").details,
            std::vector<std::string>{"chat template: differs from byte 31 on"});
}

TEST_F(Texts, AreThoseOfTheFolderInItsGgufFile) {
  for (const std::string& family : test::family_models()) {
    test::TinyModel model = test::read_model(test::family_model_path(family));
    model.tokenizer_json = test::piece_tokenizer_json();
    const std::string a = write(model, family);
    write_text_file(a + "/chat_template.jinja", "{{ messages[0]['content'] }}");

    const Check check = find(compare(a, gguf(a, family + ".gguf"), options()), "tokenizer");

    EXPECT_EQ(check.outcome, Outcome::kEqual)
        << family << ": " << fmt::format("{}", fmt::join(check.details, "; "));
  }
  const std::string a = good();
  EXPECT_EQ(find(compare(a, gguf(a, "bytes.gguf"), options()), "tokenizer").outcome,
            Outcome::kEqual);
}

// One bit in any token or merge of a GGUF file is found, or the file is refused.
TEST_F(Texts, WithOneFlippedBitInAGgufFileAreFound) {
  const std::string folder = good(), a = gguf(folder, "good.gguf"),
                    b = folder_.file("flipped.gguf");
  const std::string bytes = read_text_file(a);
  const size_t begin = bytes.find("tokenizer.ggml.tokens"),
               end = bytes.find("tokenizer.ggml.bos_token_id");
  ASSERT_LT(begin, end);
  size_t n_found = 0;
  for (size_t at = begin + 40; at + 1 < end; at += 97) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    write_text_file(b, flipped);
    try {
      EXPECT_FALSE(compare(a, b, options()).equal()) << at;
      // What a folder has may be read otherwise where a type of the file is unknown.
      EXPECT_NE(find(compare(folder, b, options()), "tokenizer").outcome, Outcome::kEqual) << at;
      ++n_found;
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(n_found, 5u);
}

TEST_F(Texts, AreNotComparedWhereASideHasNoTokenizer) {
  test::TinyModel model = test::make_tiny_model();
  model.tokenizer_json.clear();

  const EquivalenceReport report = compare(good(), write(model, "bare"), options());

  EXPECT_TRUE(report.equal());
  EXPECT_THAT(report.notes, Contains("tokenizers are not compared: B has none"));
}

TEST_F(Texts, OfABundleMustBecomeItsIds) {
  const std::string a = good(), bundle = folder_.file("bundle");
  const std::vector<int32_t> ids = Tokenizer::from_folder(a).encode("the theory");
  const std::string prompts = folder_.write(
      "prompts.json",
      fmt::format(R"({{"prompts": [{{"id": "x", "text": "the theory", "token_ids": [{}]}}]}})",
                  fmt::join(ids, ",")));
  ASSERT_EQ(run({a, "--write-reference", bundle, "--prompts", prompts}).exit_code, 0);
  EXPECT_EQ(find(compare(a, bundle, {}), "tokenizer").outcome, Outcome::kEqual);
  Json file = read_json_file(bundle + "/prompts.json");
  Json list = file.at("prompts");
  list.as_array()[0].set("text", "then");
  write_text_file(bundle + "/prompts.json", file.set("prompts", list).dump());

  const EquivalenceReport report = compare(a, bundle, {});

  EXPECT_FALSE(report.equal());
  EXPECT_THAT(find(report, "tokenizer").details.front(), HasSubstr("text of prompt \"x\": id"));
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
