#include "convert/quantization_mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/gguf_export.h"
#include "tests/support/shared_data.h"

namespace assay {
namespace {

using testing::HasSubstr;

// ---------------------------------------------------------------------------------------------
// The listings of llama-quantize.

class ListedMixes : public testing::Test {
 protected:
  const Json listing_ = read_json_file(test::source_path("tests/data/llama-tiny-mixes.json"));
  const std::shared_ptr<const Checkpoint> source_ =
      Checkpoint::open(test::source_path("tests/data/llama-tiny"));
  const std::shared_ptr<const ImportanceMatrix> importance_ =
      std::make_shared<const ImportanceMatrix>(
          ImportanceMatrix::open(test::source_path("tests/data/llama-tiny.imatrix.gguf")));

  /// "Q4_K_M+imatrix" as options.
  GgufExportOptions options_of(const std::string& setting) const {
    GgufExportOptions options;
    options.mix.mix = find_mix(setting.substr(0, setting.find('+')));
    options.mix.pure = setting.ends_with("+pure");
    if (setting.ends_with("+imatrix")) options.importance = importance_;
    return options;
  }
};

TEST_F(ListedMixes, GiveTheListedTypesKeysOrderAndSizeForEverySetting) {
  int n_refused = 0;
  for (const auto& [setting, expected] : listing_.at("settings").as_object()) {
    SCOPED_TRACE(setting);
    GgufExport plan(source_, options_of(setting));
    if (expected.find("refused") != nullptr) {
      EXPECT_FALSE(plan.missing_importance().empty());
      ++n_refused;
      continue;
    }
    EXPECT_THAT(plan.missing_importance(), testing::IsEmpty());

    std::map<std::string, std::string> types;
    for (const auto& [type, names] : expected.at("types").as_object()) {
      for (const Json& name : names.as_array()) types[name.as_string() + ".weight"] = type;
    }
    size_t i = 0;
    for (const Json& name : listing_.at("tensor_order").as_array()) {
      ASSERT_LT(i, plan.tensors().size());
      const ExportTensor& tensor = plan.tensors()[i++];
      ASSERT_EQ(tensor.name, name.as_string());
      const std::string kept = tensor.shape.size() == 1 ? "F32" : "BF16";
      EXPECT_EQ(tensor.format->name(), types.contains(tensor.name) ? types.at(tensor.name) : kept)
          << tensor.name;
    }
    EXPECT_EQ(i, plan.tensors().size());
    for (const auto& [key, value] : expected.at("kv").as_object()) {
      if (key == "quantize.imatrix.dataset") {
        EXPECT_EQ(plan.metadata().string(key), value.as_string());
      } else {
        EXPECT_EQ(plan.metadata().integer(key), value.as_integer()) << key;
      }
    }
    if (const Json* bytes = expected.find("file_bytes")) {
      EXPECT_EQ(plan.file_bytes(), static_cast<uint64_t>(bytes->as_integer()));
    }
  }
  EXPECT_EQ(n_refused, 2);  // Q2_K_S and IQ3_XS
}

TEST_F(ListedMixes, RefuseToWriteWhatNeedsAnImportanceMatrix) {
  GgufExport plan(source_, options_of("IQ2_M"));

  try {
    plan.write("/never/written.gguf");
    FAIL() << "written";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--imatrix"));
    EXPECT_THAT(error.what(), HasSubstr("\"blk.0.attn_k.weight\" as IQ2_S"));
  }
}

TEST_F(ListedMixes, NameTheFileOfTheImportanceMatrixWithoutItsFolders) {
  const GgufExport plan(source_, options_of("Q4_K_M+imatrix"));

  EXPECT_EQ(plan.metadata().string("quantize.imatrix.file"), "llama-tiny.imatrix.gguf");
}

// ---------------------------------------------------------------------------------------------
// Rules on models of other shapes.

/// The matrices of `n_layers` layers, in order, without a head of their own.
std::vector<MixTensor> layers_of(int n_layers, int64_t columns = 512, bool head = false,
                                 int64_t n_experts = 0) {
  const WeightFormat* bf16 = &scalar_format(DType::kBF16);
  std::vector<MixTensor> tensors;
  if (head) tensors.push_back({"output.weight", {1000, columns}, bf16});
  tensors.push_back({"token_embd.weight", {1000, columns}, bf16});
  for (int layer = 0; layer < n_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    for (const char* name : {"attn_k", "attn_output", "attn_q", "attn_v"}) {
      tensors.push_back({prefix + name + ".weight", {columns, columns}, bf16});
    }
    for (const char* name : {"ffn_down", "ffn_gate", "ffn_up"}) {
      const Shape shape =
          n_experts > 0 ? Shape{n_experts, columns, columns} : Shape{columns, columns};
      tensors.push_back(
          {prefix + name + (n_experts > 0 ? "_exps.weight" : ".weight"), shape, bf16});
    }
    tensors.push_back({prefix + "ffn_gate_inp.weight", {8, columns}, bf16});
    tensors.push_back({prefix + "attn_norm.weight", {columns}, bf16});
  }
  return tensors;
}

std::map<std::string, std::string> types_of(const MixModel& model,
                                            const std::vector<MixTensor>& tensors,
                                            const MixOptions& options) {
  const std::vector<MixChoice> choices = choose_types(model, tensors, options);
  std::map<std::string, std::string> types;
  for (size_t i = 0; i < tensors.size(); ++i) {
    types[tensors[i].name] = std::string(choices[i].format->name());
  }
  return types;
}

TEST(MixRules, KeepNormsAndRoutersInTheirType) {
  const auto types = types_of({"llama", 2, 0, 1}, layers_of(2), {.mix = find_mix("Q4_0")});

  EXPECT_EQ(types.at("blk.0.ffn_gate_inp.weight"), "BF16");
  EXPECT_EQ(types.at("blk.1.attn_norm.weight"), "BF16");
}

TEST(MixRules, GiveMoreBitsToFirstLastAndEveryThirdLayerOfQ4KM) {
  const auto types = types_of({"llama", 32, 0, 1}, layers_of(32), {.mix = find_mix("Q4_K_M")});

  std::string layers;
  for (int i = 0; i < 32; ++i) {
    const std::string& type = types.at("blk." + std::to_string(i) + ".ffn_down.weight");
    layers += type == "Q6_K" ? '6' : '4';
    EXPECT_EQ(types.at("blk." + std::to_string(i) + ".attn_v.weight"), type);
  }
  EXPECT_EQ(layers, "66664464464464464464464464466666");
  EXPECT_EQ(types.at("token_embd.weight"), "Q6_K");  // it is the head, too
}

TEST(MixRules, TreatTheEmbeddingLikeAnyMatrixWhereTheHeadIsItsOwn) {
  const auto tensors = layers_of(4, 512, /*head=*/true);

  EXPECT_EQ(
      types_of({"llama", 4, 0, 1}, tensors, {.mix = find_mix("Q4_K_M")}).at("token_embd.weight"),
      "Q4_K");
  EXPECT_EQ(
      types_of({"llama", 4, 0, 1}, tensors, {.mix = find_mix("IQ3_XXS")}).at("token_embd.weight"),
      "IQ3_S");
  EXPECT_EQ(types_of({"llama", 4, 0, 1}, tensors, {.mix = find_mix("IQ2_M")}).at("output.weight"),
            "Q5_K");
  EXPECT_EQ(types_of({"llama", 4, 0, 1}, tensors, {.mix = find_mix("Q8_0")}).at("output.weight"),
            "Q8_0");
}

TEST(MixRules, GiveMoreBitsToValuesThatManyHeadsShare) {
  const auto few = types_of({"llama", 4, 0, 2}, layers_of(4), {.mix = find_mix("IQ4_XS")});
  const auto many = types_of({"llama", 4, 0, 4}, layers_of(4), {.mix = find_mix("IQ4_XS")});

  EXPECT_EQ(few.at("blk.2.attn_v.weight"), "IQ4_XS");
  EXPECT_EQ(many.at("blk.2.attn_v.weight"), "Q5_K");
  EXPECT_EQ(types_of({"llama", 80, 0, 8, true}, layers_of(80), {.mix = find_mix("Q4_K_M")})
                .at("blk.10.attn_v.weight"),
            "Q5_K");
}

TEST(MixRules, FollowTheNumberInTheNameWithExperts) {
  std::vector<MixTensor> tensors = layers_of(8, 512, false, /*n_experts=*/8);
  const auto types = types_of({"llama", 8, 8, 1}, tensors, {.mix = find_mix("Q4_K_M")});

  EXPECT_EQ(types.at("blk.0.attn_v.weight"), "Q8_0");
  EXPECT_EQ(types.at("blk.0.attn_k.weight"), "Q8_0");
  EXPECT_EQ(types.at("blk.0.attn_output.weight"), "Q5_K");
  EXPECT_EQ(types.at("blk.7.ffn_down_exps.weight"), "Q6_K");
  EXPECT_EQ(types.at("blk.4.ffn_down_exps.weight"), "Q4_K");
  EXPECT_EQ(types_of({"llama", 8, 8, 1}, tensors, {.mix = find_mix("MXFP4_MOE")})
                .at("blk.4.ffn_up_exps.weight"),
            "MXFP4");
  tensors.back().name = "blk.99.ffn_down_exps.weight";
  tensors.back().shape = {8, 512, 512};
  EXPECT_THROW(types_of({"llama", 8, 8, 1}, tensors, {.mix = find_mix("Q4_K_M")}), FormatError);
}

TEST(MixRules, FallBackWhereRowsDoNotHoldBlocks) {
  const std::map<std::string, std::string> expected = {
      {"Q4_K_M", "Q5_0"},   {"Q5_K_S", "Q5_1"},   {"Q6_K", "Q8_0"},  {"Q2_K", "Q4_0"},
      {"IQ4_XS", "IQ4_NL"}, {"IQ2_XS", "IQ4_NL"}, {"TQ2_0", "Q4_0"}, {"Q8_0", "Q8_0"}};
  for (const auto& [mix, type] : expected) {
    const auto choices =
        choose_types({"llama", 24, 0, 1}, layers_of(24, 288), {.mix = find_mix(mix)});
    EXPECT_EQ(choices[3].format->name(), type) << mix;  // blk.0.attn_q
    EXPECT_EQ(choices[3].note.empty(), type == mix) << mix;
  }
  EXPECT_EQ(types_of({"llama", 2, 0, 1}, layers_of(2, 100), {.mix = find_mix("Q4_K_M")})
                .at("blk.0.attn_q.weight"),
            "F16");
}

TEST(MixOptions, OverridesActBeforeRulesAndTheFirstMatchWins) {
  MixOptions options{.mix = find_mix("Q4_K_M"),
                     .output_type = find_format("F16"),
                     .embedding_type = find_format("Q5_K")};
  options.overrides.push_back(parse_type_override("blk\\.[01]\\.attn_v=q8_0"));
  options.overrides.push_back(parse_type_override("attn_v=Q2_K"));

  const auto types = types_of({"llama", 4, 0, 1}, layers_of(4, 512, true), options);

  EXPECT_EQ(types.at("blk.1.attn_v.weight"), "Q8_0");
  EXPECT_EQ(types.at("blk.2.attn_v.weight"), "Q2_K");
  EXPECT_EQ(types.at("blk.2.attn_q.weight"), "Q4_K");
  EXPECT_EQ(types.at("output.weight"), "F16");
  EXPECT_EQ(types.at("token_embd.weight"), "Q5_K");
}

TEST(MixOptions, PureGivesOneTypeButKeepsTheTypesThatAreNamed) {
  const auto types =
      types_of({"llama", 4, 0, 1}, layers_of(4, 512, true),
               {.mix = find_mix("Q4_K_M"), .pure = true, .output_type = find_format("Q8_0")});

  EXPECT_EQ(types.at("blk.0.ffn_down.weight"), "Q4_K");
  EXPECT_EQ(types.at("token_embd.weight"), "Q4_K");
  EXPECT_EQ(types.at("output.weight"), "Q8_0");
}

TEST(MixOptions, PlainTypesTakeNoRule) {
  MixOptions options{.mix = find_mix("F16")};
  options.overrides.push_back(parse_type_override("attn_v=Q8_0"));

  const auto types = types_of({"llama", 4, 0, 1}, layers_of(4, 100), options);

  EXPECT_EQ(types.at("blk.0.attn_v.weight"), "F16");
  EXPECT_EQ(types.at("token_embd.weight"), "F16");
}

TEST(MixOptions, RefuseAnOverrideThatMatchesNoTensor) {
  MixOptions options{.mix = find_mix("Q4_K_M")};
  options.overrides.push_back(parse_type_override("attn_v=Q8_0"));
  options.overrides.push_back(parse_type_override("atn_k=Q8_0"));

  EXPECT_THAT(
      [&] {
        types_of({"llama", 4, 0, 1}, layers_of(4, 512), options);
      },
      testing::ThrowsMessage<UsageError>(
          testing::HasSubstr("--tensor-type atn_k=Q8_0: no tensor has a name")));
}

TEST(MixOptions, RefuseAnOverrideThatMakesNoSense) {
  for (const char* text :
       {"attn_v", "=Q8_0", "attn_v=", "attn_v=Q9_9", "attn_v=W4", "attn_(v=Q8_0"}) {
    EXPECT_THROW(parse_type_override(text), UsageError) << text;
  }
}

TEST(Mixes, AreFoundByNameInAnyCaseAndByTheirShortNames) {
  for (const QuantizationMix& mix : all_mixes()) {
    EXPECT_EQ(find_mix(mix.name), &mix);
    ASSERT_NE(find_format(mix.base_type), nullptr) << mix.name;
  }
  EXPECT_EQ(find_mix("q4_k_m"), find_mix("Q4_K"));
  EXPECT_EQ(find_mix("Q3_K"), find_mix("Q3_K_M"));
  EXPECT_EQ(find_mix("Q5_k"), find_mix("Q5_K_M"));
  EXPECT_EQ(find_mix("IQ2_S")->base_type, "IQ2_XS");
  EXPECT_EQ(find_mix("W4"), nullptr);
  EXPECT_EQ(find_mix("IQ2"), nullptr);
}

TEST(Mixes, EveryFormatThatGgufCanHoldIsOneWithItsFileType) {
  for (const WeightFormat* format : all_formats()) {
    const QuantizationMix* mix = find_mix(format->name());
    ASSERT_EQ(mix != nullptr, format->gguf_type() && format->can_encode()) << format->name();
    if (mix != nullptr) {
      EXPECT_EQ(mix->file_type, format->gguf_file_type()) << format->name();
    }
  }
}

TEST(Mixes, OrderTensorsByLayerThenByName) {
  EXPECT_TRUE(quantized_order("token_embd.weight", "blk.0.attn_k.weight"));
  EXPECT_TRUE(quantized_order("blk.2.ffn_up.weight", "blk.10.attn_k.weight"));
  EXPECT_TRUE(quantized_order("blk.2.attn_k.weight", "blk.2.ffn_up.weight"));
  EXPECT_FALSE(quantized_order("blk.2.attn_k.weight", "blk.2.attn_k.weight"));
}

TEST(MixModel, ReadsTheFirstValueWhereThereIsOnePerLayer) {
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string("test"));
  metadata.set("test.block_count", uint32_t{3});
  metadata.set("test.attention.head_count", GgufArray{std::vector<int32_t>{16, 8, 8}});
  metadata.set("test.attention.head_count_kv", GgufArray{std::vector<uint32_t>{4, 8, 8}});

  const MixModel model = mix_model_of(metadata);

  EXPECT_EQ(model.n_layers, 3);
  EXPECT_EQ(model.heads_per_kv_head, 4);
  EXPECT_FALSE(model.is_70b);
}

}  // namespace
}  // namespace assay
