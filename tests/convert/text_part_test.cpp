#include "convert/families/text_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::TinyModel;
using testing::HasSubstr;

/// The tiny Gemma 3 as the text part of a larger model, its tensors under other names.
TinyModel multimodal(const std::string& model_prefix) {
  TinyModel model = test::read_model(test::family_model_path("gemma3"));
  for (test::NamedTensor& named : model.tensors) {
    named.name = model_prefix + named.name.substr(std::string("model.").size());
  }
  Json outer = Json::object();
  outer.set("model_type", "gemma3").set("eos_token_id", Json(Json::Array{2, 7}));
  Json text = model.config;
  text.set("eos_token_id", Json());
  outer.set("text_config", text).set("vision_config", Json::object());
  model.config = outer;
  const Tensor vision = model.tensors.front().tensor;
  model.add("vision_tower.encoder.layers.0.proj.weight", vision);
  model.add("multi_modal_projector.weight", vision);
  return model;
}

class TextPart : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Prefixes, TextPart,
                         testing::Values("model.language_model.", "language_model.model."));

TEST_P(TextPart, IsTheSameModelAndTheOtherPartsAreNamed) {
  const test::TemporaryDirectory folder;
  const auto plain = Checkpoint::open(test::family_model_path("gemma3"));

  const auto checkpoint = Checkpoint::open(multimodal(GetParam()).write(folder.file("model")));

  EXPECT_EQ(checkpoint->family().name, "gemma3");
  EXPECT_EQ(checkpoint->spec().layers.size(), plain->spec().layers.size());
  EXPECT_THAT(checkpoint->spec().stop_ids, testing::ElementsAre(2, 7));
  ASSERT_EQ(checkpoint->tensors().size(), plain->tensors().size());
  for (size_t i = 0; i < plain->tensors().size(); ++i) {
    const TensorEntry& entry = checkpoint->tensors()[i];
    EXPECT_TRUE(entry.hf_name.starts_with(GetParam())) << entry.hf_name;
    EXPECT_EQ(entry.gguf_name, plain->tensors()[i].gguf_name);
  }
  EXPECT_THAT(checkpoint->left_out(),
              testing::UnorderedElementsAre("vision_tower.encoder.layers.0.proj.weight",
                                            "multi_modal_projector.weight"));
  EXPECT_THAT(checkpoint->warnings(),
              testing::UnorderedElementsAre(HasSubstr("left out: vision_tower (1 tensors"),
                                            HasSubstr("left out: multi_modal_projector")));
}

TEST_P(TextPart, AnUnknownTensorBesideItIsStillAnError) {
  const test::TemporaryDirectory folder;
  TinyModel model = multimodal(GetParam());
  model.add("vision_towers.weight", model.tensors.front().tensor);

  EXPECT_THROW(Checkpoint::open(model.write(folder.file("model"))), FormatError);
}

TEST(TextPartConfig, ErrorsSayThatTheyAreAboutTheTextConfig) {
  const test::TemporaryDirectory folder;
  TinyModel model = multimodal("model.language_model.");
  Json text = model.config.at("text_config");
  text.set("hidden_size", -1);
  model.config.set("text_config", text);

  try {
    Checkpoint::open(model.write(folder.file("model")));
    ADD_FAILURE();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("text_config of config.json: \"hidden_size\""));
  }
}

TEST(TextPartConfig, AWrapperOfAnotherKindIsRefusedByName) {
  const test::TemporaryDirectory folder;
  TinyModel model = multimodal("model.language_model.");
  model.config.set("model_type", "paligemma");

  try {
    Checkpoint::open(model.write(folder.file("model")));
    ADD_FAILURE();
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"paligemma\""));
  }
}

TEST(OtherParts, AreKnownByTheirFirstWord) {
  EXPECT_EQ(other_part_of("vision_tower.a.weight"), "vision_tower");
  EXPECT_EQ(other_part_of("model.visual.blocks.0.weight"), "visual");
  EXPECT_EQ(other_part_of("mtp.fc.weight"), "mtp");
  EXPECT_EQ(other_part_of("model.layers.0.mlp.up_proj.weight"), "");
  EXPECT_EQ(other_part_of("mtpx.fc.weight"), "");
}

}  // namespace
}  // namespace assay
