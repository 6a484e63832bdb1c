#include "convert/gguf_quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/commands.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "convert/gguf_export.h"
#include "tests/convert/cli_fixture.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

/// llama-tiny as a BF16 file, made once.
class QuantizeGguf : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TemporaryDirectory;
    GgufExport plan(Checkpoint::open(test::source_path("tests/data/llama-tiny")), {});
    plan.write(shared_->file("bf16.gguf"));
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  static std::shared_ptr<const GgufFile> source() {
    return std::make_shared<const GgufFile>(GgufFile::open(shared_->file("bf16.gguf")));
  }

  static inline TemporaryDirectory* shared_ = nullptr;
  const std::shared_ptr<const ImportanceMatrix> importance_ =
      std::make_shared<const ImportanceMatrix>(
          ImportanceMatrix::open(test::source_path("tests/data/llama-tiny.imatrix.gguf")));
  TemporaryDirectory folder_;
};

TEST_F(QuantizeGguf, GivesTheSameFileAsTheFolder) {
  for (const char* mix : {"Q4_K_M", "IQ4_XS", "Q4_0"}) {
    const auto importance = std::string(mix) == "Q4_0" ? importance_ : nullptr;
    GgufExport from_folder(Checkpoint::open(test::source_path("tests/data/llama-tiny")),
                           {.mix = {.mix = find_mix(mix)}, .importance = importance});
    GgufQuantize from_file(source(), {.mix = {.mix = find_mix(mix)}, .importance = importance});

    const WrittenGguf a = from_folder.write(folder_.file("a.gguf"));
    const WrittenGguf b = from_file.write(folder_.file("b.gguf"));

    EXPECT_EQ(a.contents_sha256(), b.contents_sha256()) << mix;
    EXPECT_EQ(read_text_file(folder_.file("a.gguf")), read_text_file(folder_.file("b.gguf")));
    EXPECT_EQ(b.bytes, from_file.file_bytes());
  }
}

TEST_F(QuantizeGguf, GivesTheSameBytesWithAnyNumberOfThreads) {
  std::vector<std::string> hashes;
  for (const int n : {1, 2, 5}) {
    set_n_threads(n);
    GgufQuantize plan(source(), {.mix = {.mix = find_mix("Q4_K_S")}, .importance = importance_});
    plan.write(folder_.file("a.gguf"));
    hashes.push_back(sha256_of_file(folder_.file("a.gguf")));
  }
  set_n_threads(0);

  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

TEST_F(QuantizeGguf, CutsTheFileIntoPartsAndKeepsThem) {
  GgufQuantize split(source(),
                     {.mix = {.mix = find_mix("Q8_0")}, .split_max_bytes = uint64_t{1} << 20});
  const std::vector<WrittenGguf> parts = split.write_parts(folder_.file("m.gguf"));
  ASSERT_GE(parts.size(), 3u);
  EXPECT_EQ(split.paths(folder_.file("m.gguf")).front(),
            folder_.file("m-00001-of-0000" + std::to_string(parts.size()) + ".gguf"));
  uint64_t bytes = 0;
  for (const WrittenGguf& part : parts) bytes += part.bytes;
  EXPECT_EQ(bytes, split.file_bytes());

  const auto opened =
      std::make_shared<const GgufFile>(GgufFile::open(split.paths(folder_.file("m.gguf")).front()));
  GgufQuantize whole(source(), {.mix = {.mix = find_mix("Q8_0")}});
  whole.write(folder_.file("whole.gguf"));
  const GgufFile one = GgufFile::open(folder_.file("whole.gguf"));
  ASSERT_EQ(opened->tensors().size(), one.tensors().size());
  for (const GgufTensor& tensor : one.tensors()) {
    EXPECT_EQ(sha256_hex(opened->find(tensor.name)->bytes), sha256_hex(tensor.bytes));
  }
  EXPECT_EQ(opened->metadata().integer("split.count"), static_cast<int64_t>(parts.size()));

  GgufQuantize kept(
      opened, {.mix = {.mix = find_mix("F16")}, .allow_requantize = true, .keep_split = true});
  const std::vector<WrittenGguf> again = kept.write_parts(folder_.file("k.gguf"));
  ASSERT_EQ(again.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(again[i].tensor_sha256.size(), parts[i].tensor_sha256.size());
  }
  const GgufFile reopened = GgufFile::open(kept.paths(folder_.file("k.gguf")).front());
  EXPECT_EQ(reopened.tensors().size(), one.tensors().size());
}

TEST_F(QuantizeGguf, RefusesToLoseMoreUnlessAllowed) {
  GgufQuantize first(source(), {.mix = {.mix = find_mix("Q8_0")}});
  first.write(folder_.file("q8.gguf"));
  const auto q8 = std::make_shared<const GgufFile>(GgufFile::open(folder_.file("q8.gguf")));

  try {
    GgufQuantize again(q8, {.mix = {.mix = find_mix("Q4_0")}});
    FAIL() << "allowed";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"token_embd.weight\" is Q8_0, wanted Q6_K"));
    EXPECT_THAT(error.what(), HasSubstr("--allow-requantize"));
  }
  GgufQuantize allowed(q8, {.mix = {.mix = find_mix("Q4_0")}, .allow_requantize = true});
  EXPECT_NO_THROW(allowed.write(folder_.file("q4.gguf")));
  // The same type is no loss: bytes are copied.
  GgufQuantize copy(q8, {.mix = {.mix = find_mix("Q8_0")}});
  copy.write(folder_.file("copy.gguf"));
  EXPECT_EQ(sha256_of_file(folder_.file("copy.gguf")), sha256_of_file(folder_.file("q8.gguf")));
}

/// A file of one stack of experts and its importance, two matrices of 2 × 32.
TEST_F(QuantizeGguf, TakesTheImportanceOfEachExpert) {
  const std::vector<float> values = test::random_floats(2 * 2 * 32, 3);
  std::vector<float> squares = test::random_floats(2 * 32, 4);
  for (float& x : squares) x = x * x;
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string("test"));
  write_gguf(folder_.file("m.gguf"), metadata,
             {{"blk.0.ffn_up_exps.weight", {2, 2, 32}, find_format("F32"), [&](const auto& sink) {
                 sink(std::as_bytes(std::span(values)));
               }}});
  const std::vector<float> counts = {1.0f, 1.0f};
  GgufMetadata about;
  about.set("general.type", std::string("imatrix"));
  write_gguf(
      folder_.file("i.gguf"), about,
      {{"blk.0.ffn_up_exps.weight.in_sum2",
        {2, 32},
        find_format("F32"),
        [&](const auto& sink) { sink(std::as_bytes(std::span(squares))); }},
       {"blk.0.ffn_up_exps.weight.counts", {2, 1}, find_format("F32"), [&](const auto& sink) {
          sink(std::as_bytes(std::span(counts)));
        }}});
  GgufQuantize plan(std::make_shared<const GgufFile>(GgufFile::open(folder_.file("m.gguf"))),
                    {.mix = {.mix = find_mix("Q4_0")},
                     .importance = std::make_shared<const ImportanceMatrix>(
                         ImportanceMatrix::open(folder_.file("i.gguf")))});

  plan.write(folder_.file("q.gguf"));

  const GgufFile file = GgufFile::open(folder_.file("q.gguf"));
  const WeightFormat& q4_0 = *find_format("Q4_0");
  for (size_t row = 0; row < 4; ++row) {
    std::vector<std::byte> expected(18);
    q4_0.encode_row(std::span(values).subspan(32 * row, 32),
                    std::span(squares).subspan(32 * (row / 2), 32), expected);
    const auto actual = file.tensors().front().bytes.subspan(18 * row, 18);
    EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin())) << row;
  }
}

TEST_F(QuantizeGguf, RefusesAnImportanceMatrixOfAnotherModel) {
  write_importance(folder_.file("i.gguf"),
                   {.dataset = "x", .weights = {{"blk.0.attn_q.weight", {{1.0f, 2.0f}, {3}}}}});
  const auto other =
      std::make_shared<const ImportanceMatrix>(ImportanceMatrix::open(folder_.file("i.gguf")));

  try {
    GgufQuantize plan(source(), {.mix = {.mix = find_mix("Q4_K_M")}, .importance = other});
    FAIL() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("\"blk.0.attn_q.weight\" has 2 values, its tensor needs 256"));
  }
}

// ---------------------------------------------------------------------------------------------
// Command line

class QuantizeCommand : public QuantizeGguf {
 protected:
  cli::RunResult run(std::vector<std::string> words) {
    words.insert(words.begin(), "convert");
    return process_.run(words, {&cli::convert_command()});
  }
  const std::string bf16_ = shared_->file("bf16.gguf");
  const std::string imatrix_ = test::source_path("tests/data/llama-tiny.imatrix.gguf");
  cli::FakeProcess process_;
};

TEST_F(QuantizeCommand, WritesAMixWithAnImportanceMatrix) {
  const std::string path = folder_.file("q.gguf");

  const auto result = run({bf16_, "--type", "Q4_K_M", "--imatrix", imatrix_, "--out", path});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, HasSubstr("Q6_K"));
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.metadata().integer("general.file_type"), 15);
  EXPECT_EQ(file.metadata().string("quantize.imatrix.file"), "llama-tiny.imatrix.gguf");
}

TEST_F(QuantizeCommand, SaysWhatIsMissingWithTheUsageExitCode) {
  const std::string path = folder_.file("q.gguf");

  const auto refused = run({bf16_, "--type", "IQ2_XS", "--out", path});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.error, HasSubstr("--imatrix"));
  EXPECT_FALSE(std::filesystem::exists(path));

  const auto planned = run({bf16_, "--type", "IQ2_XS", "--dry-run"});
  EXPECT_EQ(planned.exit_code, 0);
  EXPECT_THAT(planned.out, HasSubstr("would write"));
  EXPECT_THAT(planned.error, HasSubstr("need an importance matrix"));
}

TEST_F(QuantizeCommand, SizesOfADryRunAreThoseOfTheFile) {
  const std::string path = folder_.file("q.gguf");
  const std::vector<std::string> options = {bf16_,
                                            "--type",
                                            "Q5_K_S",
                                            "--tensor-type",
                                            "ffn_(up|gate)=Q4_0",
                                            "--tensor-type",
                                            "attn_k=Q8_0",
                                            "--token-embedding-type",
                                            "Q8_0",
                                            "--json"};
  auto dry = options;
  dry.emplace_back("--dry-run");
  auto wet = options;
  wet.insert(wet.end(), {"--out", path});

  const Json planned = parse_json(run(dry).out, "stdout");
  const Json written = parse_json(run(wet).out, "stdout");

  EXPECT_EQ(planned.at("bytes").as_integer(), written.at("bytes").as_integer());
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)),
            written.at("bytes").as_integer());
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.find("blk.1.ffn_up.weight")->format->name(), "Q4_0");
  EXPECT_EQ(file.find("blk.1.attn_k.weight")->format->name(), "Q8_0");
  EXPECT_EQ(file.find("blk.1.attn_q.weight")->format->name(), "Q5_K");
  EXPECT_EQ(file.find("token_embd.weight")->format->name(), "Q8_0");
}

TEST_F(QuantizeCommand, MakesFormatsThatAreNoMixOfLlamaQuantize) {
  for (const auto& [type, file_type] : {std::pair{"NVFP4", 39}, std::pair{"MXFP4", 38}}) {
    const std::string path = folder_.file(std::string(type) + ".gguf");

    const auto result =
        run({bf16_, "--type", type, "--imatrix",
             test::source_path("tests/data/llama-tiny.imatrix.gguf"), "--out", path});

    EXPECT_EQ(result.exit_code, 0) << result.error;
    const GgufFile file = GgufFile::open(path);
    EXPECT_EQ(file.metadata().integer("general.file_type"), file_type);
    EXPECT_EQ(file.find("blk.1.attn_q.weight")->format->name(), type);
    EXPECT_EQ(file.find("token_embd.weight")->format->name(), "Q6_K");  // also the head
  }
}

TEST_F(QuantizeCommand, RefusesOptionsThatDoNotFitTogether) {
  const std::string folder = test::source_path("tests/data/llama-tiny");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {bf16_, "--dry-run"},
           {bf16_, "--type", "Q4_0", "--name", "x", "--dry-run"},
           {bf16_, "--type", "Q4_0", "--keep-split", "--split-max-size", "1M", "--dry-run"},
           {folder, "--pure", "--dry-run"},
           {folder, "--type", "Q4_0", "--keep-split", "--dry-run"},
           {folder, "--type", "Q4_0", "--tensor-type", "x", "--dry-run"}}) {
    EXPECT_EQ(run(words).exit_code, 2) << testing::PrintToString(words);
  }
}

TEST_F(QuantizeCommand, EncodesAQuantizedFolderAnewOnlyIfAllowed) {
  test::TinyModel model = test::make_tiny_model();
  test::quantize_as_compressed_tensors(model, {.group_size = 32});
  const std::string source = model.write(folder_.file("quantized"));
  const std::string path = folder_.file("q.gguf");

  const auto refused = run({source, "--type", "Q4_K_M", "--out", path});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.error, HasSubstr("--allow-requantize"));

  const auto allowed =
      run({source, "--type", "Q4_K_M", "--allow-requantize", "--out", path, "--json"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.error;
  // Rows of 64 columns hold no super-block.
  EXPECT_EQ(GgufFile::open(path).find("blk.0.attn_q.weight")->format->name(), "Q5_0");
}

TEST_F(QuantizeCommand, NamesEveryPart) {
  const auto result = run({bf16_, "--type", "Q8_0", "--split-max-size", "2MiB", "--out",
                           folder_.file("m.gguf"), "--json"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  const Json report = parse_json(result.out, "stdout");
  size_t n = 0;
  for (const Json& part : report.at("parts").as_array()) {
    const GgufFile file = GgufFile::open(report.at("parts").as_array()[0].at("path").as_string());
    EXPECT_EQ(file.parts()[n].path, part.at("path").as_string());
    EXPECT_EQ(sha256_hex(file.parts()[n].header), part.at("header_sha256").as_string());
    for (const auto& [name, hash] : part.at("tensor_sha256").as_object()) {
      EXPECT_EQ(sha256_hex(file.find(name)->bytes), hash.as_string()) << name;
      EXPECT_EQ(file.find(name)->part, static_cast<int64_t>(n));
    }
    ++n;
  }
  EXPECT_GE(report.at("parts").as_array().size(), 2u);
}

}  // namespace
}  // namespace assay
