#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/families/family.h"
#include "convert/families/rope_config.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::make_tiny_model;
using test::TinyModelOptions;
using testing::AllOf;
using testing::HasSubstr;

ModelSpec read(const Json& config, const Json& generation_config = Json()) {
  return find_family_by_model_type(config.at("model_type").as_string())
      .read_config(config, generation_config);
}

ModelSpec read_with(Json::Object members, const std::string& model_type = "llama") {
  TinyModelOptions options;
  options.model_type = model_type;
  options.config = std::move(members);
  return read(make_tiny_model(options).config);
}

template <class E>
std::string error_of(Json::Object members, const std::string& model_type = "llama") {
  try {
    read_with(std::move(members), model_type);
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

Json object(Json::Object members) { return Json(std::move(members)); }

TEST(Families, EachHasATinyModelThatTheTestsRun) {
  std::set<std::string_view> tested;
  const auto add = [&](const std::string& folder) {
    const Json config = read_json_file(folder + "/config.json");
    tested.insert(find_family_by_model_type(config.at("model_type").as_string()).name);
  };
  add(test::source_path("tests/data/llama-tiny"));
  for (const std::string& model : test::family_models()) add(test::family_model_path(model));

  for (const Family* family : all_families()) {
    EXPECT_TRUE(tested.contains(family->name)) << family->name;
  }
}

/// Changes of a tiny model's config.json, and what opening the folder says to them.
class FamilyConfig : public testing::TestWithParam<std::string> {
 protected:
  FamilyConfig() : model_(test::read_model(test::family_model_path(GetParam()))) {}

  std::string refusal() const {
    const test::TemporaryDirectory folder;
    try {
      Checkpoint::open(model_.write(folder.file("model")));
    } catch (const UnsupportedError& error) {
      return error.what();
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  }

  test::TinyModel model_;
};

INSTANTIATE_TEST_SUITE_P(Families, FamilyConfig, testing::ValuesIn(test::family_models()),
                         [](const auto& model) { return model.param; });

TEST_P(FamilyConfig, WithAnUnknownActivationIsRefusedByName) {
  const bool gemma = model_.config.find("hidden_activation") != nullptr;
  model_.config.set(gemma ? "hidden_activation" : "hidden_act", "quick_gelu");

  EXPECT_THAT(refusal(), HasSubstr("\"quick_gelu\""));
}

TEST_P(FamilyConfig, WithAnUnknownRopeTypeIsRefusedByName) {
  Json rope = model_.config.at("rope_parameters");
  if (const Json* inner = rope.find("full_attention")) {  // one for each kind of layer
    Json changed = *inner;
    rope.set("full_attention", changed.set("rope_type", "spiral"));
  } else {
    rope.set("rope_type", "spiral");
  }
  model_.config.set("rope_parameters", rope);

  EXPECT_THAT(refusal(), HasSubstr("\"spiral\""));
}

TEST_P(FamilyConfig, WithAnUnknownLayerTypeIsRefusedByName) {
  Json::Array types(static_cast<size_t>(model_.config.at("num_hidden_layers").as_integer()),
                    Json("full_attention"));
  types.front() = Json("chunked_attention");
  model_.config.set("layer_types", Json(types));

  EXPECT_THAT(refusal(), AllOf(HasSubstr("layer_types"), HasSubstr("chunked_attention")));
}

/// A model either has the tensors of the biases that its config.json asks for, or is refused.
TEST_P(FamilyConfig, BiasesOfAttentionAreReadOrRefusedNeverIgnored) {
  const bool always = model_.config.at("model_type") == Json("qwen2");  // has no such setting
  model_.config.set("attention_bias", true);

  const std::string said = refusal();

  if (always) {
    EXPECT_EQ(said, "no error");
  } else {
    EXPECT_THAT(said, testing::AnyOf(HasSubstr("attention_bias"), HasSubstr("proj.bias")));
  }
}

TEST(Qwen35Config, RotatedSharesThatContradictEachOtherAreRefused) {
  test::TinyModel model = test::read_model(test::family_model_path("qwen3_5"));
  const Json same = model.config.at("rope_parameters").at("partial_rotary_factor");
  model.config.set("partial_rotary_factor", same);
  EXPECT_NO_THROW(read(model.config));
  model.config.set("partial_rotary_factor", 0.5 * same.as_number());
  try {
    read(model.config);
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rope_parameters"), HasSubstr("partial_rotary_factor")));
  }
}

TEST(Qwen35Config, WithoutTheGateOfItsAttentionIsRefusedByName) {
  test::TinyModel model = test::read_model(test::family_model_path("qwen3_5"));
  model.config.set("attn_output_gate", true);
  EXPECT_NO_THROW(read(model.config));
  model.config.set("attn_output_gate", false);
  try {
    read(model.config);
    ADD_FAILURE();
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("attn_output_gate"));
  }
  model.config.set("attn_output_gate", true).set("output_gate_type", "tanh");
  try {
    read(model.config);
    ADD_FAILURE();
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"tanh\""));
  }
}

TEST(LlamaConfig, GivesTheSpecOfLlamaTiny) {
  const std::string folder = test::source_path("tests/data/llama-tiny") + "/";
  const ModelSpec spec = read(read_json_file(folder + "config.json"),
                              read_json_file(folder + "generation_config.json"));

  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.vocab_size, 8192);
  EXPECT_EQ(spec.hidden_size, 256);
  EXPECT_EQ(spec.context_length, 4096);
  EXPECT_EQ(spec.rms_norm_eps, 1e-5);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.bos_id, 0);
  EXPECT_THAT(spec.stop_ids, testing::ElementsAre(1));
  ASSERT_EQ(spec.layers.size(), 3u);
  const AttentionSpec& attention = spec.layers[2].attention;
  EXPECT_EQ(attention.n_heads, 4);
  EXPECT_EQ(attention.n_kv_heads, 2);
  EXPECT_EQ(attention.head_dim, 64);
  EXPECT_EQ(attention.scale, 0.125);
  EXPECT_FALSE(attention.sliding_window.has_value());
  EXPECT_FALSE(attention.qkv_bias || attention.o_bias || spec.layers[2].mlp.bias);
  EXPECT_EQ(spec.layers[2].mlp.intermediate_size, 768);
  EXPECT_EQ(attention.rope.kind, RopeSpec::Kind::kLlama3);
  EXPECT_EQ(attention.rope.theta, 500000.0);
  EXPECT_EQ(attention.rope.rotary_dims, 64);
  EXPECT_EQ(attention.rope.factor, 8.0);
  EXPECT_EQ(attention.rope.low_freq_factor, 1.0);
  EXPECT_EQ(attention.rope.high_freq_factor, 4.0);
  EXPECT_EQ(attention.rope.original_context, 512);
}

TEST(LlamaConfig, TakesTheHeadSizeFromTheConfigOrFromTheHiddenSize) {
  EXPECT_EQ(read_with({}).layers[0].attention.head_dim, 16);
  EXPECT_EQ(read_with({{"head_dim", 32}}).layers[0].attention.head_dim, 32);
  EXPECT_EQ(read_with({{"head_dim", Json()}}).layers[0].attention.head_dim, 16);
}

TEST(LlamaConfig, UsesOneKvHeadPerHeadWhereTheConfigIsSilent) {
  EXPECT_EQ(read_with({{"num_key_value_heads", Json()}}).layers[0].attention.n_kv_heads, 4);
}

TEST(LlamaConfig, AttentionBiasCoversAllFourLinearsAndMlpBiasThree) {
  const ModelSpec spec = read_with({{"attention_bias", true}, {"mlp_bias", true}});

  std::set<Role> biases;
  for (const TensorEntry& entry : find_family("llama").tensors(spec)) {
    if (entry.hf_name.ends_with(".bias")) biases.insert(entry.role);
  }

  EXPECT_THAT(biases,
              testing::UnorderedElementsAre(Role::kQBias, Role::kKBias, Role::kVBias, Role::kOBias,
                                            Role::kGateBias, Role::kUpBias, Role::kDownBias));
}

TEST(MistralConfig, WindowIsOfTheConfigAndItsDefaultOnlyWhereTheKeyIsAbsent) {
  Json absent = make_tiny_model({.model_type = "mistral"}).config;
  Json::Object& members = absent.as_object();
  std::erase_if(members, [](const Json::Member& m) { return m.first == "sliding_window"; });

  EXPECT_EQ(read(absent).layers[0].attention.sliding_window, 4096);
  EXPECT_EQ(read_with({{"sliding_window", Json()}}, "mistral").layers[0].attention.sliding_window,
            std::nullopt);
  EXPECT_EQ(read_with({{"sliding_window", 7}}, "mistral").layers[1].attention.sliding_window, 7);
  EXPECT_EQ(read_with({{"sliding_window", 7}}, "llama").layers[1].attention.sliding_window,
            std::nullopt);
}

TEST(MistralConfig, WarnsThatGgufDropsTheWindow) {
  const Family& family = find_family("llama");

  EXPECT_THAT(family.gguf_warning(read_with({{"sliding_window", 7}}, "mistral")),
              HasSubstr("sliding window of 7"));
  EXPECT_EQ(family.gguf_warning(read_with({{"sliding_window", 256}}, "mistral")), "");
  EXPECT_EQ(family.gguf_warning(read_with({})), "");
}

TEST(LlamaConfig, Case_B09_RefusesEveryNumberOutOfRangeWithKeyAndBounds) {
  const std::vector<Json::Member> bad = {{"num_key_value_heads", 0},
                                         {"num_key_value_heads", 3},
                                         {"num_key_value_heads", -1},
                                         {"hidden_size", -8},
                                         {"hidden_size", 0},
                                         {"hidden_size", 63},
                                         {"hidden_size", "64"},
                                         {"hidden_size", 64.5},
                                         {"num_attention_heads", 0},
                                         {"num_attention_heads", int64_t{1} << 31},
                                         {"num_hidden_layers", 0},
                                         {"num_hidden_layers", int64_t{1} << 31},
                                         {"vocab_size", 0},
                                         {"vocab_size", int64_t{1} << 40},
                                         {"intermediate_size", 0},
                                         {"intermediate_size", Json()},
                                         {"head_dim", 0},
                                         {"head_dim", 15},
                                         {"max_position_embeddings", 0},
                                         {"rms_norm_eps", -1e-5},
                                         {"rms_norm_eps", "1e-5"},
                                         {"rope_theta", 0.0},
                                         {"rope_theta", -1.0},
                                         {"tie_word_embeddings", 1},
                                         {"eos_token_id", 320},
                                         {"eos_token_id", "</s>"},
                                         {"eos_token_id", Json(Json::Array{Json(1), Json(-5)})},
                                         {"attention_bias", "yes"}};
  for (const Json::Member& member : bad) {
    EXPECT_THAT(error_of<FormatError>({member}),
                AllOf(HasSubstr("config.json"), HasSubstr(member.first)))
        << member.first << " = " << member.second.dump(0);
  }
  EXPECT_THAT(error_of<FormatError>({{"num_key_value_heads", 0}}),
              AllOf(HasSubstr("is 0"), HasSubstr("from 1 to")));
}

TEST(LlamaConfig, RefusesAnUnknownActivationByName) {
  EXPECT_THAT(error_of<UnsupportedError>({{"hidden_act", "gelu"}}), HasSubstr("\"gelu\""));
  EXPECT_EQ(read_with({{"hidden_act", "swish"}}).hidden_size, 64);
}

TEST(LlamaConfig, Case_B54_StopSetIsTheUnionOfBothConfigs) {
  Json config = make_tiny_model().config;
  config.set("eos_token_id", 5);
  Json generation = Json::object();
  generation.set("eos_token_id", Json(Json::Array{Json(9), Json(5), Json(2)}));

  EXPECT_THAT(read(config, generation).stop_ids, testing::ElementsAre(2, 5, 9));

  config.set("eos_token_id", Json());
  EXPECT_THAT(read(config).stop_ids, testing::IsEmpty());
}

// ---------------------------------------------------------------------------------------------

TEST(RopeConfig, Case_B52_ReadsBothSpellingsOfEveryKind) {
  const Json llama3 = object({{"rope_type", "llama3"},
                              {"factor", 8},
                              {"low_freq_factor", 1},
                              {"high_freq_factor", 4},
                              {"original_max_position_embeddings", 8192}});
  const RopeSpec old_form =
      read_with({{"rope_scaling", llama3}, {"rope_theta", 5e5}}).layers[0].attention.rope;
  Json with_theta = llama3;
  with_theta.set("rope_theta", 5e5);
  const RopeSpec new_form =
      read_with({{"rope_parameters", with_theta}, {"rope_theta", Json()}}).layers[0].attention.rope;
  EXPECT_EQ(old_form, new_form);
  EXPECT_EQ(old_form.kind, RopeSpec::Kind::kLlama3);
  EXPECT_EQ(old_form.original_context, 8192);

  const RopeSpec linear =
      read_with({{"rope_scaling", object({{"type", "linear"}, {"factor", 2.5}})}})
          .layers[0]
          .attention.rope;
  EXPECT_EQ(linear.kind, RopeSpec::Kind::kLinear);
  EXPECT_EQ(linear.factor, 2.5);

  const RopeSpec plain =
      read_with({{"rope_parameters", object({{"rope_type", "default"}, {"rope_theta", 77.0}})}})
          .layers[0]
          .attention.rope;
  EXPECT_EQ(plain.kind, RopeSpec::Kind::kDefault);
  EXPECT_EQ(plain.theta, 77.0);
  EXPECT_EQ(plain.rotary_dims, 16);
}

TEST(RopeConfig, Case_B52_ReadsYarnWithItsDefaults) {
  const RopeSpec yarn =
      read_with({{"rope_scaling", object({{"rope_type", "yarn"}, {"factor", 4.0}})}})
          .layers[0]
          .attention.rope;

  EXPECT_EQ(yarn.kind, RopeSpec::Kind::kYarn);
  EXPECT_EQ(yarn.factor, 4.0);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_TRUE(yarn.truncate);
  EXPECT_EQ(yarn.original_context, 256);  // max_position_embeddings
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-14);
}

TEST(RopeConfig, YarnAttentionFactorFollowsTheConfig) {
  const auto factor_of = [](Json::Object extra) {
    Json scaling = object({{"rope_type", "yarn"}, {"factor", 40.0}});
    for (const auto& [key, value] : extra) scaling.set(key, value);
    return read_with({{"rope_scaling", scaling}}).layers[0].attention.rope.attention_factor;
  };

  EXPECT_EQ(factor_of({{"attention_factor", 1.25}}), 1.25);
  EXPECT_NEAR(factor_of({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}),
              (0.1 * std::log(40.0) + 1.0) / (0.05 * std::log(40.0) + 1.0), 1e-14);
  EXPECT_NEAR(factor_of({{"mscale", 0.7}}), 0.1 * std::log(40.0) + 1.0, 1e-14);
}

TEST(RopeConfig, TheTopLevelOriginalContextWins) {
  const Json scaling =
      object({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 100}});

  EXPECT_EQ(read_with({{"rope_scaling", scaling}}).layers[0].attention.rope.original_context, 100);
  EXPECT_EQ(read_with({{"rope_scaling", scaling}, {"original_max_position_embeddings", 64}})
                .layers[0]
                .attention.rope.original_context,
            64);
}

TEST(RopeConfig, Case_B52_RefusesUnknownKindsByName) {
  for (const char* type : {"foo", "dynamic", "longrope"}) {
    EXPECT_THAT(error_of<UnsupportedError>(
                    {{"rope_scaling", object({{"rope_type", type}, {"factor", 2.0}})}}),
                HasSubstr(type));
  }
}

TEST(RopeConfig, RefusesLlama3WithoutItsNumbers) {
  const Json whole = object({{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 8192}});
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json part = whole;
    part.set(key, Json());
    EXPECT_THAT(error_of<FormatError>({{"rope_scaling", part}}), HasSubstr(key));
  }
  Json equal = whole;
  equal.set("high_freq_factor", 1.0);
  EXPECT_THAT(error_of<FormatError>({{"rope_scaling", equal}}), HasSubstr("low_freq_factor"));
}

TEST(RopeConfig, RefusesYarnThatGgufCannotHold) {
  const auto write = [](Json::Object extra) {
    Json scaling = object({{"rope_type", "yarn"}, {"factor", 4.0}});
    for (const auto& [key, value] : extra) scaling.set(key, value);
    GgufMetadata metadata;
    write_rope_scaling_gguf(read_with({{"rope_scaling", scaling}}).layers[0].attention.rope,
                            "llama", metadata);
    return metadata;
  };

  EXPECT_THROW(write({{"attention_factor", 1.5}}), UnsupportedError);
  EXPECT_THROW(write({{"truncate", false}}), UnsupportedError);
  const GgufMetadata metadata = write({{"attention_factor", 1.138629436111989}});
  EXPECT_EQ(metadata.string("llama.rope.scaling.type"), "yarn");
  EXPECT_EQ(metadata.number("llama.rope.scaling.factor"), 4.0);
  EXPECT_EQ(metadata.integer("llama.rope.scaling.original_context_length"), 256);
}

/// Frequencies of Llama 3.1 (theta 500,000, 128 dims): the first third turns unchanged, the last
/// third is divided by the factor.
TEST(RopeConfig, Llama3FactorsAreOneBelowAndTheFactorAboveTheBand) {
  RopeSpec rope;
  rope.kind = RopeSpec::Kind::kLlama3;
  rope.theta = 500000.0;
  rope.rotary_dims = 128;
  rope.factor = 8.0;
  rope.original_context = 8192;

  const std::vector<float> factors = llama3_frequency_factors(rope);

  ASSERT_EQ(factors.size(), 64u);
  EXPECT_EQ(factors[0], 1.0f);
  EXPECT_EQ(factors[28], 1.0f);
  EXPECT_GT(factors[30], 1.0f);
  EXPECT_LT(factors[34], 8.0f);
  EXPECT_EQ(factors[36], 8.0f);
  EXPECT_EQ(factors[63], 8.0f);
}

// ---------------------------------------------------------------------------------------------

TEST(Gemma3Config, UsesTheDefaultsOfItsClassWhereATextPartIsSilent) {
  const Json config = object({{"model_type", "gemma3_text"},
                              {"hidden_size", 2560},
                              {"intermediate_size", 10240},
                              {"num_hidden_layers", 34},
                              {"rope_scaling", object({{"factor", 8.0}, {"rope_type", "linear"}})},
                              {"sliding_window", 1024}});

  const ModelSpec spec = read(config);

  EXPECT_EQ(spec.vocab_size, 262208);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.context_length, 131072);
  ASSERT_EQ(spec.layers.size(), 34u);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const bool full = (i + 1) % 6 == 0;
    EXPECT_EQ(attention.sliding_window.has_value(), !full) << i;
    EXPECT_EQ(attention.rope.kind, full ? RopeSpec::Kind::kLinear : RopeSpec::Kind::kDefault);
    EXPECT_EQ(attention.rope.theta, full ? 1e6 : 1e4);
    EXPECT_EQ(attention.rope.factor, full ? 8.0 : 1.0);
    EXPECT_EQ(attention.n_heads, 8);
    EXPECT_EQ(attention.n_kv_heads, 4);
    EXPECT_EQ(attention.head_dim, 256);
    EXPECT_EQ(attention.scale, 1.0 / 16.0);
  }
  EXPECT_EQ(spec.layers[0].attention.sliding_window, 1024);
}

TEST(Gemma3Config, ReadsBothSpellingsOfTheTwoRotations) {
  const Json layered = object(
      {{"full_attention", object({{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}})},
       {"sliding_attention", object({{"rope_type", "default"}, {"rope_theta", 2e4}})}});
  const ModelSpec old_form =
      read_with({{"rope_theta", 5e5},
                 {"rope_local_base_freq", 2e4},
                 {"_sliding_window_pattern", 2},
                 {"rope_scaling", object({{"factor", 8.0}, {"rope_type", "linear"}})}},
                "gemma3_text");
  const ModelSpec new_form = read_with(
      {{"rope_parameters", layered}, {"rope_theta", Json()}, {"sliding_window_pattern", 2}},
      "gemma3_text");

  for (const size_t i : {0u, 1u}) {
    EXPECT_EQ(old_form.layers[i].attention.rope, new_form.layers[i].attention.rope) << i;
  }
  EXPECT_EQ(new_form.layers[0].attention.rope.theta, 2e4);
  EXPECT_EQ(new_form.layers[1].attention.rope.theta, 5e5);
  const Json flat = object({{"rope_type", "linear"}, {"factor", 8.0}});
  EXPECT_THAT(error_of<FormatError>({{"rope_parameters", flat}}, "gemma3_text"),
              HasSubstr("one object per layer type"));
}

TEST(Gemma3Config, RefusesByNameWhatItDoesNotDo) {
  EXPECT_THAT(error_of<UnsupportedError>({{"attn_logit_softcapping", 50.0}}, "gemma3_text"),
              HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(error_of<UnsupportedError>({{"use_bidirectional_attention", true}}, "gemma3_text"),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(error_of<UnsupportedError>({{"hidden_activation", "gelu"}}, "gemma3_text"),
              HasSubstr("\"gelu\""));
  EXPECT_THAT(error_of<FormatError>(
                  {{"layer_types", Json(Json::Array{"sliding_attention", "conv"})}}, "gemma3_text"),
              HasSubstr("layer_types"));
}

TEST(Gemma3Gguf, RefusesWhatReadersWouldGuessWrong) {
  const auto write = [](Json::Object members) {
    members.emplace_back("sliding_window_pattern", 2);
    members.emplace_back("head_dim", 16);
    GgufMetadata metadata;
    find_family("gemma3").write_gguf_metadata(read_with(std::move(members), "gemma3_text"),
                                              Json::object(), 0, metadata);
    return metadata;
  };

  const GgufMetadata metadata = write({{"query_pre_attn_scalar", 16}});
  EXPECT_EQ(metadata.integer("gemma3.attention.sliding_window_pattern"), 2);
  EXPECT_EQ(metadata.number("gemma3.rope.freq_base_swa"), 1e4);
  EXPECT_THROW(write({{"query_pre_attn_scalar", 24}}), UnsupportedError);
}

TEST(Qwen3MoeConfig, TellsDenseLayersFromThoseWithExperts) {
  const ModelSpec spec = read_with({{"num_hidden_layers", 6},
                                    {"decoder_sparse_step", 2},
                                    {"mlp_only_layers", Json(Json::Array{3})},
                                    {"num_experts", 8},
                                    {"num_experts_per_tok", 3},
                                    {"moe_intermediate_size", 32},
                                    {"norm_topk_prob", true}},
                                   "qwen3_moe");

  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool has_experts = i == 1 || i == 5;
    EXPECT_EQ(spec.layers[i].moe.has_value(), has_experts) << i;
    EXPECT_EQ(spec.layers[i].mlp.intermediate_size, has_experts ? 0 : 96) << i;
  }
  EXPECT_EQ(spec.layers[1].moe->n_experts, 8);
  EXPECT_EQ(spec.layers[1].moe->top_k, 3);
  EXPECT_EQ(spec.layers[1].moe->intermediate_size, 32);
  EXPECT_TRUE(spec.layers[1].moe->normalize);
}

TEST(Qwen3MoeConfig, RefusesNumbersThatDoNotFit) {
  for (const Json::Member& member :
       std::vector<Json::Member>{{"num_experts", 0},
                                 {"num_experts_per_tok", 129},
                                 {"moe_intermediate_size", 0},
                                 {"decoder_sparse_step", 0},
                                 {"mlp_only_layers", Json(Json::Array{2})},
                                 {"mlp_only_layers", 1}}) {
    EXPECT_THAT(error_of<FormatError>({member}, "qwen3_moe"), HasSubstr(member.first));
  }
}

TEST(Qwen3MoeGguf, RefusesWhatReadersWouldRunInAnotherWay) {
  const auto write = [](Json::Object members) {
    const ModelSpec spec = read_with(std::move(members), "qwen3_moe");
    GgufMetadata metadata;
    find_family("qwen3_moe").write_gguf_metadata(spec, Json::object(), 0, metadata);
    return metadata;
  };

  EXPECT_EQ(write({{"norm_topk_prob", true}}).integer("qwen3moe.expert_used_count"), 8);
  EXPECT_THROW(write({{"norm_topk_prob", false}}), UnsupportedError);
  EXPECT_THROW(write({{"norm_topk_prob", true}, {"decoder_sparse_step", 2}}), UnsupportedError);
}

TEST(Gemma4Config, SharedLayersReadTheLastOfTheirKindBeforeThem) {
  const Json types(Json::Array{"sliding_attention", "full_attention", "sliding_attention",
                               "sliding_attention", "full_attention"});
  const ModelSpec spec = read_with({{"num_hidden_layers", 5},
                                    {"layer_types", types},
                                    {"num_kv_shared_layers", 2},
                                    {"use_double_wide_mlp", true},
                                    {"hidden_size_per_layer_input", 16}},
                                   "gemma4_text");

  EXPECT_EQ(spec.layers[2].attention.kv_source, std::nullopt);
  EXPECT_EQ(spec.layers[3].attention.kv_source, 2);
  EXPECT_EQ(spec.layers[4].attention.kv_source, 1);
  EXPECT_EQ(spec.layers[2].mlp.intermediate_size, 96);
  EXPECT_EQ(spec.layers[3].mlp.intermediate_size, 192);
  EXPECT_THAT(error_of<FormatError>(
                  {{"num_hidden_layers", 5}, {"layer_types", types}, {"num_kv_shared_layers", 4}},
                  "gemma4_text"),
              HasSubstr("num_kv_shared_layers"));
}

// ---------------------------------------------------------------------------------------------

TEST(Gemma4Gguf, WarnsOfSharedKeysThatReadersTakeFromAnotherLayer) {
  test::TinyModel model = test::read_model(test::family_model_path("gemma4_e"));
  const Family& family = find_family("gemma4");
  EXPECT_EQ(family.gguf_warning(read(model.config)), "");

  model.config.set("layer_types",
                   Json(Json::Array{"sliding_attention", "full_attention", "sliding_attention",
                                    "sliding_attention", "full_attention"}));

  EXPECT_THAT(family.gguf_warning(read(model.config)),
              HasSubstr("layer 3 shares the keys and values of layer 2"));
}

TEST(Families, AreFoundByEveryName) {
  for (const Family* family : all_families()) {
    EXPECT_EQ(&find_family(family->name), family);
    EXPECT_EQ(&find_family_by_architecture(family->gguf_architecture), family);
    for (const std::string_view type : family->model_types) {
      EXPECT_EQ(&find_family_by_model_type(type), family);
    }
  }
  EXPECT_THROW(find_family_by_model_type("mamba"), UnsupportedError);
  EXPECT_THROW(find_family_by_architecture("mamba"), UnsupportedError);
}

TEST(Families, TablesNameEveryTensorOnce) {
  for (const Family* family : all_families()) {
    for (const std::string_view type : family->model_types) {
      const TinyModelOptions options{.model_type = std::string(type),
                                     .attention_bias = family->name != "gemma4"};
      const ModelSpec spec = read(make_tiny_model(options).config);
      std::set<std::string> hf_names;
      std::set<std::pair<std::string, int64_t>> gguf_places;
      std::set<std::tuple<Role, int, int>> roles;
      for (const TensorEntry& entry : family->tensors(spec)) {
        EXPECT_TRUE(hf_names.insert(entry.hf_name).second) << entry.hf_name;
        const int64_t first_row = entry.gguf_stack ? entry.gguf_stack->first_row : 0;
        EXPECT_TRUE(gguf_places.insert({entry.gguf_name, first_row}).second) << entry.gguf_name;
        EXPECT_TRUE(roles.insert({entry.role, entry.layer, entry.expert}).second) << entry.hf_name;
        EXPECT_LE(entry.gguf_name.size(), 63u);
        EXPECT_TRUE(!entry.quantizable || (entry.is_matrix() && entry.layer >= 0));
      }
    }
  }
}

TEST(Families, Case_B61_ValueHeadsOfOneKeyHeadStandApartInGguf) {
  TensorEntry entry;
  entry.shape = {4 + 2 * 6, 5};
  entry.gguf_rows = {.begin = 4, .block = 2, .groups = 2, .repeats = 3};

  // Heads 0 1 2 of the first key head and 3 4 5 of the second become 0 3 1 4 2 5.
  EXPECT_THAT(huggingface_rows_of_gguf(entry),
              testing::ElementsAre(0, 1, 2, 3, 4, 5, 10, 11, 6, 7, 12, 13, 8, 9, 14, 15));

  entry.gguf_columns = {.block = 2, .groups = 2, .repeats = 3};
  EXPECT_THAT(gguf_columns_of_huggingface(entry).source, testing::ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(huggingface_columns_of_gguf(entry).source, testing::ElementsAre(0, 2, 4, 1, 3, 5));
}

TEST(Families, RotaryRowsInterleaveTheHalvesOfEachHead) {
  TensorEntry entry;
  entry.shape = {12, 5};
  entry.gguf_transform = GgufTransform::kInterleaveRope;
  entry.n_heads = 2;

  EXPECT_THAT(huggingface_rows_of_gguf(entry),
              testing::ElementsAre(0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11));

  entry.gguf_transform = GgufTransform::kNone;
  EXPECT_THAT(huggingface_rows_of_gguf(entry), testing::IsEmpty());
}

}  // namespace
}  // namespace assay
