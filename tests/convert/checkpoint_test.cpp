#include "convert/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/formats/packed_integer.h"
#include "tests/support/bits_equal.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::make_tiny_model;
using test::TemporaryDirectory;
using test::tensor_of;
using test::TinyModel;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kDown = "model.layers.1.mlp.down_proj";

std::shared_ptr<const Checkpoint> open(const TinyModel& model, const TemporaryDirectory& folder) {
  return Checkpoint::open(model.write(folder.file("model")));
}

/// What opening, and reading every matrix, says; "no error" if nothing.
template <class E>
std::string error_of(const TinyModel& model) {
  const TemporaryDirectory folder;
  try {
    const auto checkpoint = open(model, folder);
    for (const TensorEntry& entry : checkpoint->tensors()) {
      if (entry.shape.size() == 2) {
        checkpoint->matrix(entry.role, entry.layer);
      } else {
        checkpoint->vector(entry.role, entry.layer);
      }
    }
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> decode(const CheckpointMatrix& matrix) {
  std::vector<float> out(static_cast<size_t>(matrix.view.rows * matrix.view.columns));
  for (int64_t r = 0; r < matrix.view.rows; ++r) {
    matrix.decode_row(r, std::span(out).subspan(static_cast<size_t>(r * matrix.view.columns),
                                                static_cast<size_t>(matrix.view.columns)));
  }
  return out;
}

// ---------------------------------------------------------------------------------------------
// Plain folders

TEST(PlainCheckpoint, OpensTheBundledModel) {
  const auto checkpoint = Checkpoint::open(test::source_path("tests/data/llama-tiny") + "/");

  EXPECT_EQ(checkpoint->kind(), CheckpointKind::kHuggingFace);
  EXPECT_EQ(checkpoint->tensors().size(), 29u);
  EXPECT_EQ(checkpoint->spec().source_dtype, DType::kBF16);
  EXPECT_THAT(checkpoint->warnings(), testing::IsEmpty());
  EXPECT_FALSE(checkpoint->has(Role::kHead));
  EXPECT_EQ(checkpoint->matrix(Role::kHead).view.data.data(),
            checkpoint->matrix(Role::kTokenEmbedding).view.data.data());
  EXPECT_EQ(checkpoint->vector(Role::kOutputNorm).size(), 256u);
  EXPECT_EQ(checkpoint->stored(Role::kQProj, 2).bytes, 2u * 256 * 256);
}

TEST(PlainCheckpoint, ReadsEveryTensorOfEveryVariant) {
  for (const char* model_type : {"llama", "mistral"}) {
    for (const bool tied : {false, true}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const TemporaryDirectory folder;
        const TinyModel model = make_tiny_model({.model_type = model_type,
                                                 .head_dim = 32,
                                                 .tied_head = tied,
                                                 .attention_bias = model_type[0] == 'l',
                                                 .mlp_bias = model_type[0] == 'l',
                                                 .dtype = dtype});

        const auto checkpoint = open(model, folder);

        ASSERT_EQ(checkpoint->tensors().size(), model.tensors.size());
        EXPECT_EQ(checkpoint->spec().source_dtype, dtype);
        for (const TensorEntry& entry : checkpoint->tensors()) {
          const Tensor& expected = const_cast<TinyModel&>(model).tensor(entry.hf_name);
          std::vector<float> values(static_cast<size_t>(n_elements(expected.shape)));
          widen_to_f32(expected.view(), values);
          const std::vector<float> actual =
              entry.shape.size() == 2 ? decode(checkpoint->matrix(entry.role, entry.layer))
                                      : checkpoint->vector(entry.role, entry.layer);
          EXPECT_TRUE(test::bits_equal(actual, values)) << entry.hf_name;
        }
      }
    }
  }
}

TEST(PlainCheckpoint, ReadsShards) {
  const TemporaryDirectory folder;
  const TinyModel model = make_tiny_model();

  const auto one = Checkpoint::open(model.write(folder.file("one")));
  const auto three = Checkpoint::open(model.write(folder.file("three"), 3));

  EXPECT_EQ(decode(one->matrix(Role::kDownProj, 1)), decode(three->matrix(Role::kDownProj, 1)));
}

TEST(PlainCheckpoint, IgnoresOldRotaryCaches) {
  TinyModel model = make_tiny_model();
  model.add("model.layers.0.self_attn.rotary_emb.inv_freq",
            tensor_of<float>(DType::kF32, {2}, {1.0f, 0.5f}));

  EXPECT_EQ(error_of<Error>(model), "no error");
}

TEST(PlainCheckpoint, Case_B49_NamesWhatIsMissingAndWhatIsTooMuch) {
  TinyModel model = make_tiny_model();
  model.erase("model.layers.0.input_layernorm.weight");
  model.add("model.layers.2.input_layernorm.weight", Tensor(model.tensor("model.norm.weight")));

  EXPECT_THAT(error_of<FormatError>(model),
              AllOf(HasSubstr("\"model.layers.0.input_layernorm.weight\" [64] is missing"),
                    HasSubstr("\"model.layers.2.input_layernorm.weight\" is not part")));
}

TEST(PlainCheckpoint, Case_B49_RefusesADeletedShard) {
  const TemporaryDirectory folder;
  const std::string path = make_tiny_model().write(folder.file("model"), 2);
  std::filesystem::remove(path + "/model-00002-of-00002.safetensors");

  EXPECT_THROW(Checkpoint::open(path), Error);
}

TEST(PlainCheckpoint, Case_B48_RefusesAVocabularyThatIsNotTheEmbeddings) {
  TinyModel model = make_tiny_model();
  model.config.set("vocab_size", 319);

  EXPECT_THAT(error_of<FormatError>(model), AllOf(HasSubstr("model.embed_tokens.weight"),
                                                  HasSubstr("[320, 64]"), HasSubstr("[319, 64]")));
}

TEST(PlainCheckpoint, RefusesOtherShapesAndTypes) {
  TinyModel wrong_shape = make_tiny_model();
  wrong_shape.tensor("model.norm.weight").shape = {8, 8};
  EXPECT_THAT(error_of<FormatError>(wrong_shape), HasSubstr("has shape [8, 8], expected [64]"));

  TinyModel wrong_type = make_tiny_model();
  wrong_type.tensor("model.norm.weight").dtype = DType::kI16;
  EXPECT_THAT(error_of<FormatError>(wrong_type), HasSubstr("is of type I16"));
}

TEST(PlainCheckpoint, Case_B14_RefusesANormThatIsNotFinite) {
  TinyModel model = make_tiny_model();
  const uint16_t nan = 0x7fc0;
  std::memcpy(model.tensor("model.norm.weight").bytes.data() + 2 * 5, &nan, 2);

  EXPECT_THAT(error_of<FormatError>(model), HasSubstr("\"model.norm.weight\"[5] is nan"));
}

TEST(PlainCheckpoint, SaysWhatIsMissingInAnEmptyFolder) {
  const TemporaryDirectory folder;

  EXPECT_THROW(Checkpoint::open(folder.file("nothing")), FileError);
  try {
    Checkpoint::open(folder.path());
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json"));
  }
}

TEST(PlainCheckpoint, NamesAnUnknownModelTypeAndThoseThatAreKnown) {
  TinyModel model = make_tiny_model();
  model.config.set("model_type", "mamba");

  EXPECT_THAT(error_of<UnsupportedError>(model),
              AllOf(HasSubstr("config.json"), HasSubstr("mamba"), HasSubstr("mistral")));
}

// Ties -----------------------------------------------------------------------------------------

TEST(TiedHead, Case_B47_TiedAndAbsentUsesTheEmbedding) {
  const TemporaryDirectory folder;
  const auto checkpoint = open(make_tiny_model({.tied_head = true}), folder);

  EXPECT_TRUE(checkpoint->spec().tied_head);
  EXPECT_EQ(decode(checkpoint->matrix(Role::kHead)),
            decode(checkpoint->matrix(Role::kTokenEmbedding)));
}

TEST(TiedHead, Case_B47_UntiedAndAbsentIsAnError) {
  TinyModel model = make_tiny_model({.tied_head = false});
  model.erase("lm_head.weight");

  EXPECT_THAT(error_of<FormatError>(model), HasSubstr("\"lm_head.weight\" [320, 64] is missing"));
}

TEST(TiedHead, Case_B47_TiedButDifferentKeepsBothAndWarns) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model({.tied_head = false});
  model.config.set("tie_word_embeddings", true);

  const auto checkpoint = open(model, folder);

  EXPECT_FALSE(checkpoint->spec().tied_head);
  EXPECT_TRUE(checkpoint->has(Role::kHead));
  EXPECT_NE(decode(checkpoint->matrix(Role::kHead)),
            decode(checkpoint->matrix(Role::kTokenEmbedding)));
  EXPECT_THAT(checkpoint->warnings(), testing::ElementsAre(HasSubstr("both are used")));
}

TEST(TiedHead, Case_B47_TiedAndIdenticalIsTied) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model({.tied_head = true});
  model.add("lm_head.weight", Tensor(model.tensor("model.embed_tokens.weight")));

  const auto checkpoint = open(model, folder);

  EXPECT_TRUE(checkpoint->spec().tied_head);
  EXPECT_THAT(checkpoint->warnings(), testing::ElementsAre(HasSubstr("is not used")));
}

TEST(TiedHead, Case_B47_QuantizedHeadBesideATiedEmbeddingIsKept) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model({.tied_head = true});
  test::quantize_as_compressed_tensors(model, {});
  model.config.as_object();
  Json quantization = model.config.at("quantization_config");
  quantization.set("ignore", Json::array());
  model.config.set("quantization_config", quantization);
  model.add("lm_head.weight_packed",
            tensor_of(DType::kI32, {320, 8}, std::vector<uint32_t>(320 * 8, 0x12345678u)));
  model.add("lm_head.weight_scale",
            tensor_of(DType::kBF16, {320, 2}, std::vector<uint16_t>(320 * 2, 0x3c00)));
  model.add("lm_head.weight_shape", tensor_of<int64_t>(DType::kI64, {2}, {320, 64}));

  const auto checkpoint = open(model, folder);

  EXPECT_FALSE(checkpoint->spec().tied_head);
  EXPECT_EQ(checkpoint->matrix(Role::kHead).view.format->name(), "W4");
  EXPECT_EQ(checkpoint->matrix(Role::kTokenEmbedding).view.format->name(), "BF16");
}

// ---------------------------------------------------------------------------------------------
// Quantized folders

struct Packing {
  int bits;
  bool symmetric;
  int64_t group_size;
  DType scale_dtype;
};

class QuantizedCheckpoint : public testing::TestWithParam<Packing> {
 protected:
  /// The same random numbers in both packings.
  static test::TinyQuantization quantization() {
    return {.bits = GetParam().bits,
            .symmetric = GetParam().symmetric,
            .group_size = GetParam().group_size,
            .scale_dtype = GetParam().scale_dtype};
  }
};

/// The value of compressed-tensors' words, from the description of pack-quantized.
float value_of_words(TinyModel& model, const std::string& module, int64_t row, int64_t column,
                     const Packing& packing) {
  // Code `index` of a stream whose word w stands at first + w·stride.
  const auto code_at = [&](const Tensor& tensor, int64_t first, int64_t stride, int64_t index) {
    int code = 0;
    for (int64_t b = 0; b < packing.bits; ++b) {
      const int64_t at = index * packing.bits + b;
      uint32_t word = 0;
      std::memcpy(&word, tensor.bytes.data() + 4 * (first + at / 32 * stride), 4);
      code |= static_cast<int>(word >> (at % 32) & 1u) << b;
    }
    return code;
  };
  const Tensor& packed = model.tensor(module + ".weight_packed");
  const Tensor& scale = model.tensor(module + ".weight_scale");
  const int64_t n_groups = scale.shape[1];
  const int64_t group = packing.group_size <= 0 ? 0 : column / packing.group_size;
  const int code = code_at(packed, row * packed.shape[1], 1, column);
  int zero = 1 << (packing.bits - 1);
  if (!packing.symmetric) {
    const Tensor& zeros = model.tensor(module + ".weight_zero_point");
    zero = code_at(zeros, group, n_groups, row);
  }
  return scalar_at(scale.view(), row * n_groups + group) * static_cast<float>(code - zero);
}

TEST_P(QuantizedCheckpoint, ReadsTheValuesOfCompressedTensors) {
  const TemporaryDirectory folder;
  TinyModel model = make_tiny_model({.hidden_size = 128, .intermediate_size = 256});
  test::quantize_as_compressed_tensors(model, quantization());

  const auto checkpoint = open(model, folder);
  const CheckpointMatrix matrix = checkpoint->matrix(Role::kDownProj, 1);

  EXPECT_EQ(checkpoint->format().name, "compressed-tensors");
  EXPECT_EQ(matrix.view.format, &integer_format(GetParam().bits, GetParam().symmetric));
  EXPECT_EQ(checkpoint->stored(Role::kDownProj, 1).scale_dtype, GetParam().scale_dtype);
  EXPECT_EQ(checkpoint->stored(Role::kTokenEmbedding).format->name(), "BF16");
  std::vector<float> expected;
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t k = 0; k < 256; ++k) {
      expected.push_back(value_of_words(model, kDown, r, k, GetParam()));
    }
  }
  EXPECT_TRUE(test::bits_equal(decode(matrix), expected));
}

TEST_P(QuantizedCheckpoint, GptqOfTheSameNumbersDecodesToTheSameValues) {
  const TemporaryDirectory folder;
  TinyModel compressed = make_tiny_model({.hidden_size = 128, .intermediate_size = 384});
  TinyModel gptq = compressed;
  test::quantize_as_compressed_tensors(compressed, quantization());
  test::quantize_as_gptq(gptq, quantization());

  const auto a = Checkpoint::open(compressed.write(folder.file("a")));
  const auto b = Checkpoint::open(gptq.write(folder.file("b")));

  EXPECT_EQ(b->format().name, "GPTQ");
  for (const TensorEntry& entry : a->tensors()) {
    if (entry.shape.size() != 2) continue;
    EXPECT_TRUE(test::bits_equal(decode(b->matrix(entry.role, entry.layer)),
                                 decode(a->matrix(entry.role, entry.layer))))
        << entry.hf_name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Packings, QuantizedCheckpoint,
    testing::Values(Packing{4, true, 128, DType::kBF16}, Packing{4, false, 128, DType::kF16},
                    Packing{4, true, 32, DType::kF32}, Packing{4, false, 64, DType::kBF16},
                    Packing{4, true, -1, DType::kF16}, Packing{4, false, -1, DType::kBF16},
                    Packing{8, true, 64, DType::kF16}, Packing{8, false, 128, DType::kBF16},
                    Packing{8, true, -1, DType::kF32}, Packing{3, true, 128, DType::kBF16},
                    Packing{3, false, 32, DType::kF16}, Packing{3, false, -1, DType::kBF16}),
    [](const auto& param_info) {
      const Packing& p = param_info.param;
      return "W" + std::to_string(p.bits) + (p.symmetric ? "" : "Asym") + "Group" +
             (p.group_size < 0 ? std::string("Row") : std::to_string(p.group_size)) +
             std::string(dtype_name(p.scale_dtype));
    });

// Faults of compressed-tensors -----------------------------------------------------------------

TinyModel compressed(bool symmetric = true) {
  TinyModel model = make_tiny_model();
  test::quantize_as_compressed_tensors(model, {.symmetric = symmetric});
  return model;
}

/// Changes one member of quantization_config (or of its only group, or of that group's weights).
void set_quantization(TinyModel& model, std::string_view key, Json value) {
  Json config = model.config.at("quantization_config");
  config.set(key, std::move(value));
  model.config.set("quantization_config", config);
}

void set_group(TinyModel& model, std::string_view key, Json value) {
  Json group = model.config.at("quantization_config").at("config_groups").at("group_0");
  group.set(key, std::move(value));
  Json groups = Json::object();
  groups.set("group_0", group);
  set_quantization(model, "config_groups", groups);
}

void set_weights(TinyModel& model, std::string_view key, Json value) {
  Json weights =
      model.config.at("quantization_config").at("config_groups").at("group_0").at("weights");
  weights.set(key, std::move(value));
  set_group(model, "weights", weights);
}

TEST(CompressedTensors, Case_B56_RefusesARenamedTensor) {
  TinyModel model = compressed();
  model.rename(std::string(kDown) + ".weight_packed", std::string(kDown) + ".packed_weight");

  EXPECT_THAT(error_of<FormatError>(model),
              AllOf(HasSubstr("down_proj.weight_packed\" [64, 12] is missing"),
                    HasSubstr("down_proj.packed_weight\" is not part")));
}

TEST(CompressedTensors, Case_B56_RefusesAModuleThatTheConfigQuantizesButIsPlain) {
  TinyModel model = compressed();
  set_quantization(model, "ignore", Json::array());

  EXPECT_THAT(error_of<FormatError>(model),
              AllOf(HasSubstr("\"lm_head\" is to be quantized"), HasSubstr("ignore")));
}

TEST(CompressedTensors, Case_B56_RefusesAnIgnoredModuleThatIsPacked) {
  TinyModel model = compressed();
  set_quantization(model, "ignore", Json(Json::Array{Json("lm_head"), Json(kDown)}));

  EXPECT_THAT(error_of<FormatError>(model),
              HasSubstr("\"model.layers.1.mlp.down_proj\" is not to be quantized"));
}

TEST(CompressedTensors, TargetsAndIgnoreTakeNamesPatternsAndClasses) {
  TinyModel model = compressed();
  set_group(model, "targets", Json(Json::Array{Json("re:.*_proj$"), Json("never.there")}));
  set_quantization(model, "ignore", Json(Json::Array{Json("re:lm_.*")}));
  EXPECT_EQ(error_of<Error>(model), "no error");

  // Anchored at the start, as Python's re.match.
  set_group(model, "targets", Json(Json::Array{Json("re:mlp.*")}));
  EXPECT_THAT(error_of<FormatError>(model), HasSubstr("is not to be quantized"));

  set_group(model, "targets", Json(Json::Array{Json("re:(")}));
  EXPECT_THAT(error_of<FormatError>(model), HasSubstr("no valid pattern"));
}

TEST(CompressedTensors, ChoosesTheGroupByNameBeforeClass) {
  const TemporaryDirectory folder;
  TinyModel eight = make_tiny_model();
  test::quantize_as_compressed_tensors(eight, {.bits = 8});
  TinyModel model = compressed();
  for (const char* part : {".weight_packed", ".weight_scale"}) {
    model.tensor(kDown + std::string(part)) = eight.tensor(kDown + std::string(part));
  }
  Json groups = model.config.at("quantization_config").at("config_groups");
  Json special = eight.config.at("quantization_config").at("config_groups").at("group_0");
  special.set("targets", Json(Json::Array{Json(kDown)}));
  groups.set("group_1", special);
  set_quantization(model, "config_groups", groups);

  const auto checkpoint = open(model, folder);

  EXPECT_EQ(checkpoint->stored(Role::kDownProj, 1).format->name(), "W8");
  EXPECT_EQ(checkpoint->stored(Role::kDownProj, 0).format->name(), "W4");
}

TEST(CompressedTensors, RefusesInconsistentParts) {
  TinyModel no_zeros = compressed(false);
  no_zeros.erase(std::string(kDown) + ".weight_zero_point");
  EXPECT_THAT(error_of<FormatError>(no_zeros), HasSubstr("weight_zero_point\" [8, 3] is missing"));

  TinyModel extra_zeros = compressed(false);
  set_weights(extra_zeros, "symmetric", true);
  EXPECT_THAT(error_of<FormatError>(extra_zeros), HasSubstr("says symmetric"));

  TinyModel wrong_shape = compressed();
  wrong_shape.tensor(std::string(kDown) + ".weight_shape") =
      tensor_of<int64_t>(DType::kI64, {2}, {64, 95});
  EXPECT_THAT(error_of<FormatError>(wrong_shape), HasSubstr("holds [64, 95], expected [64, 96]"));

  TinyModel wrong_group = compressed();
  set_weights(wrong_group, "group_size", 64);
  EXPECT_THAT(error_of<Error>(wrong_group), HasSubstr("group"));

  TinyModel wrong_bits = compressed();
  set_weights(wrong_bits, "num_bits", 8);
  EXPECT_THAT(error_of<FormatError>(wrong_bits), HasSubstr("has shape"));
}

TEST(CompressedTensors, RefusesWhatItCannotDoByName) {
  const auto refused = [](const auto& change) {
    TinyModel model = compressed();
    change(model);
    return error_of<UnsupportedError>(model);
  };
  const auto weights = [&](const char* key, Json value) {
    return refused([&](TinyModel& model) { set_weights(model, key, value); });
  };
  EXPECT_THAT(weights("num_bits", 5), HasSubstr("num_bits"));
  EXPECT_THAT(weights("type", "float"), HasSubstr("float"));
  EXPECT_THAT(weights("strategy", "tensor"), HasSubstr("tensor"));
  EXPECT_THAT(weights("dynamic", true), HasSubstr("dynamic"));
  EXPECT_THAT(weights("new_field", 1), HasSubstr("new_field"));
  EXPECT_THAT(weights("group_size", 8), HasSubstr("multiple of 32"));
  EXPECT_THAT(refused([](TinyModel& m) { set_quantization(m, "format", "float-quantized"); }),
              HasSubstr("float-quantized"));
  EXPECT_THAT(refused([](TinyModel& m) { set_quantization(m, "quant_method", "bitsandbytes"); }),
              HasSubstr("bitsandbytes"));
  EXPECT_THAT(refused([](TinyModel& m) {
                Json scheme = Json::object();
                scheme.set("num_bits", 8);
                set_quantization(m, "kv_cache_scheme", scheme);
              }),
              HasSubstr("kv_cache_scheme"));
  EXPECT_THAT(refused([](TinyModel& m) {
                Json scheme = Json::object();
                scheme.set("num_bits", 8);
                set_group(m, "input_activations", scheme);
              }),
              HasSubstr("input_activations"));
}

TEST(CompressedTensors, Case_B14_RefusesScalesThatAreNotFiniteOrNegative) {
  for (const auto& [bits, is_fault] : std::vector<std::pair<uint16_t, bool>>{
           {0x7fc0, true}, {0xff80, true}, {0xbc24, true}, {0x0000, false}}) {
    TinyModel model = compressed();
    std::memcpy(model.tensor(std::string(kDown) + ".weight_scale").bytes.data() + 2 * (3 * 7 + 1),
                &bits, 2);

    const std::string error = error_of<FormatError>(model);

    EXPECT_EQ(error != "no error", is_fault) << bits;
    if (is_fault) {
      EXPECT_THAT(error, AllOf(HasSubstr("down_proj"), HasSubstr("row 7"), HasSubstr("group 1")));
    }
  }
}

TEST(CompressedTensors, Case_B14_NamesTheFirstOfSeveralRowsOnAnyNumberOfThreads) {
  TinyModel model = make_tiny_model({.intermediate_size = 288});
  test::quantize_as_compressed_tensors(model, {});
  const std::string gate = "model.layers.1.mlp.gate_proj";
  for (const int row : {70, 71, 200, 287}) {
    const uint16_t infinity = 0x7f80;
    std::memcpy(model.tensor(gate + ".weight_scale").bytes.data() + 2 * (2 * row), &infinity, 2);
  }

  for (const int threads : {1, 5}) {
    set_n_threads(threads);
    EXPECT_THAT(error_of<FormatError>(model), AllOf(HasSubstr(gate), HasSubstr("row 70:")));
  }
  set_n_threads(0);
}

std::vector<int32_t> natural_groups() {
  std::vector<int32_t> g_idx;
  for (int32_t k = 0; k < 96; ++k) g_idx.push_back(k / 32);
  return g_idx;
}

TEST(CompressedTensors, Case_B40_ChecksTheGroupIndex) {
  const auto error_with = [](std::vector<int32_t> g_idx) {
    TinyModel model = compressed();
    const auto n = static_cast<int64_t>(g_idx.size());
    model.add(std::string(kDown) + ".weight_g_idx", tensor_of(DType::kI32, {n}, g_idx));
    return error_of<Error>(model);
  };
  std::vector<int32_t> g_idx = natural_groups();
  EXPECT_EQ(error_with(g_idx), "no error");

  g_idx[5] = 3;
  EXPECT_THAT(error_with(g_idx), AllOf(HasSubstr("[5] is 3"), HasSubstr("0 to 2")));
  g_idx[5] = -1;
  EXPECT_THAT(error_with(g_idx), HasSubstr("[5] is -1"));
  g_idx[5] = 2;
  EXPECT_EQ(error_with(g_idx), "no error");
  g_idx = natural_groups();
  g_idx.pop_back();
  EXPECT_THAT(error_with(g_idx), HasSubstr("expected I32 [96]"));
}

// Faults of GPTQ -------------------------------------------------------------------------------

TinyModel gptq(bool symmetric = true) {
  TinyModel model = make_tiny_model();
  test::quantize_as_gptq(model, {.symmetric = symmetric, .scale_dtype = DType::kF16});
  return model;
}

void add_to_zeros(TinyModel& model, uint32_t amount) {
  for (test::NamedTensor& named : model.tensors) {
    if (!named.name.ends_with(".qzeros")) continue;
    for (size_t i = 0; i < named.tensor.bytes.size(); i += 4) {
      uint32_t word = 0;
      std::memcpy(&word, named.tensor.bytes.data() + i, 4);
      word += amount;
      std::memcpy(named.tensor.bytes.data() + i, &word, 4);
    }
  }
}

TEST(Gptq, SymmetricFilesHoldSevens) {
  TinyModel model = gptq();

  uint32_t word = 0;
  std::memcpy(&word, model.tensor(std::string(kDown) + ".qzeros").bytes.data(), 4);

  EXPECT_EQ(word, 0x77777777u);
}

TEST(Gptq, Case_B37_SeesTheOtherVersionsZeroPoints) {
  TinyModel model = gptq();
  add_to_zeros(model, 0x11111111u);
  EXPECT_THAT(error_of<FormatError>(model), AllOf(HasSubstr("zero point 9"), HasSubstr("gptq_v2")));

  set_quantization(model, "checkpoint_format", "gptq_v2");
  EXPECT_EQ(error_of<Error>(model), "no error");
}

TEST(Gptq, Case_B37_VersionTwoStoresZeroPointsAsTheyAre) {
  const TemporaryDirectory folder;
  TinyModel one = gptq(false);
  TinyModel two = one;
  add_to_zeros(two, 0x11111111u);
  set_quantization(two, "checkpoint_format", "gptq_v2");

  const auto a = Checkpoint::open(one.write(folder.file("a")));
  const auto b = Checkpoint::open(two.write(folder.file("b")));

  EXPECT_EQ(decode(a->matrix(Role::kQProj, 0)), decode(b->matrix(Role::kQProj, 0)));
}

TEST(Gptq, Case_B37_RefusesAStoredFifteen) {
  TinyModel model = gptq(false);
  const uint32_t word = 0x7777f777u;
  std::memcpy(model.tensor(std::string(kDown) + ".qzeros").bytes.data(), &word, 4);

  EXPECT_THAT(error_of<FormatError>(model),
              AllOf(HasSubstr("stored zero point 15"), HasSubstr("output 3")));
}

TEST(Gptq, Case_B40_ChecksTheGroupIndex) {
  TinyModel model = gptq();
  std::vector<int32_t> g_idx = natural_groups();
  g_idx[95] = 3;
  model.tensor(std::string(kDown) + ".g_idx") = tensor_of(DType::kI32, {96}, g_idx);
  EXPECT_THAT(error_of<FormatError>(model), HasSubstr("[95] is 3"));

  g_idx[95] = -1;
  model.tensor(std::string(kDown) + ".g_idx") = tensor_of(DType::kI32, {96}, g_idx);
  EXPECT_THAT(error_of<FormatError>(model), HasSubstr("[95] is -1"));
}

TEST(Gptq, Case_B40_ColumnsInActivationOrderStayInTheirPlaces) {
  const TemporaryDirectory folder;
  TinyModel model = gptq(false);
  const auto natural = Checkpoint::open(model.write(folder.file("natural")));
  test::set_group_index(model, [](int64_t k, int64_t, int64_t n_groups) {
    return static_cast<int32_t>((k * 7 + 1) % n_groups);
  });
  const auto ordered = Checkpoint::open(model.write(folder.file("ordered")));

  const CheckpointMatrix a = natural->matrix(Role::kDownProj, 1);
  const CheckpointMatrix b = ordered->matrix(Role::kDownProj, 1);

  EXPECT_THAT(ordered->stored(Role::kDownProj, 1).act_order, HasSubstr("activation order"));
  std::vector<float> row(96);
  IntegerRow integers;
  for (int64_t r = 0; r < b.view.rows; ++r) {
    b.decode_row(r, row);
    a.read_integers(r, integers);
    for (size_t k = 0; k < row.size(); ++k) {
      const size_t group = (k * 7 + 1) % 3;
      EXPECT_EQ(row[k], integers.scales[group] * (static_cast<float>(integers.codes[k]) -
                                                  static_cast<float>(integers.zeros[group])));
    }
  }
}

// AWQ ------------------------------------------------------------------------------------------

TEST(Awq, DecodesToTheValuesOfTheSameNumbersElsewhere) {
  for (const int64_t group_size : {32, -1}) {
    const test::TinyQuantization quantization{
        .symmetric = false, .group_size = group_size, .scale_dtype = DType::kF16};
    const TemporaryDirectory folder;
    TinyModel awq = make_tiny_model({.intermediate_size = 288});
    TinyModel compressed = awq;
    test::quantize_as_awq(awq, quantization);
    test::quantize_as_compressed_tensors(compressed, quantization);

    const auto a = Checkpoint::open(awq.write(folder.file("a")));
    const auto b = Checkpoint::open(compressed.write(folder.file("b")));

    EXPECT_EQ(a->format().name, "AWQ");
    for (const TensorEntry& entry : a->tensors()) {
      if (!entry.is_matrix()) continue;
      EXPECT_EQ(decode(a->matrix(entry.role, entry.layer)),
                decode(b->matrix(entry.role, entry.layer)))
          << entry.hf_name;
    }
  }
}

TEST(Awq, RefusesWhatItCannotDoByName) {
  const auto refused = [](const char* key, Json value) {
    TinyModel model = make_tiny_model();
    test::quantize_as_awq(model, {.symmetric = false, .scale_dtype = DType::kF16});
    set_quantization(model, key, std::move(value));
    return error_of<UnsupportedError>(model);
  };
  EXPECT_THAT(refused("bits", 8), HasSubstr("8 bits"));
  EXPECT_THAT(refused("version", "marlin"), HasSubstr("\"marlin\""));
  EXPECT_THAT(refused("zero_point", false), HasSubstr("zero points"));
  EXPECT_THAT(refused("group_size", 48), HasSubstr("group"));
}

TEST(Gptq, ReadsTheSideFileOfOlderFolders) {
  const TemporaryDirectory folder;
  TinyModel model = gptq();
  const Json quantization = model.config.at("quantization_config");
  model.config.set("quantization_config", Json());
  const std::string path = model.write(folder.file("model"));
  folder.write("model/quantize_config.json", quantization.dump());

  EXPECT_EQ(Checkpoint::open(path)->format().name, "GPTQ");
}

TEST(Gptq, RefusesWhatItCannotDoByName) {
  const auto refused = [](const char* key, Json value) {
    TinyModel model = gptq();
    set_quantization(model, key, std::move(value));
    return error_of<UnsupportedError>(model);
  };
  Json rules = Json::object();
  rules.set("+:.*down.*", Json::object());
  EXPECT_THAT(refused("bits", 5), HasSubstr("5 bits"));
  EXPECT_THAT(refused("checkpoint_format", "gptq_p"), HasSubstr("gptq_p"));
  EXPECT_THAT(refused("pack_dtype", "int16"), HasSubstr("pack_dtype"));
  EXPECT_THAT(refused("dynamic", rules), HasSubstr("down"));
}

}  // namespace
}  // namespace assay
