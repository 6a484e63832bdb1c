#include "convert/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/gguf.h"
#include "convert/gguf_export.h"
#include "convert/tokenizer.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::make_tiny_model;
using test::TemporaryDirectory;
using test::TinyModel;
using testing::HasSubstr;

std::string to_hf(const std::string& source, const std::string& out,
                  const HfExportOptions& options = {}) {
  std::filesystem::create_directories(out);
  HfExport result(Checkpoint::open(source), options);
  result.write(out);
  return out;
}

std::string to_gguf(const std::string& source, const std::string& out, const char* type) {
  GgufExport plan(Checkpoint::open(source), {.type = find_format(type), .name = "x"});
  plan.write(out);
  return out;
}

/// The same names, types, shapes and bytes.
void expect_same_tensors(const std::string& a, const std::string& b) {
  const SafetensorsModel x = SafetensorsModel::open(a), y = SafetensorsModel::open(b);
  ASSERT_EQ(x.names(), y.names());
  for (const std::string& name : x.names()) {
    const TensorView &u = x.find(name)->view, &v = y.find(name)->view;
    EXPECT_EQ(dtype_name(u.dtype), dtype_name(v.dtype)) << name;
    EXPECT_EQ(u.shape, v.shape) << name;
    EXPECT_TRUE(std::ranges::equal(u.bytes, v.bytes)) << name;
  }
}

/// The same keys with the same values, and the same tensors; shards may give them another order.
void expect_same_gguf(const std::string& a, const std::string& b) {
  const GgufFile x = GgufFile::open(a), y = GgufFile::open(b);
  EXPECT_EQ(x.metadata().items(), y.metadata().items());
  ASSERT_EQ(x.tensors().size(), y.tensors().size());
  for (const GgufTensor& tensor : x.tensors()) {
    const GgufTensor* other = y.find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(tensor.format, other->format) << tensor.name;
    EXPECT_EQ(tensor.shape, other->shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, other->bytes)) << tensor.name;
  }
}

/// HF → GGUF → HF gives the tensors back, and → GGUF again the file's content.
void expect_inverse(const std::string& model, const std::string& cases) {
  const TemporaryDirectory folder;
  const std::string gguf = to_gguf(model, folder.file("a.gguf"), "BF16");

  const std::string back = to_hf(gguf, folder.file("back"));

  expect_same_tensors(model, back);
  expect_same_gguf(to_gguf(back, folder.file("b.gguf"), "BF16"), gguf);
  const Tokenizer a = Tokenizer::from_folder(model), b = Tokenizer::from_folder(back);
  const Json all = read_json_file(cases);
  for (const Json& row : all.at("cases").as_array()) {
    EXPECT_EQ(b.encode(row.at("text").as_string()), a.encode(row.at("text").as_string()));
  }
}

TEST(HfExport, IsTheInverseOfTheConversionToGguf) {
  expect_inverse(test::source_path("tests/data/llama-tiny"),
                 test::source_path("tests/data/llama_tiny_tokens.json"));
}

TEST(HfExport, IsTheInverseForEveryFamilyOfTheSharedModels) {
  for (const auto& [model, cases] :
       {std::pair{"models/llama-small", "references/tokenizers/llama.json"},
        std::pair{"models/gemma4-tiny", "references/tokenizers/gemma4.json"},
        std::pair{"models/qwen3_5-tiny", "references/tokenizers/qwen3_5.json"}}) {
    ASSAY_SHARED_OR_SKIP(path, model);
    ASSAY_SHARED_OR_SKIP(cases_path, cases);
    expect_inverse(path, cases_path);
  }
}

/// HF → GGUF → HF → GGUF of a bundled model with the given tokenizer.
void expect_inverse_of_family(const std::string& family, const std::string& tokenizer_json) {
  SCOPED_TRACE(family);
  const TemporaryDirectory folder;
  TinyModel model = test::read_model(test::family_model_path(family));
  model.tokenizer_json = tokenizer_json;
  const std::string source = model.write(folder.file("model"));
  const std::string gguf = to_gguf(source, folder.file("a.gguf"), "BF16");

  const std::string back = to_hf(gguf, folder.file("back"));

  expect_same_tensors(source, back);
  expect_same_gguf(to_gguf(back, folder.file("b.gguf"), "BF16"), gguf);
  const auto a = Checkpoint::open(source), b = Checkpoint::open(back), c = Checkpoint::open(gguf);
  EXPECT_EQ(a->spec().layers.size(), b->spec().layers.size());
  EXPECT_EQ(a->spec().stop_ids, b->spec().stop_ids);
  const Tokenizer x = Tokenizer::from_folder(source), y = Tokenizer::from_folder(back);
  const Tokenizer z = Tokenizer::from_gguf(c->gguf()->metadata(), gguf);
  for (const char* text : {"", "the and  the", " a band of the ants", "athe<bos>the", "aa the"}) {
    EXPECT_EQ(y.encode(text), x.encode(text)) << text;
    EXPECT_EQ(z.encode(text), x.encode(text)) << text;
    EXPECT_EQ(y.decode(y.encode(text), true), x.decode(x.encode(text), true)) << text;
  }
}

TEST(HfExport, IsTheInverseForEveryBundledFamilyWithEitherKindOfTokenizer) {
  for (const std::string& model : test::family_models()) {
    expect_inverse_of_family(model, make_tiny_model({.vocab_size = 256}).tokenizer_json);
    expect_inverse_of_family(model, test::piece_tokenizer_json());
  }
}

TEST(HfExport, StacksExpertsWhereTheModelsClassDoes) {
  const TemporaryDirectory folder;
  TinyModel model = test::read_model(test::family_model_path("gemma4_moe"));
  model.tokenizer_json = test::piece_tokenizer_json();
  const std::string gguf =
      to_gguf(model.write(folder.file("model")), folder.file("a.gguf"), "Q8_0");

  const HfExport result(Checkpoint::open(gguf), {});

  const auto stack =
      std::ranges::find(result.tensors(), "model.layers.1.experts.gate_up_proj", &HfTensor::name);
  ASSERT_NE(stack, result.tensors().end());
  EXPECT_EQ(stack->shape, (Shape{6, 128, 64}));
  EXPECT_EQ(stack->source_type, "Q8_0");
}

TEST(HfExport, WritesACardOfWhatItMade) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model();
  test::quantize_as_compressed_tensors(model, {});
  const std::string source = model.write(folder.file("quantized"));
  folder.write(
      "quantized/README.md",
      "---\nlicense: mit\nbase_model: org/name\nbase_model_relation: quantized\n---\nOld\n");

  const std::string out =
      to_hf(source, folder.file("plain"), {.card = Json::object().set("quantized_by", "somebody")});

  const std::string card = read_text_file(out + "/README.md");
  EXPECT_THAT(card, testing::StartsWith("---\n"
                                        "base_model: org/name\n"
                                        "base_model_relation: quantized\n"
                                        "license: mit\n"
                                        "library_name: transformers\n"
                                        "pipeline_tag: text-generation\n"
                                        "quantized_by: somebody\n"
                                        "---\n\n# Plain weights\n"));
  EXPECT_THAT(card, testing::AllOf(HasSubstr("| W4 group 32 | BF16 | 14 |"),
                                   testing::Not(HasSubstr("Old"))));
}

TEST(HfExport, KeepsTheCardOfPlainWeightsAsItIs) {
  const TemporaryDirectory folder;
  const std::string source = make_tiny_model().write(folder.file("model"));
  const std::string card = "---\nlicense: mit\n---\nText \xff\n";
  folder.write("model/README.md", card);

  EXPECT_EQ(read_text_file(to_hf(source, folder.file("out")) + "/README.md"), card);
  EXPECT_THROW(to_hf(source, folder.file("b"), {.card = Json::object().set("license", "mit")}),
               UsageError);
}

TEST(HfExport, TheCardSaysWhatAGgufFileSays) {
  const TemporaryDirectory folder;
  const std::string plain =
      to_gguf(make_tiny_model().write(folder.file("model")), folder.file("a.gguf"), "BF16");
  const GgufFile file = GgufFile::open(plain);
  GgufMetadata metadata = file.metadata();
  metadata.set("general.license", "other");
  metadata.set("general.license.name", "a: b");
  metadata.set("general.base_model.count", uint32_t{2});
  metadata.set("general.base_model.0.repo_url", "https://huggingface.co/org/name");
  metadata.set("general.base_model.1.repo_url", "https://example.org/x");
  std::vector<GgufTensorSource> tensors;
  for (const GgufTensor& tensor : file.tensors()) {
    tensors.push_back({tensor.name, tensor.shape, tensor.format,
                       [&tensor](const auto& sink) { sink(tensor.bytes); }});
  }
  write_gguf(folder.file("b.gguf"), metadata, tensors);

  const std::string out = to_hf(folder.file("b.gguf"), folder.file("out"));

  EXPECT_THAT(read_text_file(out + "/README.md"),
              testing::StartsWith("---\nbase_model:\n- org/name\nlicense: other\n"
                                  "license_name: \"a: b\"\nlibrary_name: transformers\n"));
}

TEST(HfExport, DequantizedFoldersHoldTheNumbersThatTheCodesMean) {
  using Quantize = void (*)(TinyModel&, const test::TinyQuantization&);
  for (const Quantize quantize :
       {&test::quantize_as_compressed_tensors, &test::quantize_as_gptq, &test::quantize_as_awq}) {
    const TemporaryDirectory folder;
    TinyModel model = make_tiny_model();
    quantize(model, {.symmetric = false, .scale_dtype = DType::kF16});
    const std::string source = model.write(folder.file("quantized"));

    const std::string out = to_hf(source, folder.file("plain"), {.dtype = DType::kF32});

    const auto a = Checkpoint::open(source), b = Checkpoint::open(out);
    EXPECT_EQ(b->kind(), CheckpointKind::kHuggingFace);
    EXPECT_EQ(b->config().find("quantization_config"), nullptr);
    for (const TensorEntry& entry : a->tensors()) {
      if (!entry.is_matrix()) continue;
      const CheckpointMatrix x = a->matrix(entry.role, entry.layer);
      const CheckpointMatrix y = b->matrix(entry.role, entry.layer);
      std::vector<float> u(static_cast<size_t>(x.view.columns)), v(u.size());
      for (int64_t row = 0; row < x.view.rows; ++row) {
        x.decode_row(row, u);
        y.decode_row(row, v);
        ASSERT_EQ(u, v) << entry.hf_name;
      }
    }
    EXPECT_EQ(read_text_file(out + "/tokenizer.json"), read_text_file(source + "/tokenizer.json"));
  }
}

TEST(HfExport, ActivationOrderIsUndone) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model();
  test::quantize_as_gptq(model, {.symmetric = false, .scale_dtype = DType::kF16});
  test::set_group_index(model,
                        [](int64_t k, int64_t, int64_t n) { return static_cast<int32_t>(k % n); });
  const std::string source = model.write(folder.file("quantized"));

  HfExport result(Checkpoint::open(source), {});
  const auto refuse = [&] {
    GgufExport plan(Checkpoint::open(source), {.type = find_format("Q4_0")});
  };
  GgufExport exact(Checkpoint::open(source), {});

  EXPECT_THAT(result.tensors().front().source_type, HasSubstr("activation order"));
  EXPECT_THROW(refuse(), UsageError);
  for (const ExportTensor& tensor : exact.tensors()) EXPECT_TRUE(tensor.exact()) << tensor.name;
}

TEST(HfExport, CountsWhatRoundingChanges) {
  const TemporaryDirectory folder;
  const std::string gguf =
      to_gguf(test::source_path("tests/data/llama-tiny"), folder.file("a.gguf"), "Q8_0");
  std::filesystem::create_directories(folder.file("bf16"));
  HfExport result(Checkpoint::open(gguf), {});

  result.write(folder.file("bf16"));

  int64_t n_changed = 0;
  for (const HfTensor& tensor : result.tensors()) {
    n_changed += tensor.n_changed;
    if (tensor.shape.size() == 1) {
      EXPECT_EQ(tensor.n_changed, 0) << tensor.name;
    }
  }
  EXPECT_GT(n_changed, 0);
}

TEST(HfExport, TransformsHaveTheirInverses) {
  std::vector<float> norms, decays;
  for (uint32_t bits = 0x3000; bits < 0x4100; ++bits) {
    norms.push_back(bf16_to_f32(static_cast<uint16_t>(bits)));
    decays.push_back(bf16_to_f32(static_cast<uint16_t>(bits)));
    norms.push_back(-norms.back());
    decays.push_back(-decays.back());
  }
  for (const auto& [transform, values] : {std::pair{GgufTransform::kAddOne, &norms},
                                          std::pair{GgufTransform::kNegativeExp, &decays}}) {
    std::vector<float> changed = *values;
    apply_transform(transform, changed);
    int64_t n_inexact = 0;

    std::vector<float> back = invert_transform(transform, changed, DType::kBF16, n_inexact);

    EXPECT_EQ(n_inexact, 0);
    apply_transform(transform, back);
    EXPECT_EQ(back, changed);
  }
}

}  // namespace
}  // namespace assay
