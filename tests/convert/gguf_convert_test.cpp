#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/sha256.h"
#include "convert/gguf_export.h"
#include "convert/gguf_vocabulary.h"
#include "convert/hf_export.h"
#include "convert/tokenizer.h"
#include "convert/tokenizer/sentencepiece.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::make_tiny_model;
using test::TemporaryDirectory;
using test::TinyModel;
using testing::AllOf;
using testing::HasSubstr;

// ---------------------------------------------------------------------------------------------
// The listings of llama.cpp's converter and of llama-quantize.

const char* type_name_of(const GgufValue& value) {
  constexpr const char* kNames[] = {"uint8", "int8",    "uint16", "int16",  "uint32",
                                    "int32", "float32", "bool",   "string", "uint64",
                                    "int64", "float64", "array"};
  return kNames[value.index()];
}

/// Elements as the listing hashes them.
Json array_json(const GgufArray& array) {
  Json out = Json::array();
  if (const auto* texts = std::get_if<std::vector<std::string>>(&array.values)) {
    for (const std::string& text : *texts) out.push(text);
  } else if (const auto* numbers = std::get_if<std::vector<int32_t>>(&array.values)) {
    for (const int32_t number : *numbers) out.push(number);
  } else if (const auto* reals = std::get_if<std::vector<float>>(&array.values)) {
    for (const float real : *reals) out.push(static_cast<double>(real));
  } else if (const auto* flags = std::get_if<std::vector<bool>>(&array.values)) {
    for (const bool flag : *flags) out.push(flag);
  }
  return out;
}

void expect_value(const GgufValue& actual, const Json& expected) {
  const std::string key = expected.at("key").as_string();
  ASSERT_EQ(type_name_of(actual), expected.at("type").as_string()) << key;
  if (const auto* array = std::get_if<GgufArray>(&actual)) {
    const std::string text = array_json(*array).dump(0);
    EXPECT_EQ(static_cast<int64_t>(array->size()), expected.at("length").as_integer()) << key;
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(text))), expected.at("sha256").as_string()) << key;
  } else if (const auto* text = std::get_if<std::string>(&actual)) {
    EXPECT_EQ(*text, expected.at("value").as_string()) << key;
  } else if (const auto* flag = std::get_if<bool>(&actual)) {
    EXPECT_EQ(*flag, expected.at("value").as_bool()) << key;
  } else if (const auto* number = std::get_if<float>(&actual)) {
    EXPECT_EQ(static_cast<double>(*number), expected.at("value").as_number()) << key;
  } else {
    EXPECT_EQ(static_cast<int64_t>(std::get<uint32_t>(actual)), expected.at("value").as_integer())
        << key;
  }
}

class ListedModel : public testing::Test {
 protected:
  const std::string folder_ = test::source_path("tests/data/llama-tiny");
  const Json listing_ = read_json_file(test::source_path("tests/data/llama-tiny-gguf.json"));
  const TemporaryDirectory out_;

  WrittenGguf convert(const char* type) {
    GgufExport plan(Checkpoint::open(folder_), {.type = find_format(type)});
    const WrittenGguf written = plan.write(out_.file(std::string(type) + ".gguf"));
    EXPECT_EQ(written.bytes, plan.file_bytes());
    return written;
  }
};

TEST_F(ListedModel, GivesEveryKeyTensorAndByteOfTheListedFiles) {
  for (const char* type : {"BF16", "F32"}) {
    const Json& expected = listing_.at("gguf").at(type);

    const WrittenGguf written = convert(type);
    const GgufFile file = GgufFile::open(out_.file(std::string(type) + ".gguf"));

    const Json::Array& keys = expected.at("metadata").as_array();
    ASSERT_EQ(file.metadata().items().size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(file.metadata().items()[i].first, keys[i].at("key").as_string());
      expect_value(file.metadata().items()[i].second, keys[i]);
    }
    const Json::Array& tensors = expected.at("tensors").as_array();
    ASSERT_EQ(file.tensors().size(), tensors.size());
    const std::byte* data_start = file.tensors().front().bytes.data();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const GgufTensor& tensor = file.tensors()[i];
      ASSERT_EQ(tensor.name, tensors[i].at("name").as_string());
      EXPECT_EQ(tensor.format->name(), tensors[i].at("type").as_string()) << tensor.name;
      Shape shape;
      for (const Json& ne : tensors[i].at("ne").as_array()) {
        shape.insert(shape.begin(), ne.as_integer());
      }
      EXPECT_EQ(tensor.shape, shape) << tensor.name;
      EXPECT_EQ(tensor.bytes.data() - data_start, tensors[i].at("offset").as_integer());
      EXPECT_EQ(sha256_hex(tensor.bytes), tensors[i].at("sha256").as_string()) << tensor.name;
    }
    EXPECT_EQ(file.data_start(), static_cast<uint64_t>(expected.at("data_start").as_integer()));
    EXPECT_EQ(written.bytes, static_cast<uint64_t>(expected.at("file_bytes").as_integer()));
    EXPECT_EQ(sha256_of_file(out_.file(std::string(type) + ".gguf")),
              expected.at("file_sha256").as_string());
  }
}

TEST_F(ListedModel, GivesTheBytesOfLlamaQuantizeForEveryType) {
  for (const auto& [type, expected] : listing_.at("quantized").as_object()) {
    const WrittenGguf written = convert(type.c_str());
    const std::map<std::string, std::string> hashes(written.tensor_sha256.begin(),
                                                    written.tensor_sha256.end());
    for (const auto& [name, sha256] : expected.at("tensors").as_object()) {
      EXPECT_EQ(hashes.at(name), sha256.as_string()) << type << " " << name;
    }
    const GgufFile file = GgufFile::open(out_.file(type + ".gguf"));
    EXPECT_EQ(file.metadata().integer("general.file_type"), expected.at("file_type").as_integer());
  }
}

TEST_F(ListedModel, Case_B59_NormsStayF32UnderEveryType) {
  for (const char* type : {"Q4_K", "Q8_0", "F16"}) {
    convert(type);
    const GgufFile file = GgufFile::open(out_.file(std::string(type) + ".gguf"));
    for (const GgufTensor& tensor : file.tensors()) {
      const bool kept = tensor.shape.size() == 1;
      EXPECT_EQ(tensor.format->name(), kept ? "F32" : type) << tensor.name;
    }
  }
}

/// Models whose listings lie beside them in shared data. What differs on purpose: names and size
/// labels, and Gemma's special tokens, which are control tokens here.
class SharedListing : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Tiny, SharedListing,
                         testing::Values("llama-tiny", "gemma4-tiny", "qwen3_5-tiny"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(SharedListing, GivesEveryKeyAndTensorOfTheListedFile) {
  ASSAY_SHARED_OR_SKIP(folder, std::string("models/") + GetParam());
  ASSAY_SHARED_OR_SKIP(listing, std::string("references/llama_cpp/") + GetParam() + ".json");
  const TemporaryDirectory out;
  const Json all = read_json_file(listing).at("gguf");
  for (const char* type : {"BF16", "F32"}) {
    GgufExport plan(Checkpoint::open(folder), {.type = find_format(type)});
    plan.write(out.file("model.gguf"));
    const GgufFile file = GgufFile::open(out.file("model.gguf"));

    for (const Json& expected : all.at(type).at("metadata").as_array()) {
      const std::string& key = expected.at("key").as_string();
      if (key == "general.name" || key == "general.size_label") continue;
      if (key == "tokenizer.ggml.token_type" && std::string(GetParam()) == "gemma4-tiny") continue;
      const GgufValue* value = file.metadata().find(key);
      ASSERT_NE(value, nullptr) << key;
      expect_value(*value, expected);
    }
    EXPECT_EQ(file.metadata().items().size(), all.at(type).at("metadata").as_array().size());
    EXPECT_EQ(file.tensors().size(), all.at(type).at("tensors").as_array().size());
    for (const Json& expected : all.at(type).at("tensors").as_array()) {
      const GgufTensor* tensor = file.find(expected.at("name").as_string());
      ASSERT_NE(tensor, nullptr) << expected.at("name").as_string();
      EXPECT_EQ(tensor->format->name(), expected.at("type").as_string()) << tensor->name;
      EXPECT_EQ(sha256_hex(tensor->bytes), expected.at("sha256").as_string()) << tensor->name;
    }
  }
}

// ---------------------------------------------------------------------------------------------
// There and back

std::vector<float> decode(const CheckpointMatrix& matrix) {
  std::vector<float> out(static_cast<size_t>(matrix.view.rows * matrix.view.columns));
  for (int64_t r = 0; r < matrix.view.rows; ++r) {
    matrix.decode_row(r, std::span(out).subspan(static_cast<size_t>(r * matrix.view.columns),
                                                static_cast<size_t>(matrix.view.columns)));
  }
  return out;
}

/// Converts and opens the result as a checkpoint.
std::shared_ptr<const Checkpoint> round_trip(const TinyModel& model,
                                             const TemporaryDirectory& folder,
                                             const GgufExportOptions& options = {}) {
  GgufExport plan(Checkpoint::open(model.write(folder.file("model"))), options);
  plan.write(folder.file("model.gguf"));
  return Checkpoint::open(folder.file("model.gguf"));
}

Json rope(Json::Object members) { return Json(std::move(members)); }

TEST(GgufRoundTrip, GivesBackSpecAndTensorsOfEveryVariant) {
  const std::vector<Json::Object> ropes = {
      {},
      {{"rope_theta", 500000.0}},
      {{"rope_scaling", rope({{"rope_type", "linear"}, {"factor", 2.5}})}},
      {{"rope_scaling",
        rope({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}})}},
      {{"rope_scaling",
        rope({{"rope_type", "yarn"}, {"factor", 8.0}, {"beta_fast", 16.0}, {"beta_slow", 2.0}})}},
      {{"rope_scaling", rope({{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 512}})}},
      {{"rope_theta", 100000.0},
       {"rope_scaling", rope({{"rope_type", "llama3"},
                              {"factor", 20.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 3.0},
                              {"original_max_position_embeddings", 1000}})}}};
  for (const Json::Object& config : ropes) {
    for (const bool tied : {false, true}) {
      const TemporaryDirectory folder;
      const TinyModel model = make_tiny_model({.head_dim = 32,
                                               .tied_head = tied,
                                               .attention_bias = !tied,
                                               .mlp_bias = !tied,
                                               .config = config});

      const auto gguf = round_trip(model, folder);
      const auto source = Checkpoint::open(folder.file("model"));

      const AttentionSpec& a = source->spec().layers[1].attention;
      const AttentionSpec& b = gguf->spec().layers[1].attention;
      EXPECT_EQ(a.rope, b.rope) << Json(config).dump();
      EXPECT_EQ(a.n_heads, b.n_heads);
      EXPECT_EQ(a.n_kv_heads, b.n_kv_heads);
      EXPECT_EQ(a.head_dim, b.head_dim);
      EXPECT_EQ(a.scale, b.scale);
      EXPECT_EQ(a.qkv_bias, b.qkv_bias);
      EXPECT_EQ(a.o_bias, b.o_bias);
      EXPECT_EQ(source->spec().layers[0].mlp.bias, gguf->spec().layers[0].mlp.bias);
      EXPECT_EQ(static_cast<float>(source->spec().rms_norm_eps),
                static_cast<float>(gguf->spec().rms_norm_eps));
      EXPECT_EQ(source->spec().tied_head, gguf->spec().tied_head);
      EXPECT_EQ(source->spec().vocab_size, gguf->spec().vocab_size);
      EXPECT_EQ(source->spec().context_length, gguf->spec().context_length);
      EXPECT_EQ(source->spec().bos_id, gguf->spec().bos_id);
      EXPECT_EQ(source->spec().stop_ids, gguf->spec().stop_ids);
      EXPECT_EQ(gguf->kind(), CheckpointKind::kGguf);
      EXPECT_EQ(gguf->spec().source_dtype, DType::kBF16);
      for (const TensorEntry& entry : source->tensors()) {
        if (entry.shape.size() == 2) {
          EXPECT_TRUE(test::bits_equal(decode(gguf->matrix(entry.role, entry.layer)),
                                       decode(source->matrix(entry.role, entry.layer))))
              << entry.hf_name;
        } else {
          EXPECT_TRUE(test::bits_equal(gguf->vector(entry.role, entry.layer),
                                       source->vector(entry.role, entry.layer)))
              << entry.hf_name;
        }
      }
    }
  }
}

TEST(GgufRoundTrip, Case_B52_UnknownFrequencyFactorsAreRefused) {
  const TemporaryDirectory folder;
  const TinyModel model = make_tiny_model(
      {.config = {{"rope_scaling", rope({{"rope_type", "llama3"},
                                         {"factor", 8.0},
                                         {"low_freq_factor", 1.0},
                                         {"high_freq_factor", 4.0},
                                         {"original_max_position_embeddings", 512}})}}});
  round_trip(model, folder);
  std::string bytes = read_text_file(folder.file("model.gguf"));
  const GgufFile file = GgufFile::open(folder.file("model.gguf"));
  const float other = 3.1415f;
  bytes.replace(file.data_start(), 4, reinterpret_cast<const char*>(&other), 4);
  folder.write("changed.gguf", bytes);

  EXPECT_THROW(Checkpoint::open(folder.file("changed.gguf")), UnsupportedError);
}

TEST(GgufRoundTrip, Case_B54_KeepsSeveralStopIds) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model();
  model.generation_config = Json::object();
  model.generation_config.set("eos_token_id", Json(Json::Array{Json(7), Json(1)}));

  const auto gguf = round_trip(model, folder);

  EXPECT_THAT(gguf->spec().stop_ids, testing::ElementsAre(1, 7));
}

TEST(GgufRoundTrip, MistralsWindowIsAWarning) {
  const TemporaryDirectory folder;
  const TinyModel model =
      make_tiny_model({.model_type = "mistral", .config = {{"sliding_window", 16}}});

  const GgufExport plan(Checkpoint::open(model.write(folder.file("model"))), {});

  EXPECT_THAT(plan.warnings(), testing::ElementsAre(HasSubstr("sliding window of 16")));
}

/// A bundled model with a byte-level tokenizer.
TinyModel bundled(const char* family) {
  TinyModel model = test::read_model(test::family_model_path(family));
  model.tokenizer_json = make_tiny_model({.vocab_size = 256}).tokenizer_json;
  return model;
}

/// The bundled Qwen3.5 with `n` blocks that predict further tokens, as its folders have them.
TinyModel with_prediction_blocks(int n) {
  TinyModel model = bundled("qwen3_5");
  uint64_t seed = 100;
  const auto add = [&](const std::string& name, Shape shape) {
    model.add("mtp." + name + ".weight",
              test::random_tensor(DType::kBF16, std::move(shape), ++seed));
  };
  add("fc", {64, 128});
  for (const char* name : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) add(name, {64});
  for (int i = 0; i < n; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      add(layer + name, {64});
    add(layer + "self_attn.q_proj", {128, 64});
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) add(layer + name, {32, 64});
    add(layer + "self_attn.o_proj", {64, 64});
    for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) add(layer + name, {32});
    for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) add(layer + name, {96, 64});
    add(layer + "mlp.down_proj", {64, 96});
  }
  return model;
}

TEST(GgufRoundTrip, SectionsOfRotationBeyondTheHeadAreRefused) {
  for (const int64_t section : {int64_t{1} << 32, int64_t{-1}, int64_t{33}}) {
    const TemporaryDirectory folder;
    TinyModel model = bundled("qwen3_5");
    Json rope = model.config.at("rope_parameters");
    model.config.set("rope_parameters",
                     rope.set("mrope_section", Json(Json::Array{section, 1, 1})));
    EXPECT_THROW(GgufExport(Checkpoint::open(model.write(folder.file("model"))), {}), FormatError)
        << section;
  }
}

TEST(GgufRoundTrip, Case_B58_BlocksThatPredictTokensAreThoseOfTheTensors) {
  const TemporaryDirectory folder;
  TinyModel counted = bundled("qwen3_5");
  counted.config.set("mtp_num_hidden_layers", 1);
  TinyModel incomplete = with_prediction_blocks(1);
  incomplete.erase("mtp.norm.weight");

  const GgufExport none(Checkpoint::open(counted.write(folder.file("counted"))), {});
  const GgufExport without(Checkpoint::open(incomplete.write(folder.file("incomplete"))), {});

  EXPECT_THAT(none.warnings(), testing::Contains(AllOf(HasSubstr("config.json counts 1 blocks"),
                                                       HasSubstr("are those of 0"))));
  EXPECT_THAT(without.warnings(),
              testing::Contains(AllOf(HasSubstr("left out: mtp (14 tensors"),
                                      HasSubstr("\"mtp.norm.weight\" is missing"))));
  for (const GgufExport* plan : {&none, &without}) {
    EXPECT_EQ(plan->metadata().integer("qwen35.block_count"), 4);
    EXPECT_EQ(plan->metadata().find("qwen35.nextn_predict_layers"), nullptr);
    for (const ExportTensor& tensor : plan->tensors()) {
      EXPECT_FALSE(tensor.name.starts_with("blk.4.")) << tensor.name;
    }
  }
}

// Names, shapes and keys are those of llama.cpp's conversion/qwen.py (_QwenMtpMixin) for the same
// folder.
TEST(GgufRoundTrip, Case_B58_BlocksThatPredictTokensAreKeptAndComeBackExactly) {
  const TemporaryDirectory folder;
  for (const int n : {1, 2}) {
    TinyModel model = with_prediction_blocks(n);
    const std::string path = model.write(folder.file("model" + std::to_string(n)));
    const auto checkpoint = Checkpoint::open(path);
    GgufExport plan(checkpoint, {});
    plan.write(folder.file("model.gguf"));

    const GgufFile file = GgufFile::open(folder.file("model.gguf"));
    EXPECT_EQ(file.metadata().integer("qwen35.block_count"), 4 + n);
    EXPECT_EQ(file.metadata().integer("qwen35.nextn_predict_layers"), n);
    std::vector<bool> recurrent{true, true, true, false};
    recurrent.resize(static_cast<size_t>(4 + n));
    EXPECT_EQ(*file.metadata().find("qwen35.attention.recurrent_layers"),
              GgufValue(GgufArray{recurrent}));
    const std::map<std::string, Shape> shapes = {
        {"nextn.eh_proj", {64, 128}}, {"nextn.enorm", {64}},
        {"nextn.hnorm", {64}},        {"nextn.shared_head_norm", {64}},
        {"attn_norm", {64}},          {"post_attention_norm", {64}},
        {"attn_q", {128, 64}},        {"attn_k", {32, 64}},
        {"attn_v", {32, 64}},         {"attn_output", {64, 64}},
        {"attn_q_norm", {32}},        {"attn_k_norm", {32}},
        {"ffn_gate", {96, 64}},       {"ffn_up", {96, 64}},
        {"ffn_down", {64, 96}}};
    size_t n_tensors = 0;
    for (const GgufTensor& tensor : file.tensors()) {
      if (!tensor.name.starts_with("blk.4.")) continue;
      const std::string name = tensor.name.substr(6, tensor.name.size() - 6 - 7);
      ASSERT_TRUE(shapes.contains(name)) << tensor.name;
      EXPECT_EQ(tensor.shape, shapes.at(name)) << tensor.name;
      EXPECT_EQ(tensor.format->name(), tensor.shape.size() == 1 ? "F32" : "BF16") << tensor.name;
      ++n_tensors;
    }
    EXPECT_EQ(n_tensors, shapes.size());

    const auto gguf = Checkpoint::open(folder.file("model.gguf"));
    EXPECT_EQ(gguf->spec().layers.size(), 4u);
    EXPECT_EQ(gguf->tensors().size(), checkpoint->tensors().size());
    EXPECT_EQ(gguf->prediction_tensors().size(), static_cast<size_t>(4 + 11 * n));
    const std::string back = folder.file("back" + std::to_string(n));
    std::filesystem::create_directory(back);
    HfExport(gguf, {}).write(back);
    const auto again = SafetensorsModel::open(back);
    for (const test::NamedTensor& tensor : model.tensors) {
      const SafetensorsEntry* found = again.find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->view.shape, tensor.tensor.shape) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(found->view.bytes, tensor.tensor.bytes)) << tensor.name;
    }
    EXPECT_EQ(read_json_file(back + "/config.json").at("mtp_num_hidden_layers").as_integer(), n);
  }
}

TEST(GgufRoundTrip, Case_B58_AFileWithHalfABlockThatPredictsTokensIsTheModelBeforeIt) {
  const TemporaryDirectory folder;
  GgufExport(Checkpoint::open(with_prediction_blocks(1).write(folder.file("model"))), {})
      .write(folder.file("model.gguf"));
  const GgufFile file = GgufFile::open(folder.file("model.gguf"));
  std::vector<GgufTensorSource> tensors;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "blk.4.nextn.hnorm.weight") continue;
    tensors.push_back({tensor.name, tensor.shape, tensor.format,
                       [&tensor](const auto& sink) { sink(tensor.bytes); }});
  }
  write_gguf(folder.file("half.gguf"), file.metadata(), tensors);

  const auto model = Checkpoint::open(folder.file("half.gguf"));

  EXPECT_EQ(model->spec().layers.size(), 4u);
  EXPECT_EQ(model->spec().n_prediction_blocks, 0);
  EXPECT_TRUE(model->prediction_tensors().empty());
  EXPECT_THAT(model->warnings(), testing::ElementsAre(HasSubstr("left out: 14 tensors")));
}

TEST(GgufRoundTrip, Case_B62_OneIsAddedToANormOnceAndWhereTheFamilySaysSo) {
  const TemporaryDirectory folder;
  const auto first_norm = [&](const char* family, uint16_t bf16) {
    TinyModel model = bundled(family);
    Tensor& norm = model.tensor("model.layers.0.input_layernorm.weight");
    for (size_t i = 0; i < norm.bytes.size(); i += 2) std::memcpy(&norm.bytes[i], &bf16, 2);
    const std::string path = model.write(folder.file(family));
    GgufExport(Checkpoint::open(path), {}).write(folder.file("model.gguf"));
    float value = 0;
    const GgufFile file = GgufFile::open(folder.file("model.gguf"));
    std::memcpy(&value, file.find("blk.0.attn_norm.weight")->bytes.data(), sizeof value);
    const auto gguf = Checkpoint::open(folder.file("model.gguf"));
    EXPECT_EQ(gguf->vector(Role::kAttentionNorm, 0),
              Checkpoint::open(path)->vector(Role::kAttentionNorm, 0));
    return value;
  };

  EXPECT_EQ(first_norm("gemma3", 0x0000), 1.0f);
  EXPECT_EQ(first_norm("gemma4", 0x3F80), 1.0f);
}

TEST(GgufRoundTrip, Case_B62_NormsThatHoldTheOneAlreadyAreAWarning) {
  const TemporaryDirectory folder;
  TinyModel model = bundled("gemma3");
  const auto warnings = [&] {
    return GgufExport(Checkpoint::open(model.write(folder.file("model"))), {}).warnings();
  };

  EXPECT_THAT(warnings(), testing::Not(testing::Contains(HasSubstr("1 + w"))));
  for (test::NamedTensor& named : model.tensors) {
    if (!named.name.ends_with("norm.weight")) continue;
    const uint16_t one = 0x3F80;
    for (size_t i = 0; i < named.tensor.bytes.size(); i += 2) {
      std::memcpy(&named.tensor.bytes[i], &one, 2);
    }
  }
  EXPECT_THAT(warnings(), testing::Contains(HasSubstr("may hold 1 + w already")));
}

// ---------------------------------------------------------------------------------------------
// Vocabulary

const std::vector<std::string>& texts_of(const GgufMetadata& metadata, const char* key) {
  return std::get<std::vector<std::string>>(std::get<GgufArray>(*metadata.find(key)).values);
}

GgufMetadata metadata_of(const TinyModel& model, const GgufExportOptions& options = {}) {
  const TemporaryDirectory folder;
  return GgufExport(Checkpoint::open(model.write(folder.file("model"))), options).metadata();
}

TEST(GgufVocabulary, Case_B48_RowsWithoutATokenBecomeUnusedPadding) {
  const GgufMetadata metadata = metadata_of(make_tiny_model());

  const std::vector<std::string>& tokens = texts_of(metadata, "tokenizer.ggml.tokens");
  const auto& types = std::get<std::vector<int32_t>>(
      std::get<GgufArray>(*metadata.find("tokenizer.ggml.token_type")).values);
  ASSERT_EQ(tokens.size(), 320u);
  ASSERT_EQ(types.size(), 320u);
  EXPECT_EQ(tokens[270], "or");
  EXPECT_EQ(types[270], 1);
  EXPECT_EQ(tokens[271], "[PAD271]");
  EXPECT_EQ(types[271], 5);
  EXPECT_EQ(tokens[319], "[PAD319]");
  EXPECT_EQ(types[0], 3);
}

TEST(GgufVocabulary, Case_B48_RefusesMoreTokensThanRows) {
  TinyModel model = make_tiny_model();
  model.tokenizer_json = make_tiny_model({.vocab_size = 320}).tokenizer_json;
  TinyModel small = make_tiny_model({.vocab_size = 265});
  small.tokenizer_json = model.tokenizer_json;

  try {
    metadata_of(small);
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ids up to 270"), HasSubstr("265 rows")));
  }
}

template <class Element>
const std::vector<Element>& array_of(const GgufMetadata& metadata, const char* key) {
  return std::get<std::vector<Element>>(std::get<GgufArray>(*metadata.find(key)).values);
}

TinyModel model_of_pieces() {
  TinyModel model = make_tiny_model();
  model.tokenizer_json = test::piece_tokenizer_json();
  model.tokenizer_config_json.clear();
  return model;
}

TEST(GgufVocabulary, ScoresOfPiecesFollowTheOrderOfTheMerges) {
  const GgufMetadata metadata = metadata_of(model_of_pieces());

  EXPECT_EQ(metadata.string("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(metadata.string("tokenizer.ggml.pre"), "default");
  EXPECT_EQ(metadata.boolean("tokenizer.ggml.add_space_prefix"), false);
  EXPECT_EQ(metadata.find("tokenizer.ggml.merges"), nullptr);
  const auto& scores = array_of<float>(metadata, "tokenizer.ggml.scores");
  ASSERT_EQ(scores.size(), 320u);
  EXPECT_EQ(texts_of(metadata, "tokenizer.ggml.tokens")[32], "the");
  EXPECT_EQ(scores[31], 0.0f);  // "th", which the first merge makes
  EXPECT_EQ(scores[32], -1.0f);
  EXPECT_EQ(scores[5], -6.0f);  // "a": none makes it
}

TEST(GgufVocabulary, OfPiecesKnowsTheUnknownOneFromTheTokenizerAlone) {
  const GgufMetadata metadata = metadata_of(model_of_pieces());

  EXPECT_EQ(metadata.integer("tokenizer.ggml.unknown_token_id"), 3);
  EXPECT_EQ(array_of<int32_t>(metadata, "tokenizer.ggml.token_type")[3], 2);
}

TEST(GgufVocabulary, SaysWhetherPiecesGetASpaceInFront) {
  TinyModel model = model_of_pieces();
  Json tokenizer = parse_json(model.tokenizer_json, "tokenizer.json");
  tokenizer.set("normalizer", tokenization::piece_normalizer(true));
  model.tokenizer_json = tokenizer.dump();

  EXPECT_EQ(metadata_of(model).boolean("tokenizer.ggml.add_space_prefix"), true);
}

TEST(GgufVocabulary, RefusesPiecesWhoseSpacesItCannotSay) {
  TinyModel model = model_of_pieces();
  Json tokenizer = parse_json(model.tokenizer_json, "tokenizer.json");
  tokenizer.set("normalizer", nullptr)
      .set("pre_tokenizer", Json::object()
                                .set("type", "Metaspace")
                                .set("replacement", "\u2581")
                                .set("prepend_scheme", "first")
                                .set("split", false));
  model.tokenizer_json = tokenizer.dump();

  try {
    metadata_of(model, {.pre = "default"});
    ADD_FAILURE();
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("this BPE tokenizer"), HasSubstr("tokenizer.model")));
  }
}

/// A Llama whose folder has a tokenizer.model alone, in GGUF and back.
class PieceFolder : public testing::TestWithParam<const char*> {
 protected:
  PieceFolder() {
    TinyModel model = make_tiny_model({.vocab_size = 1010});
    model.tokenizer_json.clear();
    model.tokenizer_config_json.clear();
    model.write(folder_.file("model"));
    folder_.write(
        "model/tokenizer.model",
        read_text_file(test::source_path(std::string("tests/data/pieces/") + GetParam())));
    GgufExport(Checkpoint::open(folder_.file("model")), {}).write(folder_.file("model.gguf"));
  }

  const TemporaryDirectory folder_;
};

INSTANTIATE_TEST_SUITE_P(GgufVocabulary, PieceFolder,
                         testing::Values("bpe.model", "bpe_unknown.model"), [](const auto& model) {
                           return std::string(model.param).substr(0, model.index == 0 ? 3 : 11);
                         });

TEST_P(PieceFolder, GivesTheSameIdsFromGgufAndBackInAFolder) {
  const Tokenizer tokenizer = Tokenizer::from_folder(folder_.file("model"));
  const auto gguf = Checkpoint::open(folder_.file("model.gguf"));

  const Tokenizer from_gguf = Tokenizer::from_gguf(gguf->gguf()->metadata(), "model.gguf");
  std::filesystem::create_directories(folder_.file("back"));
  HfExport(gguf, {}).write(folder_.file("back"));
  const Tokenizer back = Tokenizer::from_folder(folder_.file("back"));

  const Json all = read_json_file(test::source_path("tests/data/pieces/cases.json"));
  for (const Json& row : all.at("models").as_array()[0].at("cases").as_array()) {
    const std::string& text = row.at("text").as_string();
    EXPECT_EQ(from_gguf.encode(text), tokenizer.encode(text)) << text;
    EXPECT_EQ(back.encode(text), tokenizer.encode(text)) << text;
  }
}

GgufMetadata metadata_of_pieces(const std::string& file) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model({.vocab_size = 1010});
  model.tokenizer_json.clear();
  model.tokenizer_config_json.clear();
  model.write(folder.file("model"));
  folder.write("model/tokenizer.model",
               read_text_file(test::source_path("tests/data/pieces/" + file)));
  return GgufExport(Checkpoint::open(folder.file("model")), {}).metadata();
}

TEST_P(PieceFolder, HasTheScoresAndTypesOfTheFile) {
  const Tokenizer tokenizer = Tokenizer::from_folder(folder_.file("model"));
  const auto gguf = Checkpoint::open(folder_.file("model.gguf"));
  const GgufMetadata& metadata = gguf->gguf()->metadata();

  EXPECT_EQ(metadata.string("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(metadata.boolean("tokenizer.ggml.add_space_prefix"), tokenizer.space_prefix());
  EXPECT_EQ(metadata.integer("tokenizer.ggml.unknown_token_id"), 0);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.bos_token_id"), 1);
  EXPECT_EQ(metadata.boolean("tokenizer.ggml.add_bos_token"), true);
  const auto& scores = array_of<float>(metadata, "tokenizer.ggml.scores");
  const auto& types = array_of<int32_t>(metadata, "tokenizer.ggml.token_type");
  ASSERT_EQ(scores.size(), 1010u);
  const auto n_pieces = tokenizer.scores().size();
  EXPECT_TRUE(std::equal(tokenizer.scores().begin(), tokenizer.scores().end(), scores.begin()));
  EXPECT_EQ(scores[1009], -10000.0f);  // of no token
  const bool has_bytes = tokenizer.id_of("<0x00>").has_value();
  EXPECT_THAT(std::vector<int32_t>(types.begin(), types.begin() + 4),
              testing::ElementsAre(2, 3, 3, has_bytes ? 6 : 1));
  EXPECT_EQ(types[n_pieces - 1], 1);
  EXPECT_EQ(types[1009], 5);
}

/// The model of PieceFolder with the files that say which tokens were added.
std::string write_piece_model(const TemporaryDirectory& folder, const std::string& tokenizer_json) {
  TinyModel model = make_tiny_model({.vocab_size = 1010});
  model.tokenizer_json = tokenizer_json;
  model.tokenizer_config_json = R"({
    "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
    "added_tokens_decoder": {
      "0": {"content": "<unk>", "special": true}, "1": {"content": "<s>", "special": true},
      "2": {"content": "</s>", "special": true}, "1001": {"content": "<|im_start|>"},
      "1002": {"content": "\u2581\u2581wide", "special": false}}})";
  const std::string path = model.write(folder.file("model"));
  folder.write("model/tokenizer.model",
               read_text_file(test::source_path("tests/data/pieces/bpe.model")));
  folder.write("model/added_tokens.json", R"({"<extra>": 1000, "<|im_start|>": 1001})");
  return path;
}

// Texts, scores and types as llama.cpp's _create_vocab_sentencepiece gives them.
TEST(GgufVocabulary, AddedTokensHaveTheScoreAndTypeOfTheFieldsConverter) {
  const TemporaryDirectory folder;
  const std::string model = write_piece_model(folder, "");

  const GgufExport plan(Checkpoint::open(model), {});

  const GgufMetadata& metadata = plan.metadata();
  const auto& tokens = texts_of(metadata, "tokenizer.ggml.tokens");
  const auto& scores = array_of<float>(metadata, "tokenizer.ggml.scores");
  const auto& types = array_of<int32_t>(metadata, "tokenizer.ggml.token_type");
  const std::vector<float> of_file =
      array_of<float>(metadata_of_pieces("bpe.model"), "tokenizer.ggml.scores");
  const auto row = [&](size_t id) { return std::tuple(tokens[id], scores[id], types[id]); };
  EXPECT_EQ(row(0), std::tuple("<unk>", -1000.0f, 3));
  EXPECT_EQ(row(2), std::tuple("</s>", -1000.0f, 3));
  EXPECT_EQ(row(3), std::tuple("<0x00>", 0.0f, 6));
  EXPECT_EQ(row(999), std::tuple(tokens[999], of_file[999], 1));
  EXPECT_EQ(row(1000), std::tuple("<extra>", -1000.0f, 4));
  EXPECT_EQ(row(1001), std::tuple("<|im_start|>", -1000.0f, 3));
  EXPECT_EQ(row(1002), std::tuple("  wide", -1000.0f, 4));
  EXPECT_EQ(row(1003), std::tuple("[PAD1003]", -10000.0f, 5));
}

TEST(GgufVocabulary, IdsOfAddedTokensBeyond32BitsAreRefused) {
  for (const char* id : {"4294968296", "-1", "18446744073709551615", "1.5", "\"7\""}) {
    const TemporaryDirectory folder;
    const std::string model = write_piece_model(folder, "");
    folder.write("model/added_tokens.json", std::string(R"({"<extra>": )") + id + "}");
    try {
      const GgufExport plan(Checkpoint::open(model), {});
      ADD_FAILURE() << id;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("added_tokens.json"), HasSubstr("<extra>")));
    }
  }
}

TEST(GgufVocabulary, AddedTokensComeBackFromGgufAndFromAFolder) {
  const TemporaryDirectory folder;
  const std::string model = write_piece_model(folder, "");
  const Tokenizer tokenizer = Tokenizer::from_folder(model);
  GgufExport(Checkpoint::open(model), {}).write(folder.file("model.gguf"));
  const auto gguf = Checkpoint::open(folder.file("model.gguf"));

  const Tokenizer from_gguf = Tokenizer::from_gguf(gguf->gguf()->metadata(), "model.gguf");
  std::filesystem::create_directories(folder.file("back"));
  HfExport(gguf, {}).write(folder.file("back"));
  const Tokenizer back = Tokenizer::from_folder(folder.file("back"));

  EXPECT_EQ(from_gguf.token(1002), "\u2581\u2581wide");
  for (const char* text :
       {"", "a<extra>b", "<extra> the end", "<|im_start|>user", "  wide", "a  wide",
        "\u2581\u2581wide", "<s>the</s>", "\u56EE", "the end of the line"}) {
    EXPECT_EQ(from_gguf.encode(text), tokenizer.encode(text)) << text;
    EXPECT_EQ(back.encode(text), tokenizer.encode(text)) << text;
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(back.decode(ids), tokenizer.decode(ids)) << text;
  }
}

// As Mistral's third version has it: GGUF has no words for the scheme "first".
TEST(GgufVocabulary, TakesTokenizerModelWhereGgufCannotSayTheRuleOfTokenizerJson) {
  const TemporaryDirectory folder;
  Json json = read_json_file(test::source_path("tests/data/pieces/metaspace_bpe.json"));
  Json::Array added = json.at("added_tokens").as_array();
  added.resize(3);  // those of the piece file
  for (int id = 1000; id < 1003; ++id) {
    const char* const contents[] = {"<extra>", "<|im_start|>", "\u2581\u2581wide"};
    Json token = added[1];
    token.set("id", id).set("content", contents[id - 1000]).set("special", false);
    added.push_back(token);
  }
  json.set("added_tokens", std::move(added));

  const GgufExport plan(Checkpoint::open(write_piece_model(folder, json.dump())), {});

  EXPECT_THAT(plan.warnings(), testing::ElementsAre(HasSubstr("is that of tokenizer.model")));
  EXPECT_EQ(plan.metadata().boolean("tokenizer.ggml.add_space_prefix"), true);
  EXPECT_EQ(texts_of(plan.metadata(), "tokenizer.ggml.tokens")[1000], "<extra>");

  const TemporaryDirectory other;  // a token that tokenizer.model does not know
  Json more = json;
  Json::Array longer = json.at("added_tokens").as_array();
  Json token = longer[0];
  longer.push_back(token.set("id", 1003).set("content", "<more>"));
  more.set("added_tokens", std::move(longer));
  EXPECT_THROW(GgufExport(Checkpoint::open(write_piece_model(other, more.dump())), {}),
               UnsupportedError);
}

TEST(GgufVocabulary, ScoresAreThoseOfTokenizerModelBesideTokenizerJson) {
  const TemporaryDirectory folder;
  Json json = read_json_file(test::source_path("tests/data/pieces/metaspace_bpe.json"));
  Json::Array added = json.at("added_tokens").as_array();
  added.resize(3);
  json.set("added_tokens", std::move(added))
      .set("normalizer", tokenization::piece_normalizer(true))
      .set("pre_tokenizer", nullptr);
  const auto scores_with = [&](const Json& tokenizer) {
    const GgufExport plan(Checkpoint::open(write_piece_model(folder, tokenizer.dump())), {});
    EXPECT_THAT(plan.warnings(), testing::IsEmpty());
    return array_of<float>(plan.metadata(), "tokenizer.ggml.scores");
  };
  const std::vector<float> of_file =
      array_of<float>(metadata_of_pieces("bpe.model"), "tokenizer.ggml.scores");

  const std::vector<float> same = scores_with(json);
  Json other = json;  // merges in another order: the file's scores would not say it
  Json model = json.at("model");
  Json::Array merges = model.at("merges").as_array();
  std::swap(merges.front(), merges.back());
  other.set("model", model.set("merges", std::move(merges)));

  EXPECT_EQ(same[0], -1000.0f);
  EXPECT_TRUE(std::equal(same.begin() + 3, same.begin() + 1000, of_file.begin() + 3));
  EXPECT_NE(scores_with(other)[999], of_file[999]);
}

TEST(GgufVocabulary, WritesPaddingTokenAndBosRule) {
  const GgufMetadata metadata = metadata_of(make_tiny_model());

  EXPECT_EQ(metadata.string("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(metadata.string("tokenizer.ggml.pre"), "llama-bpe");
  EXPECT_EQ(metadata.integer("tokenizer.ggml.bos_token_id"), 0);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), 1);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.padding_token_id"), 2);
  EXPECT_EQ(metadata.boolean("tokenizer.ggml.add_bos_token"), true);
}

TEST(GgufVocabulary, SaysWhereThePostProcessorAddsNothing) {
  TinyModel model = make_tiny_model();
  Json tokenizer = parse_json(model.tokenizer_json, "tokenizer.json");
  tokenizer.set("post_processor", Json());
  model.tokenizer_json = tokenizer.dump();

  const GgufMetadata metadata = metadata_of(model);

  // A reader of llama-bpe would add BOS by itself.
  EXPECT_EQ(metadata.boolean("tokenizer.ggml.add_bos_token"), false);
}

TEST(GgufVocabulary, TakesNameAndSplitRuleFromTheOptions) {
  TinyModel model = make_tiny_model();
  const std::string digits = "{1,3}";  // no reader of GGUF has groups of up to five
  const size_t at = model.tokenizer_json.find(digits);
  ASSERT_NE(at, std::string::npos);
  const GgufMetadata known = metadata_of(model, {.name = "Mine", .pre = "llama-bpe"});
  EXPECT_THAT([&] { metadata_of(model, {.pre = "qwen2"}); },
              ThrowsMessage<UsageError>(HasSubstr("GGUF calls it llama-bpe")));
  model.tokenizer_json.replace(at, digits.size(), "{1,5}");
  EXPECT_THAT([&] { metadata_of(model, {}); },
              ThrowsMessage<UnsupportedError>(HasSubstr("--pre NAME")));

  const GgufMetadata other = metadata_of(model, {.pre = "qwen2"});

  EXPECT_EQ(known.string("general.name"), "Mine");
  EXPECT_EQ(known.string("tokenizer.ggml.pre"), "llama-bpe");
  EXPECT_EQ(other.string("tokenizer.ggml.pre"), "qwen2");
}

TEST(GgufVocabulary, Case_B55_TheJinjaFileWinsOverTheConfig) {
  const TemporaryDirectory folder;
  const auto main_template = [&] { return read_chat_templates(folder.path()).main; };
  EXPECT_EQ(main_template(), std::nullopt);

  folder.write("tokenizer_config.json", R"({"chat_template": "from config"})");
  EXPECT_EQ(main_template(), "from config");

  folder.write("chat_template.jinja", "from file");
  EXPECT_EQ(main_template(), "from file");
}

TEST(GgufVocabulary, Case_B55_ReadsNamedTemplates) {
  const TemporaryDirectory folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                     {"name": "default", "template": "d"}]})");

  const ChatTemplates templates = read_chat_templates(folder.path());

  EXPECT_EQ(templates.main, "d");
  EXPECT_THAT(templates.named, testing::ElementsAre(testing::Pair("tool_use", "t")));
}

// ---------------------------------------------------------------------------------------------
// Types and losses of plain models

TEST(GgufTypes, RowsThatDoNotHoldBlocksFallBackAndSaySo) {
  const TemporaryDirectory folder;
  const TinyModel model = make_tiny_model({.hidden_size = 256, .intermediate_size = 96});

  const GgufExport plan(Checkpoint::open(model.write(folder.file("model"))),
                        {.type = find_format("Q4_K")});

  for (const ExportTensor& tensor : plan.tensors()) {
    if (tensor.name.ends_with("ffn_down.weight")) {
      EXPECT_EQ(tensor.format->name(), "Q5_0");
      EXPECT_THAT(tensor.note, HasSubstr("96 columns"));
    } else if (tensor.shape.size() == 2) {
      EXPECT_EQ(tensor.format->name(), "Q4_K");
    }
  }
}

/// bf16 values 65280, 65536, −3e38, 1e-8 and NaN: two become infinite in F16, one zero.
TinyModel with_wide_values() {
  TinyModel model = make_tiny_model();
  const std::vector<float> values = {
      65280.0f, 65536.0f, -3e38f, 1e-8f, std::numeric_limits<float>::quiet_NaN(), 1e-6f};
  Tensor& tensor = model.tensor("model.layers.0.mlp.up_proj.weight");
  for (size_t i = 0; i < tensor.bytes.size() / 2; ++i) {
    const uint16_t bits = f32_to_bf16(i < values.size() ? values[i] : 1.0f);
    std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
  }
  return model;
}

TEST(GgufTypes, Case_B51_CountsWhatF16LosesAndRefusesInfinity) {
  const TemporaryDirectory folder;
  const auto checkpoint = Checkpoint::open(with_wide_values().write(folder.file("model")));

  try {
    const GgufExport plan(checkpoint, {.type = find_format("F16")});
    ADD_FAILURE();
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("model.layers.0.mlp.up_proj.weight"),
                      HasSubstr("2 become infinite"), HasSubstr("1 zero"), HasSubstr("1 subnormal"),
                      HasSubstr("1 are NaN"), HasSubstr("--allow-infinite")));
  }

  GgufExport allowed(checkpoint, {.type = find_format("F16"), .allow_infinite = true});
  allowed.write(folder.file("model.gguf"));
  for (const ExportTensor& tensor : allowed.tensors()) {
    if (tensor.name != "blk.0.ffn_up.weight") continue;
    EXPECT_EQ(tensor.narrowing.infinite, 2);
    EXPECT_EQ(tensor.narrowing.zero, 1);
    EXPECT_EQ(tensor.narrowing.nan, 1);
  }
}

TEST(GgufTypes, Case_B51_NanIsRefusedEvenWhereNothingIsRounded) {
  const TemporaryDirectory folder;
  GgufExport plan(Checkpoint::open(with_wide_values().write(folder.file("model"))),
                  {.type = find_format("BF16")});

  EXPECT_THROW(plan.write(folder.file("model.gguf")), NumericError);
  EXPECT_FALSE(std::filesystem::exists(folder.file("model.gguf")));
}

TEST(GgufTypes, RefusesAGgufFileAsSource) {
  const TemporaryDirectory folder;
  const auto gguf = round_trip(make_tiny_model(), folder);

  EXPECT_THROW(GgufExport(gguf, {}), UsageError);
}

// ---------------------------------------------------------------------------------------------
// Faults of GGUF files

TEST(GgufCheckpoint, Case_B09_RefusesNumbersOutOfRange) {
  const TemporaryDirectory folder;
  round_trip(make_tiny_model(), folder);
  const GgufFile good = GgufFile::open(folder.file("model.gguf"));
  const std::vector<std::pair<std::string, GgufValue>> bad = {
      {"llama.attention.head_count", uint32_t{0}},
      {"llama.attention.head_count_kv", uint32_t{0}},
      {"llama.attention.head_count_kv", uint32_t{3}},
      {"llama.block_count", uint32_t{1} << 31},
      {"llama.block_count", uint32_t{0}},
      {"llama.embedding_length", uint32_t{0}},
      {"llama.attention.key_length", uint32_t{15}},
      {"llama.rope.dimension_count", uint32_t{8}},
      {"llama.vocab_size", uint32_t{321}},
      {"llama.attention.layer_norm_rms_epsilon", -1.0f},
      {"llama.rope.freq_base", 0.0f},
      {"llama.rope.scaling.type", std::string("longrope")},
      {"llama.expert_count", uint32_t{8}},
      {"tokenizer.ggml.eos_token_id", uint32_t{320}},
      {"general.architecture", std::string("mamba")}};
  for (const auto& [key, value] : bad) {
    GgufMetadata metadata = good.metadata();
    metadata.set(key, value);
    std::vector<GgufTensorSource> sources;
    for (const GgufTensor& tensor : good.tensors()) {
      sources.push_back({tensor.name, tensor.shape, tensor.format,
                         [&tensor](const auto& sink) { sink(tensor.bytes); }});
    }
    write_gguf(folder.file("bad.gguf"), metadata, sources);

    try {
      Checkpoint::open(folder.file("bad.gguf"));
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("bad.gguf")) << key;
    }
  }
}

TEST(GgufCheckpoint, NamesMissingAndUnknownTensors) {
  const TemporaryDirectory folder;
  round_trip(make_tiny_model(), folder);
  const GgufFile good = GgufFile::open(folder.file("model.gguf"));
  std::vector<GgufTensorSource> sources;
  for (const GgufTensor& tensor : good.tensors()) {
    const std::string name =
        tensor.name == "blk.1.attn_norm.weight" ? "blk.1.attn_norm_2.weight" : tensor.name;
    sources.push_back(
        {name, tensor.shape, tensor.format, [&tensor](const auto& sink) { sink(tensor.bytes); }});
  }
  write_gguf(folder.file("bad.gguf"), good.metadata(), sources);

  try {
    Checkpoint::open(folder.file("bad.gguf"));
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"blk.1.attn_norm.weight\" [64] is missing"),
                                    HasSubstr("\"blk.1.attn_norm_2.weight\" is not part")));
  }
}

}  // namespace
}  // namespace assay
