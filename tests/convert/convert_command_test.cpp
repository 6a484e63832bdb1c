#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>

#include "convert/checkpoint.h"
#include "convert/cli/text_table.h"
#include "convert/commands.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/core/sha256.h"
#include "convert/core/units.h"
#include "convert/manifest_check.h"
#include "convert/model_diff.h"
#include "convert/model_summary.h"
#include "tests/convert/cli_fixture.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay::cli {
namespace {

using test::make_tiny_model;
using test::TemporaryDirectory;
using test::TinyModel;
using testing::AllOf;
using testing::HasSubstr;

class ModelCommands : public testing::Test {
 protected:
  RunResult run(std::vector<std::string> words) {
    return process_.run(words, {&convert_command(), &inspect_command()});
  }
  Json json_of(std::vector<std::string> words) {
    words.emplace_back("--json");
    const RunResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return parse_json(result.out, "stdout");
  }
  std::string quantized_folder(const test::TinyQuantization& quantization) {
    TinyModel model = make_tiny_model();
    test::quantize_as_compressed_tensors(model, quantization);
    return model.write(folder_.file("quantized"));
  }

  const std::string llama_tiny_ = test::source_path("tests/data/llama-tiny");
  TemporaryDirectory folder_;
  FakeProcess process_;
};

TEST_F(ModelCommands, ConvertPrintsTheTableAndThePathLast) {
  const std::string path = folder_.file("model.gguf");
  const std::string source = quantized_folder({.group_size = 32});

  const RunResult result = run({"convert", source, "--out", path});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, AllOf(HasSubstr("blk.*.attn_q.weight"), HasSubstr("W4 group 32"),
                                HasSubstr("codes moved"), testing::EndsWith("\n" + path + "\n")));
  EXPECT_EQ(Checkpoint::open(path)->stored(Role::kQProj, 0).format->name(), "Q4_0");
}

TEST_F(ModelCommands, ConvertDryRunSaysTheExactSizeAndWritesNothing) {
  const std::string path = folder_.file("model.gguf");

  const Json dry = json_of({"convert", llama_tiny_, "--type", "Q8_0", "--dry-run"});
  EXPECT_FALSE(std::filesystem::exists(path));
  const Json wet = json_of({"convert", llama_tiny_, "--type", "Q8_0", "--out", path});

  EXPECT_EQ(dry.at("bytes").as_integer(), static_cast<int64_t>(std::filesystem::file_size(path)));
  // `inspect --hashes` of the file tells the same.
  const Json file = json_of({"inspect", path, "--hashes"});
  EXPECT_EQ(file.at("files").as_array()[0].at("contents_sha256"), wet.at("contents_sha256"));
  EXPECT_EQ(file.at("files").as_array()[0].at("sha256").as_string(), sha256_of_file(path));
  for (const Json& tensor : file.at("tensors").as_array()) {
    EXPECT_EQ(tensor.at("sha256"), wet.at("tensor_sha256").at(tensor.at("name").as_string()));
  }
  EXPECT_EQ(dry.at("tensors"), wet.at("tensors"));
}

TEST_F(ModelCommands, ConvertGivesTheSameFileForAnyNumberOfThreads) {
  std::vector<std::string> hashes;
  for (const char* threads : {"1", "3"}) {
    const std::string path = folder_.file(std::string("model-") + threads + ".gguf");
    json_of({"convert", llama_tiny_, "--type", "Q6_K", "--out", path, "--threads", threads});
    hashes.push_back(sha256_of_file(path));
  }

  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST_F(ModelCommands, ConvertDoesNotReplaceAFileUnlessTold) {
  const std::string path = folder_.write("model.gguf", "precious");

  const RunResult refused = run({"convert", llama_tiny_, "--out", path});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.error, HasSubstr("--force"));
  EXPECT_EQ(read_text_file(path), "precious");

  EXPECT_EQ(run({"convert", llama_tiny_, "--out", path, "--force"}).exit_code, 0);
  EXPECT_NE(read_text_file(path), "precious");
}

TEST_F(ModelCommands, Case_B80_EveryFailureHasItsExitCodeAndNoOutput) {
  const std::string asymmetric = quantized_folder({.symmetric = false, .group_size = 32});
  TinyModel foreign = make_tiny_model();
  foreign.config.set("model_type", "mamba");
  const std::string unsupported = foreign.write(folder_.file("foreign"));
  TinyModel wide = make_tiny_model();
  const uint16_t huge = 0x7f00;  // 1.7e38
  std::memcpy(wide.tensor("lm_head.weight").bytes.data(), &huge, 2);
  const std::string overflowing = wide.write(folder_.file("wide"));
  const std::string path = folder_.file("model.gguf"), empty = folder_.file("empty");
  std::filesystem::create_directories(empty);
  const std::vector<std::pair<std::vector<std::string>, int>> runs = {
      {{llama_tiny_}, 2},
      {{llama_tiny_, "--out", folder_.path()}, 2},
      {{llama_tiny_, "--out", path, "--type", "Q9_9"}, 2},
      {{folder_.file("nothing"), "--out", path}, 3},
      {{empty, "--out", path}, 3},
      {{llama_tiny_, "--out", folder_.file("no/such/folder/model.gguf")}, 3},
      {{asymmetric, "--out", path, "--type", "Q4_0"}, 2},
      {{overflowing, "--out", path, "--type", "F16"}, 4},
      {{unsupported, "--out", path}, 7}};
  for (const auto& [words, exit_code] : runs) {
    std::vector<std::string> command = {"convert"};
    command.insert(command.end(), words.begin(), words.end());

    const RunResult result = run(command);

    EXPECT_EQ(result.exit_code, exit_code) << result.error;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.error, "");
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  }
}

TEST_F(ModelCommands, ConvertCountsWhatRequantizingChanges) {
  const std::string source = quantized_folder({.symmetric = false, .group_size = 32});

  const Json report = json_of({"convert", source, "--type", "Q4_0", "--allow-requantize", "--out",
                               folder_.file("model.gguf")});

  for (const Json& tensor : report.at("tensors").as_array()) {
    if (tensor.at("to").as_string() != "Q4_0") continue;
    EXPECT_FALSE(tensor.at("exact").as_bool());
    EXPECT_EQ(tensor.at("how").as_string(), "requantized");
    EXPECT_GT(tensor.at("values_changed").as_integer(), 0);
  }
}

TEST_F(ModelCommands, InspectTellsShapesTypesAndTokenizer) {
  const RunResult result = run({"inspect", llama_tiny_});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("family llama"), HasSubstr("3 layers"), HasSubstr("rope llama3"),
                    HasSubstr("4,458,240 parameters"), HasSubstr("split rule llama-bpe"),
                    HasSubstr("chat template: none"), HasSubstr("No problems found")));
}

TEST_F(ModelCommands, InspectCountsBitsOfQuantizedWeights) {
  const Json summary =
      json_of({"inspect", quantized_folder({.symmetric = false, .group_size = 32})});

  EXPECT_EQ(summary.at("kind").as_string(), "compressed-tensors");
  bool found = false;
  for (const Json& kind : summary.at("weights").as_array()) {
    if (kind.at("tensor").as_string() != "model.layers.*.mlp.down_proj.weight") continue;
    found = true;
    EXPECT_EQ(kind.at("n").as_integer(), 2);
    EXPECT_EQ(kind.at("type").as_string(), "W4_ASYM group 32 scales BF16");
    EXPECT_EQ(kind.at("bits_per_weight").as_number(), 4.625);  // 4 + (16 + 4)/32
  }
  EXPECT_TRUE(found);
}

TEST_F(ModelCommands, InspectCountsBitsOfThePartsOfTheModel) {
  const std::string folder = quantized_folder({.symmetric = false, .group_size = 32});

  const Json summary = json_of({"inspect", folder});

  std::vector<std::string> names;
  int64_t values = 0, bytes = 0;
  for (const Json& part : summary.at("parts").as_array()) {
    names.push_back(part.at("part").as_string());
    values += part.at("parameters").as_integer();
    bytes += part.at("bytes").as_integer();
    const double bits = part.at("bits_per_weight").as_number();
    EXPECT_EQ(bits, names.back() == "attention" || names.back() == "MLP" ? 4.625 : 16.0)
        << names.back();
  }
  EXPECT_THAT(names, testing::ElementsAre("embedding", "norms", "attention", "MLP", "head"));
  EXPECT_EQ(values, summary.at("parameters").as_integer());
  EXPECT_EQ(bytes, summary.at("weight_bytes").as_integer());
  EXPECT_THAT(run({"inspect", folder}).out, HasSubstr("part"));
}

TEST_F(ModelCommands, InspectHashesEveryTensorAndFile) {
  const Json summary = json_of({"inspect", llama_tiny_, "--hashes"});

  EXPECT_EQ(summary.at("tensors").as_array().size(), 29u);
  for (const Json& file : summary.at("files").as_array()) {
    EXPECT_EQ(file.at("sha256").as_string(),
              sha256_of_file(llama_tiny_ + "/" + file.at("name").as_string()));
  }
}

TEST_F(ModelCommands, InspectCheckFindsAValueThatIsNotFinite) {
  TinyModel model = make_tiny_model();
  const uint16_t infinity = 0x7f80;
  std::memcpy(model.tensor("model.layers.1.mlp.up_proj.weight").bytes.data() + 2 * 64 * 5,
              &infinity, 2);
  const std::string path = model.write(folder_.file("model"));

  EXPECT_EQ(run({"inspect", path}).exit_code, 0);
  const RunResult result = run({"inspect", path, "--check"});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"), HasSubstr("row 5"),
                                HasSubstr("column 0 is inf")));
}

TEST_F(ModelCommands, InspectListsAModelThatIsNotSupported) {
  TinyModel model = make_tiny_model();
  model.config.set("model_type", "mamba");

  const RunResult result = run({"inspect", model.write(folder_.file("model"))});

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.out, AllOf(HasSubstr("model.layers.*.mlp.down_proj.weight"),
                                HasSubstr("Not supported"), HasSubstr("mamba")));
}

TEST_F(ModelCommands, InspectReadsGgufAndSafetensorsFiles) {
  const std::string path = folder_.file("model.gguf");
  run({"convert", llama_tiny_, "--out", path});

  const Json gguf = json_of({"inspect", path});
  EXPECT_EQ(gguf.at("kind").as_string(), "GGUF");
  EXPECT_EQ(gguf.at("metadata").at("general.architecture").as_string(), "llama");
  EXPECT_EQ(gguf.at("tokenizer").at("vocab_size").as_integer(), 8192);

  const Json file = json_of({"inspect", llama_tiny_ + "/model.safetensors"});
  EXPECT_EQ(file.at("kind").as_string(), "safetensors file");
}

TEST(TextTable, AlignsColumnsByCharacters) {
  TextTable table({"name", "n"}, {TextTable::Align::kLeft, TextTable::Align::kRight});
  table.add({"Ġthe", "7"});
  table.add({"a", "123"});

  EXPECT_EQ(table.text(1), " name    n\n Ġthe    7\n a     123\n");
}

TEST(Units, GroupDigitsByThousands) {
  EXPECT_EQ(grouped_digits(0), "0");
  EXPECT_EQ(grouped_digits(999), "999");
  EXPECT_EQ(grouped_digits(1000), "1,000");
  EXPECT_EQ(grouped_digits(-1234567), "-1,234,567");
}

TEST_F(ModelCommands, ConvertToHfWritesAFolderThatReadsAsTheModel) {
  const std::string gguf = folder_.file("a.gguf"), out = folder_.file("back");
  json_of({"convert", llama_tiny_, "--out", gguf});

  const Json dry = json_of({"convert", gguf, "--to", "hf", "--dry-run"});
  const RunResult result = run({"convert", gguf, "--to", "hf", "--out", out});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, AllOf(HasSubstr("model.layers.*.self_attn.q_proj.weight"),
                                testing::EndsWith("\n" + out + "\n")));
  EXPECT_EQ(dry.at("bytes").as_integer(), 2 * 4'458'240);
  EXPECT_EQ(run({"inspect", "--diff", llama_tiny_, out}).exit_code, 1);  // config.json differs
  EXPECT_EQ(json_of({"inspect", out}).at("parameters"), Json(4'458'240));
  EXPECT_EQ(run({"convert", gguf, "--to", "hf", "--out", out}).exit_code, 2);
  EXPECT_EQ(run({"convert", gguf, "--to", "hf", "--out", out, "--force"}).exit_code, 0);
  EXPECT_EQ(run({"convert", gguf, "--to", "hf", "--out", out, "--pure"}).exit_code, 2);
  EXPECT_EQ(run({"convert", gguf, "--to", "hf", "--dry-run", "--card", "x=y"}).exit_code, 2);
  EXPECT_EQ(run({"convert", llama_tiny_, "--dry-run", "--card", "license=mit"}).exit_code, 2);
  EXPECT_EQ(run({"convert", gguf, "--to", "hf", "--out", out, "--type", "Q8_0"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST_F(ModelCommands, ConvertToHuggingFaceMakesTheFoldersAboveAndTakesASlashAtTheEnd) {
  const std::string out = folder_.file("new/folder/model");

  const RunResult result = run({"convert", llama_tiny_, "--to", "hf", "--out", out + "/"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out, testing::EndsWith("\n" + out + "\n"));
  EXPECT_TRUE(file_exists(out + "/config.json"));
}

TEST_F(ModelCommands, ALargeTensorIsCopiedInPieces) {
  const std::vector<std::byte> bytes((size_t{40} << 20) + 3);
  const TensorView view{DType::kU8, {static_cast<int64_t>(bytes.size())}, bytes};
  size_t n_bytes = 0, n_pieces = 0;

  source_of("t", view).write([&](std::span<const std::byte> piece) {
    EXPECT_EQ(piece.data(), bytes.data() + n_bytes);
    n_bytes += piece.size();
    ++n_pieces;
  });

  EXPECT_EQ(n_bytes, bytes.size());
  EXPECT_EQ(n_pieces, 3u);
}

TEST_F(ModelCommands, AKindWithOneTensorHasItsName) {
  const RunResult result = run({"convert", llama_tiny_, "--type", "Q8_0", "--tensor-type",
                                "blk.1.attn_q=Q4_0", "--dry-run"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("  blk.1.attn_q.weight  "), HasSubstr("  blk.*.attn_q.weight  ")));
}

TEST_F(ModelCommands, OptionsThatWouldChangeNothingAreRefused) {
  const std::string gguf = folder_.file("plain.gguf");
  ASSERT_EQ(run({"convert", llama_tiny_, "--out", gguf}).exit_code, 0);
  const std::vector<std::pair<std::vector<std::string>, std::string>> runs = {
      {{llama_tiny_, "--other-type", "Q8_0"}, "--other-type is for folders with quantized linears"},
      {{gguf, "--type", "Q8_0", "--other-type", "Q8_0"}, "--other-type is for model folders"},
      {{llama_tiny_, "--pre", "foo"}, "GGUF calls it "},
      {{llama_tiny_, "--name", ""}, "--name is empty"},
      {{llama_tiny_, "--type", "F16", "--pure"}, "--type F16: no rule chooses"},
      {{gguf, "--type", "F16", "--tensor-type", "attn_q=Q8_0"}, "--type F16: no rule chooses"}};
  for (const auto& [words, message] : runs) {
    std::vector<std::string> command = {"convert", "--dry-run"};
    command.insert(command.end(), words.begin(), words.end());

    const RunResult result = run(command);

    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_THAT(result.error, HasSubstr(message));
  }
}

TEST_F(ModelCommands, TheTypeOfAHeadThatIsTheEmbeddingIsAWarning) {
  const std::string tied = make_tiny_model({.tied_head = true}).write(folder_.file("tied"));

  const RunResult result =
      run({"convert", tied, "--type", "Q8_0", "--output-tensor-type", "F16", "--dry-run"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("--output-tensor-type changes nothing"));
}

TEST_F(ModelCommands, TypesOfHeadAndEmbeddingGoWithPlainTypes) {
  const Json json = json_of(
      {"convert", llama_tiny_, "--type", "F16", "--token-embedding-type", "Q8_0", "--dry-run"});

  for (const Json& tensor : json.at("tensors").as_array()) {
    const std::string name = tensor.at("name").as_string();
    const bool is_embedding = name == "token_embd.weight";
    if (!is_embedding && name != "blk.0.attn_q.weight") continue;
    EXPECT_EQ(tensor.at("to"), Json(is_embedding ? "Q8_0" : "F16"));
  }
}

// Ctrl-C is heard by what throws here.
TEST_F(ModelCommands, InspectEndsBetweenTensors) {
  const std::string folder = quantized_folder({.group_size = 32});
  const auto stop_at = [](int n) {
    return [n, calls = std::make_shared<std::atomic<int>>(0)](std::string_view what) {
      EXPECT_FALSE(what.empty());
      if (calls->fetch_add(1) >= n) throw StoppedError("stopped");
    };
  };

  for (const int n : {0, 1, 5}) {
    EXPECT_THROW(summarize_model(folder, {.hashes = true, .progress = stop_at(n)}), StoppedError);
    EXPECT_THROW(summarize_model(folder, {.check_values = true, .progress = stop_at(n)}),
                 StoppedError);
    EXPECT_THROW(diff_models(folder, folder, stop_at(n)), StoppedError);
  }
  const auto safetensors = SafetensorsModel::open(folder);
  Json tensors = Json::object(), files = Json::object();
  tensors.set(safetensors.names().front(), Json::object().set("sha256", std::string(64, '0')));
  files.set("config.json", Json::object().set("sha256", std::string(64, '0')));
  write_text_file(folder + "/" + std::string(kManifestName),
                  Json::object().set("tensors", tensors).set("files", files).dump());
  EXPECT_EQ(manifest_faults(folder, safetensors, stop_at(2))->size(),
            safetensors.names().size() + 1);
  EXPECT_THROW(manifest_faults(folder, safetensors, stop_at(0)), StoppedError);
  EXPECT_THROW(manifest_faults(folder, safetensors, stop_at(1)), StoppedError);
}

TEST_F(ModelCommands, InspectDiffComparesAFolderWithItsGguf) {
  const std::string exact = folder_.file("exact.gguf"), rounded = folder_.file("rounded.gguf");
  json_of({"convert", llama_tiny_, "--out", exact});
  json_of({"convert", llama_tiny_, "--type", "Q8_0", "--out", rounded});

  const Json same = json_of({"inspect", "--diff", llama_tiny_, exact});
  const RunResult text = run({"inspect", "--diff", exact, rounded});
  const RunResult json = run({"inspect", "--diff", exact, rounded, "--json"});
  const Json differences = parse_json(json.out, "stdout");

  EXPECT_EQ(same.at("equal"), Json(true));
  EXPECT_EQ(same.at("tensors").at("equal"), Json(29));
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("general.file_type: 32 | 7"), HasSubstr("blk.0.attn_q.weight"),
                    HasSubstr("7 tensors hold the same values")));
  for (const Json& item : differences.at("values").as_array()) {
    EXPECT_GT(item.at("n_different").as_integer(), 0);
    EXPECT_LE(item.at("rms").as_number(), item.at("max").as_number());
    EXPECT_LT(item.at("rms").as_number(), 0.02 * item.at("rms_a").as_number());
  }
  EXPECT_EQ(run({"inspect", "--diff", exact}).exit_code, 2);
  EXPECT_EQ(run({"inspect", exact, exact}).exit_code, 2);
}

TEST_F(ModelCommands, InspectDiffSeesOneChangedValueAndMissingTensors) {
  TinyModel a = make_tiny_model(), b = a;
  auto& bytes = b.tensor("model.norm.weight").bytes;
  bytes[1] = std::byte{0x41};
  bytes[0] = std::byte{0};
  const std::string path_a = a.write(folder_.file("a")), path_b = b.write(folder_.file("b"));

  const RunResult result = run({"inspect", "--diff", path_a, path_b, "--json"});
  const Json diff = parse_json(result.out, "stdout");

  EXPECT_EQ(result.exit_code, 1);
  ASSERT_EQ(diff.at("values").as_array().size(), 1u);
  EXPECT_EQ(diff.at("values").as_array()[0].at("tensor"), Json("model.norm.weight"));
  EXPECT_EQ(diff.at("values").as_array()[0].at("n_different"), Json(1));
  EXPECT_TRUE(diff.at("keys").at("different").as_array().empty());
}

TEST_F(ModelCommands, InspectListsAModelWhoseTensorsDoNotFitWithTheProblem) {
  TinyModel model = make_tiny_model();
  model.erase("model.layers.1.mlp.up_proj.weight");
  model.rename("model.norm.weight", "model.nrom.weight");

  const RunResult result = run({"inspect", model.write(folder_.file("model"))});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("Problems:"), HasSubstr("up_proj.weight"),
                                HasSubstr("model.nrom.weight"), HasSubstr("Weights:")));
}

TEST_F(ModelCommands, LinksInACircleAndNamesThatAreTooLongAreInputErrors) {
  const std::string model = make_tiny_model().write(folder_.file("model"));
  std::filesystem::remove(model + "/config.json");
  std::filesystem::create_symlink("config.json", model + "/config.json");

  for (const std::string& path : {model, std::string(5000, 'x')}) {
    for (const char* command : {"inspect", "convert"}) {
      std::vector<std::string> words = {command, path};
      if (words.front() == "convert") words.emplace_back("--dry-run");
      const RunResult result = run(words);

      EXPECT_EQ(result.exit_code, 3) << result.error;
      EXPECT_THAT(result.error + result.out, testing::Not(HasSubstr("fault of assay")));
    }
  }
}

TEST_F(ModelCommands, TextsOfAFileGiveTheTerminalNoOrders) {
  const std::string model = make_tiny_model().write(folder_.file("model"));
  const std::string path = folder_.file("m.gguf");
  ASSERT_EQ(run({"convert", model, "--name", "a\x1b[31mb\u009b1mc", "--out", path}).exit_code, 0);

  const RunResult text = run({"inspect", path});
  const Json json = json_of({"inspect", path});

  EXPECT_THAT(text.out, AllOf(HasSubstr("general.name = a\\x1b[31mb\\xc2\\x9b1mc"),
                              testing::Not(HasSubstr("\x1b")), testing::Not(HasSubstr("\xc2"))));
  EXPECT_EQ(json.at("metadata").at("general.name").as_string(), "a\x1b[31mb\u009b1mc");
}

// What a model has beside the decoder is no fault of it.
TEST_F(ModelCommands, InspectNotesWhatIsNotRunAndFindsNoProblemInIt) {
  TinyModel model = make_tiny_model();
  model.add("vision_tower.x.weight", model.tensors.front().tensor);

  const RunResult result = run({"inspect", model.write(folder_.file("model")), "--check"});

  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("Notes:\n  left out: vision_tower (1 tensors"),
                                HasSubstr("No problems found.")));
}

TEST_F(ModelCommands, InspectSaysWhichEnginesLoadAModelAndWhatIsWrongWithItsTemplate) {
  const std::string path = quantized_folder({.group_size = 32});
  write_text_file(path + "/chat_template.jinja", "{% include 'x' %}");

  const Json summary = json_of({"inspect", path});

  EXPECT_EQ(summary.at("engines").as_array()[0].at("engine"), Json("vLLM"));
  EXPECT_THAT(summary.at("engines").as_array()[0].at("note").as_string(), HasSubstr("Marlin"));
  EXPECT_EQ(summary.at("chat_template"), Json(true));
  EXPECT_THAT(summary.at("problems").dump(), HasSubstr("include"));
  EXPECT_EQ(summary.at("tokenizer").at("model"), Json("byte-level BPE"));
}

TEST_F(ModelCommands, InspectCheckCountsZeroScales) {
  TinyModel model = make_tiny_model();
  test::quantize_as_compressed_tensors(model, {.group_size = 32});
  auto& scales = model.tensor("model.layers.0.mlp.down_proj.weight_scale").bytes;
  std::fill_n(scales.begin(), 4, std::byte{0});

  const RunResult result = run({"inspect", model.write(folder_.file("model")), "--check"});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("2 scales are zero"));
}

}  // namespace
}  // namespace assay::cli
