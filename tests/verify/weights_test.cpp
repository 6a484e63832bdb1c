#include "verify/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace assay {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A layer of attention and one of Gated DeltaNet with experts.
ModelSpec make_spec() {
  ModelSpec spec;
  spec.vocab_size = 320;
  spec.hidden_size = 64;
  spec.layers.resize(2);
  AttentionSpec& attention = spec.layers[0].attention;
  attention.n_heads = 4;
  attention.n_kv_heads = 2;
  attention.head_dim = 16;
  attention.scale = 0.25;
  attention.rope = {
      .kind = RopeSpec::Kind::kLlama3, .rotary_dims = 16, .factor = 8.0, .original_context = 512};
  spec.layers[0].mlp.intermediate_size = 96;
  spec.layers[1].delta_net = DeltaNetSpec{2, 4, 16, 16, 4};
  spec.layers[1].moe = MoeSpec{.n_experts = 8, .top_k = 2, .intermediate_size = 32};
  return spec;
}

// Weights are no more than numbers: whatever else the forward pass reads must be compared.
TEST(CompareSpecs, SeesEverySettingOfTheForwardPass) {
  const std::vector<std::pair<std::string, std::function<void(ModelSpec&)>>> changes = {
      {"vocabulary", [](auto& s) { ++s.vocab_size; }},
      {"hidden size", [](auto& s) { ++s.hidden_size; }},
      {"RMSNorm eps", [](auto& s) { s.rms_norm_eps = 2e-6; }},
      {"scale of the embedding", [](auto& s) { s.embedding_scale = 8.0; }},
      {"softcap", [](auto& s) { s.final_softcap = 30.0; }},
      {"input per layer", [](auto& s) { s.per_layer_input_size = 8; }},
      {"layers", [](auto& s) { s.layers.resize(1); }},
      {"attention heads", [](auto& s) { ++s.layers[0].attention.n_heads; }},
      {"key and value heads", [](auto& s) { ++s.layers[0].attention.n_kv_heads; }},
      {"head dimension", [](auto& s) { ++s.layers[0].attention.head_dim; }},
      {"attention scale", [](auto& s) { s.layers[0].attention.scale = 0.5; }},
      {"sliding window", [](auto& s) { s.layers[0].attention.sliding_window = 128; }},
      {"bias of q, k and v", [](auto& s) { s.layers[0].attention.qkv_bias = true; }},
      {"bias of o", [](auto& s) { s.layers[0].attention.o_bias = true; }},
      {"norms of q and k", [](auto& s) { s.layers[0].attention.qk_norm = true; }},
      {"norm of v", [](auto& s) { s.layers[0].attention.v_norm = true; }},
      {"values are the keys", [](auto& s) { s.layers[0].attention.k_is_v = true; }},
      {"gate of the output", [](auto& s) { s.layers[0].attention.output_gate = true; }},
      {"keys and values it reads", [](auto& s) { s.layers[0].attention.kv_source = 0; }},
      {"rotary dimensions", [](auto& s) { s.layers[0].attention.rope.rotary_dims = 8; }},
      {"rope inverse", [](auto& s) { s.layers[0].attention.rope.theta = 5e5; }},
      {"rope inverse", [](auto& s) { s.layers[0].attention.rope.factor = 4.0; }},
      {"rope inverse", [](auto& s) { s.layers[0].attention.rope.low_freq_factor = 2.0; }},
      {"rope inverse", [](auto& s) { s.layers[0].attention.rope.high_freq_factor = 8.0; }},
      {"rope inverse", [](auto& s) { s.layers[0].attention.rope.original_context = 256; }},
      {"rope inverse", [](auto& s) { s.layers[0].attention.rope.kind = RopeSpec::Kind::kDefault; }},
      {"rope attention factor", [](auto& s) { s.layers[0].attention.rope.attention_factor = 1.5; }},
      {"Gated DeltaNet: true against false", [](auto& s) { s.layers[1].delta_net.reset(); }},
      {"Gated DeltaNet: key heads", [](auto& s) { ++s.layers[1].delta_net->n_key_heads; }},
      {"Gated DeltaNet: value heads", [](auto& s) { ++s.layers[1].delta_net->n_value_heads; }},
      {"Gated DeltaNet: key dimension", [](auto& s) { ++s.layers[1].delta_net->key_dim; }},
      {"Gated DeltaNet: value dimension", [](auto& s) { ++s.layers[1].delta_net->value_dim; }},
      {"Gated DeltaNet: convolution taps", [](auto& s) { ++s.layers[1].delta_net->conv_kernel; }},
      {"intermediate size", [](auto& s) { ++s.layers[0].mlp.intermediate_size; }},
      {"activation", [](auto& s) { s.layers[0].mlp.activation = Activation::kGeluTanh; }},
      {"bias of the MLP", [](auto& s) { s.layers[0].mlp.bias = true; }},
      {"experts", [](auto& s) { ++s.layers[1].moe->n_experts; }},
      {"experts per token", [](auto& s) { ++s.layers[1].moe->top_k; }},
      {"of an expert", [](auto& s) { ++s.layers[1].moe->intermediate_size; }},
      {"activation of experts",
       [](auto& s) { s.layers[1].moe->activation = Activation::kGeluTanh; }},
      {"divided by their sum", [](auto& s) { s.layers[1].moe->normalize = false; }},
      {"beside an MLP", [](auto& s) { s.layers[1].moe->beside_mlp = true; }},
      {"norms behind attention and MLP", [](auto& s) { s.layers[0].sandwich_norms = true; }},
      {"scale of the layer's output", [](auto& s) { s.layers[0].output_scale = true; }},
  };

  EXPECT_THAT(compare_specs(make_spec(), make_spec()), IsEmpty());
  for (const auto& [words, change] : changes) {
    ModelSpec changed = make_spec();
    change(changed);

    EXPECT_THAT(compare_specs(make_spec(), changed), Contains(HasSubstr(words)));
  }
}

}  // namespace
}  // namespace assay
