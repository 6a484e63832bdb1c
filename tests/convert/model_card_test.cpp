#include "convert/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/core/error.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;

CardSource source_of_card(const std::string& card) {
  const TemporaryDirectory folder;
  folder.write("README.md", card);
  return read_card_source(folder.path());
}

TEST(ModelCard, TakesOverLicenceAndTaskAsTheyStand) {
  const CardSource source = source_of_card(
      "---\n"
      "license: other\n"
      "license_name: 'the: licence'\n"
      "license_link: LICENSE\n"
      "base_model:\n- org/one\n- org/two\n"
      "pipeline_tag: text-generation\n"
      "language: [en, de]\n"
      "extra_gated_prompt: >-\n  Agree: yes\n"
      "---\n# Title\nlicense: not this\n");

  EXPECT_EQ(source.fault, "");
  EXPECT_EQ(source.fields, parse_json(R"({"base_model": ["org/one", "org/two"],
      "license": "other", "license_name": "the: licence", "license_link": "LICENSE",
      "pipeline_tag": "text-generation"})",
                                      "expected"));
  EXPECT_EQ(source.hub_id, "");
}

TEST(ModelCard, CardsWithoutAHeadSayNothing) {
  for (const char* card :
       {"", "# Title\n", "---\nlicense: mit\n", "text\n---\nlicense: mit\n---\n"}) {
    const CardSource source = source_of_card(card);
    EXPECT_EQ(source.fields, Json::object()) << card;
    EXPECT_EQ(source.fault, "") << card;
  }
  EXPECT_EQ(source_of_card("---\r\nlicense: mit\r\n---\r\n").fields.at("license").as_string(),
            "mit");
}

TEST(ModelCard, AHeadThatIsNoYamlIsNamed) {
  const CardSource source = source_of_card("---\nlicense: [mit\n---\n");

  EXPECT_EQ(source.fields, Json::object());
  EXPECT_THAT(source.fault, HasSubstr("README.md:"));
}

TEST(ModelCard, NamesTheRepositoryOfASnapshotInACache) {
  const TemporaryDirectory folder;
  const std::string snapshot = folder.file("models--org--some--model") + "/snapshots/0123";
  std::filesystem::create_directories(snapshot);

  EXPECT_EQ(read_card_source(snapshot).hub_id, "org/some--model");
  EXPECT_EQ(read_card_source(snapshot + "/").hub_id, "org/some--model");
}

TEST(ModelCard, WritesTheHeadInOneOrderWithQuotesWhereYamlNeedsThem) {
  const Json head = parse_json(R"({"tags": ["gptq", "w4a16"], "license": "no",
      "base_model": "org/name", "license_name": "a: b", "datasets": null,
      "model-index": [{"name": "x", "results": [{"task": {"type": "text-generation"},
      "metrics": [{"type": "kld", "value": 0.0125}, {"type": "n", "value": 3}]}]}]})",
                               "head");

  EXPECT_EQ(model_card_text(head, "# x\n"),
            "---\n"
            "base_model: org/name\n"
            "license: \"no\"\n"
            "license_name: \"a: b\"\n"
            "tags:\n"
            "- gptq\n"
            "- w4a16\n"
            "model-index:\n"
            "- name: x\n"
            "  results:\n"
            "  - task:\n"
            "      type: text-generation\n"
            "    metrics:\n"
            "    - type: kld\n"
            "      value: +1.2500e-02\n"
            "    - type: \"n\"\n"
            "      value: 3\n"
            "---\n\n# x\n");
}

TEST(ModelCard, WhatItWritesItReads) {
  const Json head = parse_json(R"({"license": "1.0", "license_name": "\"x\" # y\n\u20ac",
                                   "pipeline_tag": "text-generation"})",
                               "head");

  EXPECT_EQ(source_of_card(model_card_text(head, "")).fields, head);
}

TEST(ModelCard, FieldsOfTheCommandLineAreChecked) {
  EXPECT_EQ(parse_card_fields({"base_model=a/b", "datasets=c/d", "datasets=e=f"}),
            parse_json(R"({"base_model": "a/b", "datasets": ["c/d", "e=f"]})", "expected"));
  for (const char* bad : {"tags=x", "base_model", "base_model=", "=x"}) {
    EXPECT_THROW(parse_card_fields({bad}), UsageError) << bad;
  }
  EXPECT_THROW(parse_card_fields({"license=mit", "license=mit"}), UsageError);
}

}  // namespace
}  // namespace assay
