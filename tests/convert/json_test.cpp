#include "convert/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/core/error.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Property;
using testing::ThrowsMessage;

auto fails_with(const std::string& part) {
  return ThrowsMessage<FormatError>(AllOf(HasSubstr("m.json"), HasSubstr(part)));
}

Json parse(std::string_view text) { return parse_json(text, "m.json"); }

TEST(Json, ReadsEveryKindOfValueAndKeepsTheOrderOfKeys) {
  const Json value = parse(R"({"z":[1,-2.5,true,false,null],"a":{"\u00e9\n":"x\ud83d\ude00y"}})");

  EXPECT_EQ(value.as_object()[0].first, "z");
  EXPECT_EQ(value.at("z").as_array()[0].as_integer(), 1);
  EXPECT_EQ(value.at("z").as_array()[1].as_number(), -2.5);
  EXPECT_TRUE(value.at("z").as_array()[2].as_bool());
  EXPECT_TRUE(value.at("z").as_array()[4].is_null());
  EXPECT_EQ(value.at("a").at("é\n").as_string(), "x😀y");
}

TEST(Json, ReadsDoublesToTheNearestValue) {
  for (const double expected : {1e-6, 0.1, 123456789.123456789, 2.2250738585072014e-308, 5e-324,
                                1.7976931348623157e308, 9007199254740993.0, 1e-5, 6.02214076e23}) {
    const std::string text = Json(expected).dump(0);

    EXPECT_EQ(parse(text).as_number(), expected) << text;
  }
  EXPECT_EQ(parse("1e-400").as_number(), 0.0);
  EXPECT_EQ(parse("[0.30000000000000004]").as_array()[0].as_number(), 0.30000000000000004);
}

TEST(Json, ReadsBackTheSameBitsOfRandomDoubles) {
  test::Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const double expected = std::bit_cast<double>(random.bits());
    if (!std::isfinite(expected)) continue;
    const std::string text = Json(expected).dump(0);

    const double actual = parse("[" + text + "]").as_array()[0].as_number();

    ASSERT_EQ(std::bit_cast<uint64_t>(actual), std::bit_cast<uint64_t>(expected)) << text;
  }
}

TEST(Json, KeepsIntegersExactAndSaysWhereTheyEnd) {
  EXPECT_EQ(parse("9223372036854775807").as_integer(), INT64_MAX);
  EXPECT_EQ(parse("-9223372036854775808").as_integer(), INT64_MIN);
  EXPECT_TRUE(parse("18446744073709551615").is_integer());
  EXPECT_EQ(parse("18446744073709551615").dump(), "18446744073709551615");
  EXPECT_THAT([] { parse("18446744073709551615").as_integer(); },
              ThrowsMessage<FormatError>(HasSubstr("larger than 2^63 - 1")));
  // Written by transformers for "no limit": int(1e30).
  EXPECT_EQ(parse("1000000000000000019884624838656").as_number(), 1e30);
  EXPECT_FALSE(parse("1.0").is_integer());
}

TEST(Json, WritesFloatsAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{1e-6, "1e-06"},
                                                  {1.0, "1.0"},
                                                  {0.0001, "0.0001"},
                                                  {0.00001, "1e-05"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {-0.0, "-0.0"},
                                                  {0.1, "0.1"},
                                                  {1.5e300, "1.5e+300"},
                                                  {500000.0, "500000.0"},
                                                  {-12345.678, "-12345.678"},
                                                  {5e-324, "5e-324"},
                                                  {123456789012345680.0, "1.2345678901234568e+17"}};
  for (const auto& [value, expected] : cases) EXPECT_EQ(Json(value).dump(), expected);
  EXPECT_THROW(Json(std::numeric_limits<double>::infinity()).dump(), NumericError);
}

TEST(Json, WritesIndentedAndCompactText) {
  Json value = Json::object();
  value.set("a", Json::array().push(1).push("x\"\\\n\x1fé")).set("e", Json::array());
  value.set("o", Json::object().set("k", nullptr));

  EXPECT_EQ(value.dump(2),
            "{\n  \"a\": [\n    1,\n    \"x\\\"\\\\\\n\\u001fé\"\n  ],\n  \"e\": [],\n  \"o\": {\n"
            "    \"k\": null\n  }\n}");
  EXPECT_EQ(value.dump(0), R"({"a":[1,"x\"\\\n\u001fé"],"e":[],"o":{"k":null}})");
  EXPECT_EQ(parse(value.dump(2)), value);
}

TEST(Json, WritesBytesThatAreNoUtf8AsReplacementCharacters) {
  EXPECT_EQ(Json("a\xff\xc0\x80z\xed\xa0\x80").dump(),
            "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Json, Case_B05_RejectsDuplicateKeysWithBothPlaces) {
  EXPECT_THAT([] { parse(R"({"t":1,"u":2,"t":3})"); },
              fails_with("byte 13: key \"t\" occurs twice in one object, first at byte 1"));
  EXPECT_THAT([] { parse(R"([0,{"a\"":1,"a\u0022":2}])"); }, fails_with("byte 12: key \"a\\\"\""));
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_NO_THROW(parse(many + "\"k100\":0}"));
  EXPECT_THAT([&] { parse(many + "\"k42\":0}"); }, fails_with("key \"k42\" occurs twice"));
}

TEST(Json, RejectsWhatIsNotStrictJsonAndSaysWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "byte 0: the text ends"},
      {"{\"a\":}", "byte 5: unexpected '}'"},
      {"[1,]", "byte 3: unexpected ']'"},
      {"[1 2]", "byte 3: unexpected '2'"},
      {"[01]", "byte 2"},
      {"[NaN]", "byte 1: unexpected 'N'"},
      {"[-Infinity]", "byte 2"},
      {"[1]x", "byte 3: expected the end of the text"},
      {"// c\n1", "byte 0: unexpected '/'"},
      {"\xef\xbb\xbf{}", "byte 0: unexpected byte value 239"},
      {"[\"\xff\"]", "byte 2: unexpected byte value 255"},
      {"[\"a\nb\"]", "byte 3: unexpected byte value 10"},
      {"[\"\\ud800\"]", "byte"},
      {"[1e999]", "byte 1: the number 1e999 is too large"},
      {"{\"a\":1", "byte 6: the text ends"},
      {"[\"abc", "byte 5: the text ends"},
      {"[1", "byte 2: the text ends"},
      {"tru", "byte 3: the text ends"}};
  for (const auto& [text, part] : cases) {
    EXPECT_THAT(([t = text] { parse(t); }), fails_with(part)) << text;
  }
}

TEST(Json, RejectsEveryTruncatedPrefix) {
  const std::string text = R"({"a":[1,2.5e3,{"b":"\u00e9é"}],"c":true,"d":null})";
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_THAT([&] { parse(text.substr(0, n)); }, fails_with("JSON")) << n;
  }
}

TEST(Json, BoundsTheDepth) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };

  EXPECT_NO_THROW(parse(nested(64)));
  EXPECT_THAT([&] { parse(nested(65)); }, fails_with("byte 64: nested deeper than 64 levels"));
  EXPECT_THAT([&] { parse(std::string(1000000, '[')); }, fails_with("deeper than 64"));
}

TEST(Json, NamesTheTypeOrKeyThatIsNotThere) {
  EXPECT_THAT([] { parse("[1]").as_string(); },
              ThrowsMessage<FormatError>(HasSubstr("expected a string, found an array")));
  EXPECT_THAT([] { parse("{}").at("hidden_size"); },
              ThrowsMessage<FormatError>(HasSubstr("\"hidden_size\" is missing")));
  EXPECT_EQ(parse("{}").find("x"), nullptr);
  EXPECT_EQ(parse("[1]").find("x"), nullptr);
}

}  // namespace
}  // namespace assay
