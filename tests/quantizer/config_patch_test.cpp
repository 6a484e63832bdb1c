#include "quantizer/config_patch.h"

#include <gtest/gtest.h>

#include "convert/core/error.h"

namespace assay {
namespace {

std::string patched(std::string_view text) {
  return set_json_member(text, "quantization_config", Json::object().set("bits", 4), "config.json");
}

TEST(ConfigPatch, InsertsBeforeTheFirstLargerKeyAndKeepsEveryOtherByte) {
  EXPECT_EQ(patched("{\n  \"a\": [1,  2],\n  \"rope\": {\"x\": 1.50}\n}\n"),
            "{\n  \"a\": [1,  2],\n  \"quantization_config\": {\n    \"bits\": 4\n  },\n"
            "  \"rope\": {\"x\": 1.50}\n}\n");
}

TEST(ConfigPatch, AppendsAfterTheLastMember) {
  EXPECT_EQ(patched("{\n  \"a\": 1,\n  \"b\": \"}\\\"\"\n}"),
            "{\n  \"a\": 1,\n  \"b\": \"}\\\"\",\n  \"quantization_config\": {\n    \"bits\": 4\n"
            "  }\n}");
}

TEST(ConfigPatch, ReplacesAMemberThatIsThere) {
  EXPECT_EQ(patched("{\n  \"quantization_config\": {\"old\": [{}]},\n  \"z\": 1\n}"),
            "{\n  \"quantization_config\": {\n    \"bits\": 4\n  },\n  \"z\": 1\n}");
}

TEST(ConfigPatch, KeepsOneLineOnOneLine) {
  EXPECT_EQ(patched("{\"a\":1,\"z\":2}"),
            "{\"a\":1,\"quantization_config\": {\"bits\":4}, \"z\":2}");
  EXPECT_EQ(patched("{}"), "{\"quantization_config\": {\"bits\":4}}");
}

TEST(ConfigPatch, LooksAtTheTopLevelOnly) {
  const std::string text = patched("{\n  \"a\": {\"quantization_config\": 1, \"z\": 2}\n}");

  const Json json = parse_json(text, "patched");
  EXPECT_EQ(json.at("a").at("quantization_config").as_integer(), 1);
  EXPECT_EQ(json.at("quantization_config").at("bits").as_integer(), 4);
}

TEST(ConfigPatch, RefusesWhatIsNoObject) {
  EXPECT_THROW(patched("[1]"), FormatError);
  EXPECT_THROW(patched("{\"a\": 1"), FormatError);
}

}  // namespace
}  // namespace assay
