#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/core/error.h"
#include "convert/tokenizer/byte_level.h"
#include "convert/tokenizer/decoder.h"
#include "convert/tokenizer/normal_forms.h"
#include "convert/tokenizer/normalizer.h"
#include "convert/tokenizer/pattern.h"
#include "convert/tokenizer/pre_tokenizer.h"
#include "convert/tokenizer/regex.h"
#include "convert/tokenizer/splitters.h"
#include "convert/tokenizer/unicode.h"
#include "convert/tokenizer/vocabulary.h"
#include "small_tokenizer.h"

namespace assay::tokenization {
namespace {

using test::random_text;
using testing::ElementsAre;
using Strings = std::vector<std::string>;

Part part_of(const Json& json) { return Part(json, "test.json", "part"); }

std::string utf8(uint32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

TEST(Utf8, EncodesAndDecodesEveryCharacter) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code == 0xD800) code = 0xE000;
    const std::string text = utf8(code);

    const DecodedCharacter decoded = decode_character(text.data());

    ASSERT_EQ(decoded.code, code);
    ASSERT_EQ(decoded.length, text.size());
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    ASSERT_EQ(incomplete_utf8_suffix(text), 0u);
    for (size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(incomplete_utf8_suffix("ab" + text.substr(0, n)), n);
    }
  }
}

TEST(Utf8, ReplacesMaximalSubparts) {
  const auto lossy = [](std::string_view bytes) {
    std::string text;
    append_lossy_utf8(text, bytes);
    return text;
  };
  const std::string r = "\xEF\xBF\xBD";

  // The example of the Unicode standard, table 3-8, and forms that can never be right.
  EXPECT_EQ(lossy("a\xF1\x80\x80\xE1\x80\xC2"
                  "b\x80"
                  "c\x80\xBF"
                  "d"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(lossy("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(lossy("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(lossy("\xC0\xAF"), r + r);
  EXPECT_EQ(lossy("\xF0\x9F\x98"), r);
  EXPECT_EQ(lossy("sch\xC3\xB6n"), "sch\xC3\xB6n");
}

TEST(CharacterClasses, FollowUnicode16) {
  const uint8_t* classes = character_classes();

  EXPECT_EQ(classes[U'a'], kLetter | kWord);
  EXPECT_EQ(classes[U'7'], kNumber | kWord | kNumeric);
  EXPECT_EQ(classes[U'_'], kWord);
  EXPECT_EQ(classes[U'-'], 0);
  EXPECT_EQ(classes[0x301], kMark | kWord);
  EXPECT_EQ(classes[0xB2], kNumber | kNumeric);
  EXPECT_EQ(classes[0x10D50], kLetter | kWord);  // Garay, new in 16.0
  EXPECT_EQ(classes[0x11DE0], kNumeric);         // a digit of 17.0
  for (const uint32_t code : {0x9, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x200A, 0x2028, 0x3000}) {
    EXPECT_EQ(classes[code], kSpace);
  }
  for (const uint32_t code : {0x1C, 0x1F, 0x180E, 0x200B, 0xFEFF}) EXPECT_EQ(classes[code], 0);
}

TEST(ByteLevelAlphabet, IsOneToOne) {
  EXPECT_EQ(byte_to_character(0), 0x100u);
  EXPECT_EQ(byte_to_character(' '), 0x120u);
  EXPECT_EQ(byte_to_character('\n'), 0x10Au);
  EXPECT_EQ(byte_to_character('A'), 0x41u);
  EXPECT_EQ(byte_to_character(0xAD), 0x143u);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(character_to_byte(byte_to_character(static_cast<uint8_t>(byte))), byte);
  }
  EXPECT_EQ(character_to_byte(0x144), std::nullopt);
  EXPECT_EQ(character_to_byte(' '), std::nullopt);
  EXPECT_EQ(from_byte_level("\u0120a\u00C3\u00A9"), " a\u00E9");
  EXPECT_EQ(from_byte_level("a b"), std::nullopt);
}

std::string normal(NormalForm form, std::string text) {
  to_normal_form(form, text, text);
  return text;
}

TEST(NormalForms, ComposeAndDecompose) {
  EXPECT_EQ(normal(NormalForm::kNfc, "e\u0301a"), "\u00E9a");
  EXPECT_EQ(normal(NormalForm::kNfd, "\u00E9a"), "e\u0301a");
  EXPECT_EQ(normal(NormalForm::kNfc, "\u212B"), "\u00C5");
  EXPECT_EQ(normal(NormalForm::kNfd, "\u1E69"), "s\u0323\u0307");
  EXPECT_EQ(normal(NormalForm::kNfc, "s\u0307\u0323"), "\u1E69");
  EXPECT_EQ(normal(NormalForm::kNfc, "\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(normal(NormalForm::kNfkc, "\uFB01\u2460\u00BD"),
            "fi1"
            "1\u20442");
  EXPECT_EQ(normal(NormalForm::kNfkd, "\u03D3"), "\u03A5\u0301");
  EXPECT_EQ(normal(NormalForm::kNfd, "\uAC01"), "\u1100\u1161\u11A8");
  EXPECT_EQ(normal(NormalForm::kNfc, "\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(normal(NormalForm::kNfc, "\uAC00\u11A8"), "\uAC01");
}

TEST(NormalForms, KnowNothingNewerThanUnicode9) {
  // U+1DF6 came with 10.0: it is no mark, so it stops the acute accent.
  EXPECT_EQ(normal(NormalForm::kNfc, "a\u1DF6\u0301"), "a\u1DF6\u0301");
  EXPECT_EQ(normal(NormalForm::kNfc, "\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(NormalForms, AgreeWithEachOtherOnRandomText) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string text = random_text(seed, 80);
    const std::string nfc = normal(NormalForm::kNfc, text), nfd = normal(NormalForm::kNfd, text);
    const std::string nfkc = normal(NormalForm::kNfkc, text);

    EXPECT_EQ(normal(NormalForm::kNfc, nfd), nfc) << seed;
    EXPECT_EQ(normal(NormalForm::kNfd, nfc), nfd) << seed;
    EXPECT_EQ(normal(NormalForm::kNfkc, normal(NormalForm::kNfkd, text)), nfkc) << seed;
    EXPECT_EQ(normal(NormalForm::kNfc, nfkc), nfkc) << seed;
    std::string unchanged = "untouched";
    EXPECT_FALSE(to_normal_form(NormalForm::kNfd, nfd, unchanged)) << seed;
    EXPECT_EQ(unchanged, "untouched");
  }
}

std::string normalize(const char* json, std::string_view text) {
  const Json parsed = parse_json(json, "test");
  std::string result(text);
  make_normalizer(part_of(parsed))->apply(text, result);
  return result;
}

TEST(Normalizer, ChangesTextByTheKindsOfTheFile) {
  EXPECT_EQ(normalize(R"({"type": "Lowercase"})", "\u00C4B\u0130\u1E9E\u03A3\U00010D50"),
            "\u00E4bi\u0307\u00DF\u03C3\U00010D70");
  EXPECT_EQ(
      normalize(R"({"type": "Strip", "strip_left": true, "strip_right": false})", " \u3000a "),
      "a ");
  EXPECT_EQ(
      normalize(R"({"type": "Strip", "strip_left": false, "strip_right": true})", " a\u00A0\n"),
      " a");
  EXPECT_EQ(normalize(R"({"type": "Prepend", "prepend": "_"})", "a"), "_a");
  EXPECT_EQ(normalize(R"({"type": "Prepend", "prepend": "_"})", ""), "");
  EXPECT_EQ(
      normalize(R"({"type": "Replace", "pattern": {"String": " "}, "content": "_"})", " a  b"),
      "_a__b");
  EXPECT_EQ(
      normalize(R"({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": ""})", "a  b "),
      "ab");
  EXPECT_EQ(normalize(R"({"type": "ByteLevel"})", " \u00E9"), "\u0120\u00C3\u00A9");
  EXPECT_EQ(normalize(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, )"
                      R"({"type": "Prepend", "prepend": "_"}, {"type": "Lowercase"}]} )",
                      "AE\u0301"),
            "_a\u00E9");
}

Strings pieces(const char* json, std::string_view text) {
  const Json parsed = parse_json(json, "test");
  const PreTokenizerPlan plan = make_pre_tokenizer(part_of(parsed));
  Strings found;
  if (!plan.pre_tokenizer) return {std::string(text)};
  plan.pre_tokenizer->split({text, true},
                            [&](const Piece& piece) { found.emplace_back(piece.text); });
  return found;
}

Strings split(std::string_view behavior, bool invert, std::string_view text) {
  Json json = Json::object().set("type", "Split").set("behavior", behavior).set("invert", invert);
  json.set("pattern", Json::object().set("Regex", "-"));
  return pieces(json.dump().c_str(), text);
}

TEST(SplitPreTokenizer, KnowsEveryBehavior) {
  const std::string text = "-ab--c-";

  EXPECT_THAT(split("Removed", false, text), ElementsAre("ab", "c"));
  EXPECT_THAT(split("Isolated", false, text), ElementsAre("-", "ab", "-", "-", "c", "-"));
  EXPECT_THAT(split("Contiguous", false, text), ElementsAre("-", "ab", "--", "c", "-"));
  EXPECT_THAT(split("MergedWithPrevious", false, text), ElementsAre("-", "ab-", "-", "c-"));
  EXPECT_THAT(split("MergedWithNext", false, text), ElementsAre("-ab", "-", "-c", "-"));
  EXPECT_THAT(split("Removed", true, text), ElementsAre("-", "-", "-", "-"));
  EXPECT_THAT(split("MergedWithPrevious", true, text), ElementsAre("-ab", "-", "-c", "-"));
  EXPECT_THAT(split("MergedWithNext", true, text), ElementsAre("-", "ab-", "-", "c-"));
}

TEST(SplitPreTokenizer, TakesStringsLiterally) {
  EXPECT_THAT(pieces(R"({"type": "Split", "pattern": {"String": ".+"}, "behavior": "Isolated", )"
                     R"("invert": false} )",
                     "a.+b.c"),
              ElementsAre("a", ".+", "b.c"));
}

TEST(SplitPreTokenizer, EmptyMatchesSeparate) {
  const char* json =
      R"j({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": "(?=b)"}})j";

  EXPECT_THAT(pieces(json, "abab"), ElementsAre("a", "ba", "b"));
}

TEST(PreTokenizer, SplitsDigits) {
  EXPECT_THAT(pieces(R"({"type": "Digits", "individual_digits": true})", "a12\u00B2b"),
              ElementsAre("a", "1", "2", "\u00B2", "b"));
  EXPECT_THAT(pieces(R"({"type": "Digits", "individual_digits": false})", "a12\u00B2b3"),
              ElementsAre("a", "12\u00B2", "b", "3"));
}

TEST(PreTokenizer, AddsAPrefixSpaceOnce) {
  const char* json = R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": false})";

  EXPECT_THAT(pieces(json, "a"), ElementsAre(" a"));
  EXPECT_THAT(pieces(json, " a"), ElementsAre(" a"));
}

TEST(PreTokenizer, SpellsBytesWhereMoreStepsFollow) {
  EXPECT_THAT(pieces(R"({"type": "Sequence", "pretokenizers": [ )"
                     R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, )"
                     R"({"type": "Digits", "individual_digits": true}]} )",
                     "a 12\u00F2"),
              ElementsAre("a", "\u0120", "1", "2", "\u00C3", "\u00B2"));
}

/// Both ways to split: the splitter by hand, and the same pattern through PCRE2.
TEST(Splitters, EqualTheirRegularExpressions) {
  for (const std::string_view pattern :
       {kLlama3Pattern, kQwen2Pattern, kQwen35Pattern, kGpt2Pattern}) {
    const Splitter splitter = find_splitter(pattern);
    ASSERT_NE(splitter, nullptr);
    const Json json(pattern);
    const Regex regex(part_of(json));
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const std::string text = random_text(seed, 60);
      const Regex::Subject subject(text);
      for (size_t begin = 0; begin < text.size();) {
        const size_t length = splitter(std::string_view(text).substr(begin));

        const auto match = regex.search(subject, begin);

        ASSERT_TRUE(match && match->first == begin && match->second == begin + length)
            << pattern << "\nseed " << seed << " byte " << begin << " length " << length;
        begin += length;
      }
    }
  }
}

TEST(Splitters, KnowLongSAndMarks) {
  const auto all = [](std::string_view pattern, std::string_view text) {
    Strings found;
    while (!text.empty()) {
      found.emplace_back(text.substr(0, find_splitter(pattern)(text)));
      text.remove_prefix(found.back().size());
    }
    return found;
  };

  EXPECT_THAT(all(kLlama3Pattern, "it'\u017F 'LLama'"),
              ElementsAre("it", "'\u017F", " '", "LLama", "'"));
  EXPECT_THAT(all(kGpt2Pattern, "it'S 'll"), ElementsAre("it", "'", "S", " '", "ll"));
  EXPECT_THAT(all(kQwen2Pattern, "\u0915\u094D\u0937"), ElementsAre("\u0915", "\u094D\u0937"));
  EXPECT_THAT(all(kQwen35Pattern, "\u0915\u094D\u0937"), ElementsAre("\u0915\u094D\u0937"));
  EXPECT_THAT(all(kLlama3Pattern, "a  \t b"), ElementsAre("a", "  \t", " b"));
}

TEST(RegexTranslation, KeepsTheMeaning) {
  const auto translated = [](std::string_view pattern) {
    return translate_pattern(pattern).pattern.value_or("");
  };

  EXPECT_EQ(translated(R"(\s[^\S]\d\v)"), R"(\p{White_Space}[^\P{White_Space}]\p{Nd}\x0b)");
  EXPECT_EQ(translated(R"(\p{^L}{,3})"), R"(\P{L}{0,3})");
  EXPECT_EQ(translated(R"(\u00e9\x{1F600}\x41)"), R"(\x{00e9}\x{1F600}\x{41})");
  EXPECT_EQ(translated(R"((?i:ab|[st])+?(?<!x)$)"), R"((?i:ab|[st])+?(?<!x)$)");
}

TEST(RegexTranslation, RefusesWhatMayDiffer) {
  for (const std::string_view pattern :
       {R"([a&&b])",  R"([[a]b])", R"([[:alpha:]])", R"(\h)",          R"(\R)",     R"((?m:.))",
        R"((?<n>a))", R"(a(?i)b)", R"(\p{Greek})",   R"(\p{alpha})",   R"(a{2}?)",  R"(a{2}+)",
        R"(a**)",     R"(\1)",     R"((?i:ss))",     R"((?i:\p{Lu}))", R"((?i:é))", R"(\xe9)",
        R"([])",      R"([a)",     R"((a)",          R"(a))",          R"(*a)",     R"(a{)",
        R"(\)",       R"(\W[\W])", R"(\x{110000})",  R"((?=a)*)"}) {
    const TranslatedPattern result = translate_pattern(pattern);

    EXPECT_FALSE(result.pattern.has_value()) << pattern;
    EXPECT_NE(result.problem, "") << pattern;
  }
}

Strings matches(std::string_view pattern, std::string_view text) {
  const Json json = Json::object().set("Regex", pattern);
  Strings found;
  make_pattern(part_of(json))->find(text, [&](size_t begin, size_t end, bool is_match) {
    if (is_match) found.emplace_back(text.substr(begin, end - begin));
  });
  return found;
}

TEST(RegexPattern, MatchesLikeTheReference) {
  EXPECT_THAT(matches(R"(\w+)", "a_1\u00B2-\u0301"), ElementsAre("a_1\u00B2", "\u0301"));
  EXPECT_THAT(matches(R"(\bb)", "ab b"), ElementsAre("b"));
  EXPECT_THAT(matches(R"(^.)", "ab\ncd"), ElementsAre("a", "c"));
  EXPECT_THAT(matches(R"(.$)", "ab\ncd"), ElementsAre("b", "d"));
  EXPECT_THAT(matches(R"(\s)", "\u180E\u001C\u0085"), ElementsAre("\u0085"));
  EXPECT_THAT(matches(R"((?i:'s))", "'S'\u017F"), ElementsAre("'S", "'\u017F"));
  // A letter of Unicode 16, which older tables do not know.
  EXPECT_THAT(matches(R"(\p{L}+)", "\U00010D50\u1C8A"), ElementsAre("\U00010D50\u1C8A"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "\U00031350"), ElementsAre("\U00031350"));
  // The script of U+309C is Common, though kana use it.
  EXPECT_THAT(matches(R"(\p{Katakana}+)", "\u30A2\u309C"), ElementsAre("\u30A2"));
}

TEST(RegexPattern, StopsPatternsThatExplode) {
  EXPECT_THROW(matches(R"((?:a|aa)+$)", std::string(200, 'a') + "!"), UnsupportedError);
}

Strings decoded(const char* json, Strings tokens) {
  const Json parsed = parse_json(json, "test");
  make_decoder(part_of(parsed))->apply(tokens);
  return tokens;
}

TEST(Decoder, TurnsTokensIntoText) {
  EXPECT_THAT(decoded(R"({"type": "ByteLevel"})", {"\u0120a", "\u00E2", "x y", "\u0120"}),
              ElementsAre(" a\xEF\xBF\xBDx y "));
  EXPECT_THAT(decoded(R"({"type": "ByteFallback"})",
                      {"<0xE5>", "<0x8f>", "<0xab>", "a", "<0xE5>", "<0x8F>", "<0x41>b"}),
              ElementsAre("\u53EB", "a", "\uFFFD", "\uFFFD", "<0x41>b"));
  EXPECT_THAT(decoded(R"({"type": "Fuse"})", {"a", "b"}), ElementsAre("ab"));
  EXPECT_THAT(
      decoded(R"({"type": "Strip", "content": "H", "start": 1, "stop": 2})", {"HHeyHHH", "H", "a"}),
      ElementsAre("HeyH", "", "a"));
  EXPECT_THAT(
      decoded(R"({"type": "Replace", "pattern": {"String": "_"}, "content": " "})", {"_a_", "b"}),
      ElementsAre(" a ", "b"));
}

TEST(Vocabulary, FindsByIdAndSpelling) {
  Vocabulary vocabulary;
  for (int32_t id = 0; id < 1000; ++id) {
    ASSERT_TRUE(vocabulary.add("token " + std::to_string(id), 2 * id));
  }

  EXPECT_EQ(vocabulary.find("token 517"), 1034);
  EXPECT_EQ(vocabulary.find("token 1000"), std::nullopt);
  EXPECT_EQ(vocabulary.token(1034), "token 517");
  EXPECT_FALSE(vocabulary.contains(1035));
  EXPECT_FALSE(vocabulary.add("token 517", 1035));
  EXPECT_FALSE(vocabulary.add("new", 1034));
  EXPECT_EQ(vocabulary.id_end(), 1999);
  EXPECT_EQ(vocabulary.size(), 1000u);
}

// ---------------------------------------------------------------------------------------------

/// "precompiled_charsmap" of these pairs: each node of the trie gets 256 units of its own.
std::string charsmap_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<std::map<uint8_t, size_t>> children(1);
  std::map<size_t, uint32_t> values;  // node → place of its replacement
  std::string replacements;
  for (const auto& [key, replacement] : pairs) {
    size_t node = 0;
    for (const char c : key) {
      const auto byte = static_cast<uint8_t>(c);
      if (!children[node].contains(byte)) {
        children[node][byte] = children.size();
        children.emplace_back();
      }
      node = children[node][byte];
    }
    values[node] = static_cast<uint32_t>(replacements.size());
    replacements += replacement + '\0';
  }
  std::vector<uint32_t> units(256 * (children.size() + 1));
  const auto base = [](size_t node) { return static_cast<uint32_t>(256 * (node + 1)); };
  const auto unit = [&](size_t at, size_t node, uint32_t label) {
    const uint32_t apart = static_cast<uint32_t>(at) ^ base(node);
    return apart << 10 | (values.contains(node) ? 1u << 8 : 0u) | label;
  };
  units[0] = unit(0, 0, 0);
  for (size_t node = 0; node < children.size(); ++node) {
    if (values.contains(node)) units[base(node)] = 1u << 31 | values[node];
    for (const auto& [byte, child] : children[node]) {
      units[base(node) ^ byte] = unit(base(node) ^ byte, child, byte);
    }
  }
  const auto n_bytes = static_cast<uint32_t>(4 * units.size());
  std::string bytes(reinterpret_cast<const char*>(&n_bytes), 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), n_bytes);
  return bytes + replacements;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63u] : '=';
    }
  }
  return text;
}

std::unique_ptr<Normalizer> precompiled(const std::string& bytes) {
  const Json json =
      Json::object().set("type", "Precompiled").set("precompiled_charsmap", base64(bytes));
  return make_normalizer(part_of(json));
}

const std::vector<std::pair<std::string, std::string>> kCharacters = {
    {"\uFB01", "fi"},      {"\uFF21", "A"}, {"\u00A0", " "},       {"\u200B", ""},
    {"e\u0301", "\u00E9"}, {"o", "0"},      {"o\u0308", "\u00F6"}, {"\U0001F469", "W"}};

// The texts on the right are those of tokenizers 0.23.3 for the same map.
TEST(Charsmap, ReplacesClustersAndCharacters) {
  const auto normalizer = precompiled(charsmap_of(kCharacters));
  const auto apply = [&](std::string_view text) {
    std::string result;
    return normalizer->apply(text, result) ? result : std::string(text);
  };

  EXPECT_EQ(apply("\uFB01n\u00A0\uFF21\u200B"), "fin A");
  EXPECT_EQ(apply("caf"
                  "e\u0301"),
            "caf\u00E9");
  EXPECT_EQ(apply("e"), "e");
  EXPECT_EQ(apply("o\u0308"), "0");                                // the shortest key decides
  EXPECT_EQ(apply("e\u0301\u0302\u0303"), "e\u0301\u0302\u0303");  // 7 bytes: by character
  EXPECT_EQ(apply("\U0001F469\u200D\U0001F469"), "W\u200DW");
  EXPECT_EQ(apply(std::string_view("a\0\uFB01", 5)), std::string("a\0fi", 4));
  std::string untouched = "before";
  EXPECT_FALSE(normalizer->apply("plain text", untouched));
  EXPECT_FALSE(normalizer->apply("", untouched));
  EXPECT_EQ(untouched, "before");
}

TEST(Charsmap, RefusesMapsThatLeadOutsideOfThemselves) {
  const std::string bytes = charsmap_of(kCharacters);
  const auto refused = [](const std::string& map) {
    EXPECT_THROW(precompiled(map), FormatError) << map.size();
  };

  for (const size_t n : {0u, 3u, 4u, 5u, 1024u}) refused(bytes.substr(0, n));
  refused(bytes.substr(0, bytes.rfind("W")));  // a replacement is missing
  std::string cut = bytes;                     // a trie of fewer units
  cut[1] = static_cast<char>(cut[1] - 4);
  refused(cut);
  refused(bytes + "\xff");
  for (const char* text : {"AAA", "AA-A", "A===", "AAA\n"}) {
    const Json json = Json::object().set("type", "Precompiled").set("precompiled_charsmap", text);
    EXPECT_THROW(make_normalizer(part_of(json)), FormatError) << text;
  }
}

TEST(Charsmap, AFlippedBitIsRefusedOrReadsInside) {
  const std::string bytes = charsmap_of({{"a", "b"}, {"\u00E9", "e"}});
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0 && i % 16 != 0) continue;  // most units are empty
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i / 16 % 8)));
    try {
      std::string result;
      precompiled(damaged)->apply("ab\u00E9 \u4E2D", result);
    } catch (const FormatError&) {
    }
  }
}

}  // namespace
}  // namespace assay::tokenization
