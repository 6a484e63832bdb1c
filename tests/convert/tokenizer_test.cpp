#include "convert/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "convert/core/error.h"
#include "small_tokenizer.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::added_token;
using test::byte_level_json;
using test::character_json;
using test::make_tokenizer;
using test::random_text;
using test::split_by;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

template <class ErrorType>
std::string message_of(const Json& json) {
  try {
    make_tokenizer(json);
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "";
}

Json with_tokens(Json json, std::vector<Json> tokens) {
  Json list = Json::array();
  for (Json& token : tokens) list.push(std::move(token));
  json.set("added_tokens", std::move(list));
  return json;
}

/// All letters, the tokens <a> and <ab> of various flags behind the bytes.
Tokenizer tokenizer_with(std::vector<Json> tokens, Json normalizer = {}) {
  Json json = byte_level_json({{"h", "i"}});
  json.set("normalizer", std::move(normalizer));
  return make_tokenizer(with_tokens(std::move(json), std::move(tokens)));
}

TEST(Tokenizer, AppliesTheMergeOfLowestRankLeftmostFirst) {
  const Tokenizer tokenizer = make_tokenizer(byte_level_json({{"b", "c"}, {"a", "b"}, {"a", "a"}}));

  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre('a', 256));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(257));
  EXPECT_THAT(tokenizer.encode("aaa"), ElementsAre(258, 'a'));
}

TEST(Tokenizer, GivesNoIdsForNoText) {
  const Tokenizer tokenizer = make_tokenizer(byte_level_json({{"a", "b"}}));

  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, ReplacesInvalidUtf8LikeTheReference) {
  const Tokenizer tokenizer = make_tokenizer(byte_level_json({{"a", "b"}}));

  const std::string decoded = tokenizer.decode(tokenizer.encode("a\xE2\x82 \xFF\xC0\x80z"));

  EXPECT_EQ(decoded, "a\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  const Tokenizer tokenizer =
      make_tokenizer(byte_level_json({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"b", "a"}}));
  const Ids unit = {258, 258, 'b'};

  for (const int n : {1, 2, 3, 100}) {
    std::string word;
    Ids expected;
    for (int i = 0; i < n; ++i) {
      word += "aaaaaaaaaaaaaaaab";
      expected.insert(expected.end(), unit.begin(), unit.end());
    }

    EXPECT_EQ(tokenizer.encode(word), expected) << n;
  }
}

/// The rule as it is stated: the pair of lowest rank, leftmost first, until none is left.
Ids merge_plainly(std::string_view word, const std::vector<std::array<int32_t, 3>>& merges) {
  Ids ids(word.begin(), word.end());
  for (;;) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank][0] == ids[i] && merges[rank][1] == ids[i + 1]) {
          best = rank;
          at = i;
        }
      }
    }
    if (best == merges.size()) return ids;
    ids[at] = merges[best][2];
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(Tokenizer, MergesOfAnyOrderEqualThePlainAlgorithm) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    test::Random random(seed);
    std::vector<std::string> spellings = {"a", "b", "c"};
    std::vector<int32_t> ids = {'a', 'b', 'c'};
    test::Merges merges;
    std::vector<std::array<int32_t, 3>> plain;
    for (int i = 0; i < 12; ++i) {
      const size_t left = random.below(spellings.size()), right = random.below(spellings.size());
      const std::string merged = spellings[left] + spellings[right];
      if (std::find(spellings.begin(), spellings.end(), merged) != spellings.end()) continue;
      const int32_t id = 256 + static_cast<int32_t>(merges.size());
      merges.emplace_back(spellings[left], spellings[right]);
      plain.push_back({ids[left], ids[right], id});
      spellings.push_back(merged);
      ids.push_back(id);
    }
    // Ranks need not follow the order in which the tokens were made.
    Json json = byte_level_json(merges);
    Json reversed = Json::array();
    for (size_t i = merges.size(); i-- > 0;) {
      reversed.push(Json::array().push(merges[i].first).push(merges[i].second));
    }
    if (seed % 2 == 1) {
      json.find("model");
      Json model = json.at("model");
      model.set("merges", std::move(reversed));
      json.set("model", std::move(model));
      std::reverse(plain.begin(), plain.end());
    }
    const Tokenizer tokenizer = make_tokenizer(json);
    std::string word;
    for (int i = 0; i < 1500; ++i) word += static_cast<char>('a' + random.below(3));

    for (const size_t length : {2u, 7u, 47u, 48u, 49u, 200u, 1024u, 1025u, 1500u}) {
      const std::string part = word.substr(0, length);
      EXPECT_EQ(tokenizer.encode(part), merge_plainly(part, plain)) << seed << " " << part;
    }
  }
}

TEST(Tokenizer, EncodesTheSameFromManyThreads) {
  const Tokenizer tokenizer = make_tokenizer(byte_level_json({{"t", "h"}, {"th", "e"}}));
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    texts.push_back("the " + random_text(seed, 200));
    expected.push_back(tokenizer.encode(texts.back()));
  }

  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t index = (i + 10 * t) % texts.size();
        if (tokenizer.encode(texts[index]) != expected[index]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(Tokenizer, ByteLevelTextSurvivesTheRoundTrip) {
  Json json = byte_level_json({{"e", "r"}, {"\u0120", "t"}, {"1", "2"}, {"\u00c3", "\u00a9"}});
  for (const std::string_view pattern : {kLlama3, kQwen2}) {
    json.set("pre_tokenizer", split_by(pattern));
    const Tokenizer tokenizer = make_tokenizer(json);
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const std::string text = random_text(seed, 1 + seed * 5);

      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << seed;
    }
  }
}

TEST(Tokenizer, AddedTokensCutTheTextIntoIndependentParts) {
  const Tokenizer tokenizer =
      tokenizer_with({added_token(300, "<|x|>"), added_token(301, "<|xy|>")});
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const std::string left = random_text(seed, seed), right = random_text(seed + 1000, seed);

    Ids expected = tokenizer.encode(left);
    expected.push_back(300);
    for (const int32_t id : tokenizer.encode(right)) expected.push_back(id);

    EXPECT_EQ(tokenizer.encode(left + "<|x|>" + right), expected) << seed;
  }
}

TEST(AddedTokens, LeftmostWinsThenLongest) {
  const Tokenizer tokenizer = tokenizer_with({added_token(300, "bc"), added_token(301, "ab"),
                                              added_token(302, "abcd"), added_token('c', "c")});

  EXPECT_THAT(tokenizer.encode("abcd"), ElementsAre(302));
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(301, 'c'));
  EXPECT_THAT(tokenizer.encode("abcc"), ElementsAre(301, 'c', 'c'));
  EXPECT_THAT(tokenizer.encode("xbcx"), ElementsAre('x', 300, 'x'));
}

TEST(AddedTokens, SingleWordNeedsNoWordCharacterBeside) {
  const Tokenizer tokenizer = tokenizer_with({added_token(300, "ab", "w")});

  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(300));
  EXPECT_THAT(tokenizer.encode("-ab."), ElementsAre('-', 300, '.'));
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(tokenizer.encode("_ab"), ElementsAre('_', 'a', 'b'));
  EXPECT_THAT(tokenizer.encode("ab\xCC\x81"), ElementsAre('a', 'b', 0xCC, 0x81));
}

TEST(AddedTokens, LstripAndRstripTakeInWhiteSpace) {
  const Tokenizer tokenizer =
      tokenizer_with({added_token(300, "<l>", "l"), added_token(301, "<r>", "r")});

  EXPECT_THAT(tokenizer.encode("a \xC2\xA0\n<l> b"), ElementsAre('a', 300, ' ', 'b'));
  EXPECT_THAT(tokenizer.encode("a <r>  \tb"), ElementsAre('a', ' ', 301, 'b'));
  EXPECT_THAT(tokenizer.encode("<r>  <l>"), ElementsAre(301, 300));
}

TEST(AddedTokens, InWhiteSpaceThatWasTakenInFollowTheReference) {
  const Tokenizer tokenizer = tokenizer_with(
      {added_token(301, "<r>", "r"), added_token(302, "  "), added_token(303, "\n", "l")});

  EXPECT_THAT(tokenizer.encode("<r>\na"), ElementsAre(301, 'a'));  // nothing is left of the newline
  EXPECT_THAT(tokenizer.encode("<r>   a"), ElementsAre(301, 302, ' ', 'a'));
}

TEST(AddedTokens, NormalizedTokensMatchTheNormalizedText) {
  const Tokenizer tokenizer =
      tokenizer_with({added_token(300, "Stop", "n"), added_token(301, "GO", "")},
                     Json::object().set("type", "Lowercase"));

  EXPECT_THAT(tokenizer.encode("xSTOPx"), ElementsAre('x', 300, 'x'));
  EXPECT_THAT(tokenizer.encode("go"), ElementsAre('g', 'o'));
  EXPECT_THAT(tokenizer.encode("GO"), ElementsAre(301));
}

TEST(AddedTokens, AreReportedWithTheirFlags) {
  const Tokenizer tokenizer =
      tokenizer_with({added_token(300, "<a>", "sl"), added_token(301, "b c", "wrn")});

  ASSERT_EQ(tokenizer.added_tokens().size(), 2u);
  const AddedToken& a = tokenizer.added_tokens()[0];
  EXPECT_TRUE(a.special && a.lstrip && !a.rstrip && !a.single_word && !a.normalized);
  EXPECT_EQ(tokenizer.id_of("b c"), 301);
  EXPECT_EQ(tokenizer.vocab_size(), 302);
}

TEST(AddedTokens, RefusesContradictions) {
  const Json json = byte_level_json({{"a", "b"}});

  EXPECT_THAT(message_of<FormatError>(with_tokens(json, {added_token(5, "ab")})),
              HasSubstr("added_tokens[0]: the added token \"ab\" with id 5 has the id 256"));
  EXPECT_THAT(message_of<FormatError>(with_tokens(json, {added_token(256, "xy")})),
              HasSubstr("the id belongs to \"ab\""));
  EXPECT_THAT(message_of<FormatError>(
                  with_tokens(json, {added_token(300, "xy"), added_token(300, "xy", "")})),
              HasSubstr("different flags"));
  EXPECT_EQ(
      message_of<FormatError>(with_tokens(json, {added_token(300, "xy"), added_token(300, "xy")})),
      "");
}

TEST(Case_B15_SplitRuleOfTheFile, DecidesHowDigitsStayTogether) {
  Json json = byte_level_json({{"3", "3"}, {"33", "3"}, {"7", "7"}, {"77", "7"}});
  json.set("pre_tokenizer", split_by(kLlama3));
  const Tokenizer llama = make_tokenizer(json);
  json.set("pre_tokenizer", split_by(kQwen2));
  const Tokenizer qwen = make_tokenizer(json);

  EXPECT_THAT(llama.encode("3333+777"), ElementsAre(257, '3', '+', 259));
  EXPECT_THAT(qwen.encode("3333+777"), ElementsAre('3', '3', '3', '3', '+', '7', '7', '7'));
}

TEST(Case_B15_SplitRuleOfTheFile, KeepsRunsOfSymbolsWhole) {
  Json json = byte_level_json({{"-", ">"}, {")", ":"}, {"):", "\u010A"}});
  json.set("pre_tokenizer", split_by(kQwen2));

  const Tokenizer tokenizer = make_tokenizer(json);

  EXPECT_THAT(tokenizer.encode("->"), ElementsAre(256));
  EXPECT_THAT(tokenizer.encode("(x):\n"), ElementsAre('(', 'x', 258));
}

TEST(Case_B15_SplitRuleOfTheFile, IsNeverGuessed) {
  Json json = byte_level_json({{"a", "b"}});
  json.set("pre_tokenizer", split_by(R"([a-z&&[^x]]+)"));

  EXPECT_THAT(message_of<UnsupportedError>(json),
              HasSubstr("small.json: pre_tokenizer.pretokenizers[0].pattern.Regex: pattern"));
}

TEST(Case_B21_RunsOfNewlines, StayWholeWhereTheVocabularyHasThem) {
  Json json = byte_level_json({{"\u010A", "\u010A"}, {"\u010A\u010A", "\u010A\u010A"}});
  json.set("pre_tokenizer", split_by(kLlama3));
  const Tokenizer tokenizer = make_tokenizer(json);

  EXPECT_THAT(tokenizer.encode("\n\n"), ElementsAre(256));
  EXPECT_THAT(tokenizer.encode("\n\n\n\n"), ElementsAre(257));
  EXPECT_THAT(tokenizer.encode("a\n\nb"), ElementsAre('a', 256, 'b'));
  EXPECT_THAT(tokenizer.encode("a\\nb"), ElementsAre('a', '\\', 'n', 'b'));
}

Json fallback_json() {
  std::vector<std::string> tokens = {"<unk>", "a", "b", "ab"};
  constexpr char kHex[] = "0123456789ABCDEF";
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string token = "<0x";
    token += kHex[byte / 16];
    token += kHex[byte % 16];
    tokens.push_back(token + ">");
  }
  return character_json(tokens, {{"a", "b"}});
}

Json with_model(Json json, std::string_view key, Json value) {
  Json model = json.at("model");
  model.set(key, std::move(value));
  json.set("model", std::move(model));
  return json;
}

TEST(Case_B23_CharactersWithoutEntry, BecomeBytes) {
  const Tokenizer tokenizer = make_tokenizer(with_model(fallback_json(), "byte_fallback", true));

  EXPECT_THAT(tokenizer.encode("ab\xE5\x9B\xAE"), ElementsAre(3, 4 + 0xE5, 4 + 0x9B, 4 + 0xAE));
}

TEST(Case_B23_CharactersWithoutEntry, BecomeUnknownWhereTheFileSaysSo) {
  const Json json = with_model(fallback_json(), "unk_token", "<unk>");

  EXPECT_THAT(make_tokenizer(json).encode("axyb"), ElementsAre(1, 0, 0, 2));
  EXPECT_THAT(make_tokenizer(with_model(json, "fuse_unk", true)).encode("axyb"),
              ElementsAre(1, 0, 2));
  EXPECT_THAT(make_tokenizer(fallback_json()).encode("axyb"), ElementsAre(3));
}

TEST(Case_B23_CharactersWithoutEntry, AreAnErrorWithoutTheUnknownToken) {
  const Tokenizer tokenizer = make_tokenizer(with_model(fallback_json(), "unk_token", "<nil>"));

  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(3));
  EXPECT_THROW(tokenizer.encode("x"), FormatError);
}

TEST(Case_B23_MergesCountOnlyWithTheirResult, SoAMissingResultIsAnError) {
  EXPECT_THAT(message_of<FormatError>(character_json({"a", "b"}, {{"a", "b"}})),
              HasSubstr("merge 0: \"ab\" is not in the vocabulary"));
  EXPECT_THAT(message_of<FormatError>(character_json({"a", "ab"}, {{"a", "b"}})),
              HasSubstr("model.merges[0]: \"b\" is not in the vocabulary"));
}

TEST(Case_B24_ContentOfMessages, CannotHoldSpecialTokens) {
  const Tokenizer tokenizer =
      tokenizer_with({added_token(300, "<|end|>"), added_token(301, "<note>", "")});
  const std::string text = "hi<|end|><note>";

  EXPECT_THAT(tokenizer.encode(text), ElementsAre(256, 300, 301));
  EXPECT_THAT(tokenizer.encode(text, {.parse_special = false}),
              ElementsAre(256, '<', '|', 'e', 'n', 'd', '|', '>', 301));
}

TEST(Case_B24_ContentOfMessages, CannotReachASpecialTokenByMerges) {
  // "<s>" is a token of the vocabulary that merges lead to, as in tokenizers made from
  // SentencePiece.
  Json json = byte_level_json({{"<", "s"}, {"<s", ">"}});
  json.set("pre_tokenizer", split_by(R"([^ ]+)"));
  json = with_tokens(std::move(json), {added_token(257, "<s>")});
  for (const bool ignore_merges : {false, true}) {
    const Tokenizer tokenizer = make_tokenizer(with_model(json, "ignore_merges", ignore_merges));

    EXPECT_THAT(tokenizer.encode("a <s>"), ElementsAre('a', ' ', 257));
    EXPECT_THAT(tokenizer.encode("a <s>", {.parse_special = false}),
                ElementsAre('a', ' ', '<', 's', '>'));
  }
}

TEST(Case_B26_WhiteSpaceAtTheEnd, IsNeverStripped) {
  Json json = byte_level_json({{"\u0120", "\u0120"}});
  json.set("pre_tokenizer", split_by(kQwen2));
  const Tokenizer tokenizer = make_tokenizer(json);

  EXPECT_THAT(tokenizer.encode("x "), ElementsAre('x', ' '));
  EXPECT_THAT(tokenizer.encode("x  \n"), ElementsAre('x', 256, '\n'));
  EXPECT_THAT(tokenizer.encode("  "), ElementsAre(256));
}

TEST(Case_B27_AddedTokens, AreThoseOfTheFile) {
  const Tokenizer with = tokenizer_with({added_token(300, "[toxicity=0]", "")});
  const Tokenizer without = tokenizer_with({});

  EXPECT_THAT(with.encode("[toxicity=0]"), ElementsAre(300));
  EXPECT_EQ(without.encode("[toxicity=0]").size(), 12u);
}

TEST(Case_B28_BothFormsOfMerges, GiveTheSameTokenizer) {
  const Json pairs = byte_level_json({{"a", "b"}, {"ab", "c"}});
  const Json strings = with_model(pairs, "merges", Json::array().push("a b").push("ab c"));

  const Tokenizer a = make_tokenizer(pairs), b = make_tokenizer(strings);

  EXPECT_EQ(a.merges(), b.merges());
  EXPECT_EQ(a.encode("abcab"), b.encode("abcab"));
  EXPECT_THAT(b.encode("abcab"), ElementsAre(257, 256));
}

TEST(Case_B28_BothFormsOfMerges, RefuseWhatIsNoPair) {
  const Json json = byte_level_json({{"a", "b"}});

  for (const Json& entry : {Json("ab"), Json("a b c"), Json(3), Json::array().push("a"),
                            Json::array().push("a").push(1)}) {
    EXPECT_THAT(message_of<FormatError>(with_model(json, "merges", Json::array().push(entry))),
                HasSubstr("model.merges[0]"));
  }
  EXPECT_THAT(message_of<FormatError>(with_model(json, "merges", Json::array())),
              HasSubstr("model.merges: a BPE model without merges"));
}

TEST(Case_B28_IgnoreMerges, TakesAWholeWordFromTheVocabulary) {
  Json json = byte_level_json({{"b", "c"}, {"a", "b"}, {"ab", "c"}});

  EXPECT_THAT(make_tokenizer(json).encode("abc abcd"), ElementsAre('a', 256, ' ', 'a', 256, 'd'));
  EXPECT_THAT(make_tokenizer(with_model(json, "ignore_merges", true)).encode("abc abcd"),
              ElementsAre(258, ' ', 'a', 256, 'd'));
}

TEST(Case_B48_HolesInTheIds, AreNoTokens) {
  const Tokenizer tokenizer = tokenizer_with({added_token(260, "<x>")});

  EXPECT_EQ(tokenizer.vocab_size(), 261);
  EXPECT_EQ(tokenizer.token(260), "<x>");
  EXPECT_EQ(tokenizer.token(258), std::nullopt);
  EXPECT_EQ(tokenizer.token(261), std::nullopt);
  EXPECT_EQ(tokenizer.token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.decode(Ids{'a', 258, -5, 99999, 'b'}), "ab");
}

Json special_piece(std::string_view id) {
  return Json::object().set("SpecialToken", Json::object().set("id", id).set("type_id", 0));
}

Json sequence_piece(std::string_view id) {
  return Json::object().set("Sequence", Json::object().set("id", id).set("type_id", 0));
}

Json template_json(Json single) {
  Json ids = Json::object();
  ids.set("<s>", Json::object()
                     .set("id", "<s>")
                     .set("ids", Json::array().push(300))
                     .set("tokens", Json::array().push("<s>")));
  Json result = Json::object().set("type", "TemplateProcessing").set("single", std::move(single));
  return result.set("special_tokens", std::move(ids));
}

TEST(PostProcessor, PutsTokensAroundTheText) {
  Json json = with_tokens(byte_level_json({{"a", "b"}}), {added_token(300, "<s>")});
  json.set("post_processor", template_json(Json::array()
                                               .push(special_piece("<s>"))
                                               .push(special_piece("<s>"))
                                               .push(sequence_piece("A"))
                                               .push(special_piece("<s>"))));

  const Tokenizer tokenizer = make_tokenizer(json);

  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(300, 300, 256, 300));
  EXPECT_THAT(tokenizer.encode("ab", {.add_special_tokens = false}), ElementsAre(256));
  EXPECT_THAT(tokenizer.special_prefix(), ElementsAre(300, 300));
  EXPECT_EQ(tokenizer.bos_id(), 300);
  EXPECT_FALSE(tokenizer.has_pair_template());
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab"), /*skip_special=*/true), "ab");
}

TEST(PostProcessor, ReadsASequenceOfProcessors) {
  Json json = with_tokens(byte_level_json({{"a", "b"}}), {added_token(300, "<s>")});
  Json one = template_json(Json::array().push(special_piece("<s>")).push(sequence_piece("A")));
  one.set("pair", Json::array().push(sequence_piece("A")).push(sequence_piece("B")));
  const Json bytes = Json::object().set("type", "ByteLevel");
  const auto sequence = [](Json a, Json b) {
    Json list = Json::array().push(std::move(a)).push(std::move(b));
    return Json::object().set("type", "Sequence").set("processors", std::move(list));
  };

  json.set("post_processor", sequence(bytes, one));
  const Tokenizer tokenizer = make_tokenizer(json);
  json.set("post_processor", sequence(one, one));

  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(300, 256));
  EXPECT_TRUE(tokenizer.has_pair_template());
  EXPECT_THAT(message_of<UnsupportedError>(json), HasSubstr("post_processor.processors[1]"));
}

TEST(PostProcessor, RefusesTemplatesThatItCannotFill) {
  Json json = with_tokens(byte_level_json({{"a", "b"}}), {added_token(300, "<s>")});
  const auto message = [&](Json single) {
    json.set("post_processor", template_json(std::move(single)));
    return message_of<FormatError>(json);
  };

  EXPECT_THAT(message(Json::array().push(special_piece("<s>"))), HasSubstr("no place"));
  EXPECT_THAT(message(Json::array().push(sequence_piece("B"))), HasSubstr("single[0].Sequence"));
  EXPECT_THAT(message(Json::array().push(special_piece("<t>")).push(sequence_piece("A"))),
              HasSubstr("has no member \"<t>\""));
  Json wrong_id = template_json(Json::array().push(special_piece("<s>")).push(sequence_piece("A")));
  wrong_id.set("special_tokens",
               Json::object().set("<s>", Json::object().set("ids", Json::array().push(299))));
  json.set("post_processor", wrong_id);
  EXPECT_THAT(message_of<FormatError>(json), HasSubstr("no token has the id 299"));
}

TEST(TokenizerConfig, NamesBosAndEos) {
  const test::TemporaryDirectory folder;
  const Json json = with_tokens(byte_level_json({{"a", "b"}}),
                                {added_token(300, "<s>"), added_token(301, "</s>")});
  folder.write("tokenizer.json", json.dump());
  const Tokenizer plain = Tokenizer::from_folder(folder.path());
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"})");

  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());

  EXPECT_EQ(plain.bos_id(), std::nullopt);
  EXPECT_EQ(plain.eos_id(), std::nullopt);
  EXPECT_EQ(tokenizer.bos_id(), 300);
  EXPECT_EQ(tokenizer.eos_id(), 301);
  folder.write("tokenizer_config.json", R"({"eos_token": "<nil>"})");
  EXPECT_THROW(Tokenizer::from_folder(folder.path()), FormatError);
}

TEST(TokenizerJson, NamesWhatIsNotImplemented) {
  const Json json = byte_level_json({{"a", "b"}});
  const auto message = [&](std::string_view key, const char* text) {
    Json changed = json;
    changed.set(key, parse_json(text, "test"));
    return message_of<UnsupportedError>(changed);
  };

  EXPECT_THAT(message("model", R"({"type": "WordPiece", "vocab": {}})"),
              HasSubstr("\"WordPiece\""));
  EXPECT_THAT(
      message("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, )"
                            R"({"type": "BertNormalizer"}]} )"),
      HasSubstr("small.json: normalizer.normalizers[1]: the normalizer \"BertNormalizer\""));
  EXPECT_THAT(message("pre_tokenizer", R"({"type": "BertPreTokenizer"})"),
              HasSubstr("small.json: pre_tokenizer: the pre-tokenizer \"BertPreTokenizer\""));
  EXPECT_THAT(message("post_processor", R"({"type": "RobertaProcessing"})"),
              HasSubstr("small.json: post_processor: the post-processor \"RobertaProcessing\""));
  EXPECT_THAT(message("decoder", R"({"type": "Sequence", "decoders": [{"type": "CTC"}]})"),
              HasSubstr("small.json: decoder.decoders[0]: the decoder \"CTC\""));
  EXPECT_THAT(message("truncation", R"({"max_length": 3})"), HasSubstr("small.json: truncation"));
  EXPECT_THAT(message("padding", R"({"length": 3})"), HasSubstr("small.json: padding"));
  EXPECT_THAT(message("version", R"("2.0")"), HasSubstr("small.json: version"));
  EXPECT_THAT(message_of<UnsupportedError>(with_model(json, "dropout", 0.1)),
              HasSubstr("small.json: model.dropout"));
  const char* groups = R"j({"type": "Replace", "content": "$1", "pattern": {"Regex": "(a)"}})j";
  EXPECT_THAT(message("normalizer", groups), HasSubstr("small.json: normalizer.content"));
}

TEST(TokenizerJson, NamesWhatIsMalformed) {
  const Json json = byte_level_json({{"a", "b"}});
  const auto vocab = [&](const char* text) {
    return message_of<FormatError>(with_model(json, "vocab", parse_json(text, "test")));
  };

  EXPECT_THAT(message_of<FormatError>(Json(3)), HasSubstr("small.json: must be an object"));
  EXPECT_THAT(message_of<FormatError>(Json::object()), HasSubstr("no member \"model\""));
  EXPECT_THAT(vocab("[]"), HasSubstr("small.json: model.vocab: must be an object"));
  EXPECT_THAT(vocab("{}"), HasSubstr("is empty"));
  EXPECT_THAT(vocab(R"({"a": -1})"), HasSubstr("the id of \"a\" is -1"));
  EXPECT_THAT(vocab(R"({"a": 1.5})"), HasSubstr("the id of \"a\" is 1.5"));
  EXPECT_THAT(vocab(R"({"a": 2097152})"), HasSubstr("expected an integer from 0 to 2097151"));
  EXPECT_THAT(vocab(R"({"a": 0, "b": 0})"), HasSubstr("\"b\" has the id 0 of another token"));
  EXPECT_THAT(message_of<FormatError>(with_model(json, "fuse_unk", "yes")),
              HasSubstr("small.json: model.fuse_unk: must be true or false"));
}

TEST(TokenizerJson, StepsCannotLengthenATextWithoutEnd) {
  const char* tenfold =
      R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"})";
  Json steps = Json::array();
  for (int i = 0; i < 30; ++i) steps.push(parse_json(tenfold, "test"));
  const Json json = byte_level_json({{"a", "b"}});
  Json normalizer = json, decoder = json, pre_tokenizer = json;
  normalizer.set("normalizer", Json::object().set("type", "Sequence").set("normalizers", steps));
  decoder.set("decoder", Json::object().set("type", "Sequence").set("decoders", steps));
  Json bytes = Json::array();
  for (int i = 0; i < 30; ++i) bytes.push(json.at("pre_tokenizer"));
  pre_tokenizer.set("pre_tokenizer",
                    Json::object().set("type", "Sequence").set("pretokenizers", bytes));

  EXPECT_THROW(make_tokenizer(normalizer).encode("xaax"), UnsupportedError);
  EXPECT_THROW(make_tokenizer(decoder).decode(Ids{'x', 'a'}), UnsupportedError);
  EXPECT_THAT(message_of<UnsupportedError>(pre_tokenizer), HasSubstr("pre_tokenizer: more than"));
  EXPECT_EQ(make_tokenizer(decoder).decode(Ids{'x'}), "x");
}

TEST(TokenizerStream, TellsTheSameTextAsDecode) {
  const Tokenizer bytes = tokenizer_with({added_token(300, "<s>")});
  Json json = with_model(fallback_json(), "byte_fallback", true);
  json.set(
      "decoder",
      parse_json(
          R"({"type": "Sequence", "decoders": [ )"
          R"({"type": "Replace", "pattern": {"String": "a"}, "content": " a"}, {"type": "ByteFallback"}, )"
          R"({"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]} )",
          "test"));
  const Tokenizer fallback = make_tokenizer(json);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    test::Random random(seed);
    Ids ids;
    for (int i = 0; i < 60; ++i) ids.push_back(static_cast<int32_t>(random.below(302)));
    for (const Tokenizer* tokenizer : {&bytes, &fallback}) {
      for (const bool skip : {false, true}) {
        Tokenizer::Stream stream(*tokenizer, skip);
        std::string text;
        for (const int32_t id : ids) text += stream.push(id);
        text += stream.finish();

        EXPECT_EQ(text, tokenizer->decode(ids, skip)) << seed;
      }
    }
  }
}

TEST(TokenizerStream, TellsACharacterWhenItIsComplete) {
  const Tokenizer tokenizer = tokenizer_with({});
  Tokenizer::Stream stream(tokenizer);

  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE5), "");
  EXPECT_EQ(stream.push(0x9B), "");
  EXPECT_EQ(stream.push(0xAE), "\xE5\x9B\xAE");
  EXPECT_EQ(stream.push(0xE5), "");
  EXPECT_EQ(stream.push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TokenizerStream, TellsByteTokensOnceTheNextTokenEndsTheirRun) {
  Json json = with_model(fallback_json(), "byte_fallback", true);
  json.set("decoder", parse_json(R"({"type": "Sequence", "decoders": [)"
                                 R"({"type": "ByteFallback"}, {"type": "Fuse"}]})",
                                 "test"));
  const Tokenizer tokenizer = make_tokenizer(json);
  Tokenizer::Stream stream(tokenizer);

  EXPECT_EQ(stream.push(1), "a");
  EXPECT_EQ(stream.push(4 + 'x'), "");
  EXPECT_EQ(stream.push(4 + 0xFF), "");
  EXPECT_EQ(stream.push(2),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(stream.push(4 + 'x'), "");
  EXPECT_EQ(stream.finish(), "x");
}

TEST(AddedTokens, AreDecodedAsTheyStandInTheNormalizedText) {
  const Tokenizer tokenizer = tokenizer_with(
      {added_token(300, "Stop", "sn"), added_token(301, "Go", "s"), added_token(302, "go", "sn")},
      Json::object().set("type", "Lowercase"));

  EXPECT_EQ(tokenizer.decode(Ids{300, 301, 302}), "stopGogo");
  // The reference looks for the normalized spelling among the special tokens.
  EXPECT_EQ(tokenizer.decode(Ids{300, 301, 302}, /*skip_special=*/true), "stop");
}

TEST(GgufPre, IsFoundByTheExactSteps) {
  Json json = byte_level_json({{"a", "b"}});
  EXPECT_EQ(make_tokenizer(json).gguf_pre(), "gpt-2");

  json.set("pre_tokenizer", split_by(kLlama3));
  EXPECT_EQ(make_tokenizer(json).gguf_pre(), std::nullopt);
  EXPECT_EQ(make_tokenizer(with_model(json, "ignore_merges", true)).gguf_pre(), "llama-bpe");

  json.set("pre_tokenizer", split_by(kQwen2));
  EXPECT_EQ(make_tokenizer(json).gguf_pre(), std::nullopt);
  json.set("normalizer", Json::object().set("type", "NFC"));
  EXPECT_EQ(make_tokenizer(json).gguf_pre(), "qwen2");

  json.set("normalizer", nullptr);
  json.set(
      "pre_tokenizer",
      parse_json(
          R"({"type": "Sequence", "pretokenizers": [ )"
          R"({"type": "Digits", "individual_digits": true}, )"
          R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]} )",
          "test"));
  EXPECT_EQ(make_tokenizer(json).gguf_pre(), "smollm");
}

}  // namespace
}  // namespace assay
