// The commands `generate` and `bench` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/core/sha256.h"
#include "convert/tokenizer.h"
#include "runtime/commands.h"
#include "runtime/read_bandwidth.h"
#include "runtime/run_options.h"
#include "tests/convert/cli_fixture.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A random tiny model with its tokenizer (0 <|bos|>, 1 <|eos|>, 2 <|pad|>, bytes from 3 on).
class Generate : public testing::Test {
 protected:
  RunResult run(std::vector<std::string> words) {
    const Command* const commands[] = {&generate_command(), &bench_command()};
    return process_.run(words, {std::begin(commands), std::end(commands)});
  }
  RunResult generate(std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", model_});
    return run(words);
  }
  Json generate_json(std::vector<std::string> words) {
    words.push_back("--json");
    const RunResult result = generate(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return parse_json(result.out, "stdout");
  }

  test::TemporaryDirectory folder_;
  std::string model_ = test::make_tiny_model().write(folder_.file("m"));
  FakeProcess process_;
};

TEST_F(Generate, TakesIdsAndGivesIdsWithoutATokenizer) {
  test::TinyModel tiny = test::make_tiny_model();
  tiny.tokenizer_json.clear();
  tiny.tokenizer_config_json.clear();
  model_ = tiny.write(folder_.file("no-tokenizer"));

  const RunResult result =
      generate({"--token-ids", "5, 6,7", "-n", "4", "--raw-ids", "--ignore-eos"});

  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4);
  EXPECT_EQ(result.out.find_first_not_of("0123456789\n"), std::string::npos);
}

TEST_F(Generate, TakesTheTokenizerOfAnotherFolder) {
  const Json expected = generate_json({"-p", "abc", "-n", "0"}).at("prompt_ids");
  const std::string folder = model_;
  test::TinyModel tiny = test::make_tiny_model();
  tiny.tokenizer_json.clear();
  model_ = tiny.write(folder_.file("no-tokenizer"));

  for (const std::string& path : {folder, folder + "/tokenizer.json"}) {
    EXPECT_EQ(generate_json({"-p", "abc", "-n", "0", "--tokenizer", path}).at("prompt_ids"),
              expected);
  }
}

TEST_F(Generate, PrintsOneJsonDocumentWithIdsHashTextAndTimes) {
  const Json result = generate_json({"-p", "abc", "-n", "5", "--ignore-eos", "--kv-type", "f32"});

  EXPECT_EQ(result.at("arithmetic").as_string(), "canonical-1");
  EXPECT_EQ(result.at("kv_type").as_string(), "f32");
  EXPECT_EQ(result.at("prompt_ids").as_array()[0].as_integer(), 0);  // BOS
  EXPECT_EQ(result.at("token_ids").as_array().size(), 5u);
  EXPECT_EQ(result.at("stop_reason").as_string(), "length");
  std::vector<int32_t> ids;
  for (const Json& id : result.at("token_ids").as_array()) {
    ids.push_back(static_cast<int32_t>(id.as_integer()));
  }
  EXPECT_EQ(result.at("token_ids_sha256").as_string(), sha256_of_token_ids(ids));
  for (const char* key : {"prompt_tokens", "new_tokens", "ttft_ms", "tpot_ms", "elapsed_s"}) {
    EXPECT_NE(result.at("stats").find(key), nullptr) << key;
  }
}

TEST_F(Generate, TheTextOfTheStreamIsTheTextOfTheDocument) {
  const std::vector<std::string> words = {"-p", "abc", "-n", "12", "--ignore-eos"};

  const RunResult streamed = generate(words);
  const std::string text = generate_json(words).at("text").as_string();

  EXPECT_EQ(streamed.out, text.ends_with('\n') ? text : text + "\n");
}

TEST_F(Generate, PrintsTimesOnStderrOnlyWhenAsked) {
  const RunResult quiet = generate({"-p", "a", "-n", "2"});
  const RunResult loud = generate({"-p", "a", "-n", "2", "--stats"});

  EXPECT_THAT(quiet.error, Not(HasSubstr("ttft_ms")));
  EXPECT_THAT(loud.error, HasSubstr("ttft_ms"));
  EXPECT_THAT(loud.error, HasSubstr("tpot_ms"));
  EXPECT_THAT(loud.error, HasSubstr("elapsed_s"));
  EXPECT_EQ(loud.out, quiet.out);
}

TEST_F(Generate, Case_B21_ThePromptIsTakenAsItIs) {
  const auto ids = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"-n", "0"});
    return generate_json(words).at("prompt_ids").dump();
  };

  EXPECT_NE(ids({"-p", "a\\nb"}), ids({"-p", "a\nb"}));  // escapes are not expanded
  EXPECT_NE(ids({"-p", "a\n\n"}), ids({"-p", "a"}));     // nor is anything stripped (case B26)
  EXPECT_EQ(ids({"-f", folder_.write("p.txt", "a\r\n\\n \n")}), ids({"-p", "a\r\n\\n \n"}));
}

TEST_F(Generate, Case_B24_SpecialTokensInThePromptCanBeForbidden) {
  const auto n_ids = [&](const char* flag) {
    std::vector<std::string> words = {"-p", "x<|eos|>", "-n", "0"};
    if (*flag != 0) words.emplace_back(flag);
    return generate_json(words).at("prompt_ids").as_array().size();
  };

  EXPECT_EQ(n_ids(""), 3u);  // BOS, x, <|eos|>
  EXPECT_GT(n_ids("--no-parse-special"), 3u);
}

TEST_F(Generate, Case_B25_TwoBosAreWarnedOf) {
  const RunResult twice = generate({"-p", "<|bos|>hi", "-n", "1"});
  const RunResult once = generate({"-p", "<|bos|>hi", "-n", "1", "--no-add-special"});

  EXPECT_EQ(twice.exit_code, 0);
  EXPECT_THAT(twice.error, HasSubstr("two BOS tokens (id 0)"));
  EXPECT_THAT(once.error, Not(HasSubstr("BOS")));
}

TEST_F(Generate, Case_B54_StopsAtTheUnionOfConfigGenerationConfigAndTokenizer) {
  // Of a greedy run, three different ids are made stop tokens in three places, one at a time.
  const Json free_run = generate_json({"--token-ids", "0,9,30", "-n", "24", "--ignore-eos"});
  const auto ids = free_run.at("token_ids").as_array();
  const int64_t stop = ids[5].as_integer();
  size_t first = 0;
  while (ids[first].as_integer() != stop) ++first;
  const auto spelling = Tokenizer::from_folder(model_).token(static_cast<int32_t>(stop));
  ASSERT_TRUE(spelling.has_value());
  for (const std::string place : {"config", "generation_config", "tokenizer"}) {
    test::TinyModel tiny = test::make_tiny_model();
    tiny.config.set("eos_token_id", place == "config" ? Json(stop) : Json(int64_t{1}));
    if (place == "tokenizer") {
      Json config = Json::object();
      tiny.tokenizer_config_json = config.set("eos_token", *spelling).dump();
    }
    if (place == "generation_config") {
      Json list = Json::array();
      list.push(int64_t{2}).push(stop);
      tiny.generation_config = Json::object();
      tiny.generation_config.set("eos_token_id", std::move(list));
    }
    model_ = tiny.write(folder_.file(place));

    const Json result = generate_json({"--token-ids", "0,9,30", "-n", "24"});

    EXPECT_EQ(result.at("stop_reason").as_string(), "stop_token") << place;
    EXPECT_EQ(result.at("token_ids").as_array().size(), first + 1) << place;
  }
}

TEST_F(Generate, Case_B67_TooLongForTheContextIsAnErrorWithTheNumbers) {
  const RunResult room = generate({"--token-ids", "1,2,3", "-n", "14", "-c", "16"});
  const RunResult none = generate({"--token-ids", "1,2,3", "-n", "1", "-c", "2"});
  const RunResult fits = generate({"--token-ids", "1,2,3", "-n", "13", "-c", "16", "--raw-ids"});

  EXPECT_EQ(room.exit_code, 2);
  EXPECT_THAT(room.error, HasSubstr("context of 16 tokens: the prompt has 3 and 14 new ones"));
  EXPECT_THAT(room.error, HasSubstr("room for 13"));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(fits.exit_code, 0) << fits.error;
}

TEST_F(Generate, Case_B67_AMillionTokensAreRefusedBeforeMemoryIsTaken) {
  const RunResult result = generate({"-f", folder_.write("long.txt", std::string(1000000, 'a'))});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("context of "));
}

TEST_F(Generate, RefusesNoPromptSeveralPromptsAndBadIds) {
  EXPECT_EQ(generate({}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "a", "--token-ids", "1"}).exit_code, 2);
  EXPECT_EQ(generate({"--token-ids", "1,x"}).exit_code, 2);
  EXPECT_EQ(generate({"--token-ids", "99999", "-n", "1"}).exit_code, 2);
  EXPECT_EQ(generate({"--token-ids", "", "-n", "1"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "a", "--top-p", "0"}).exit_code, 2);
  EXPECT_EQ(run({"generate", folder_.file("nothing"), "-p", "a"}).exit_code, 3);
  EXPECT_EQ(generate({"-p", "a", "--device", "tpu"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "a\xff"}).exit_code, 3);
  EXPECT_THAT(generate({"-f", folder_.write("bytes", "ab\xff")}).error,
              HasSubstr("bytes: byte 2 is not valid UTF-8"));
}

TEST_F(Generate, SaysWhichOptionsOfADrawChangeNothing) {
  const RunResult greedy = generate({"-p", "a", "-n", "1", "--top-k", "5", "--seed", "3"});
  const RunResult drawn =
      generate({"-p", "a", "-n", "1", "--top-k", "5", "--seed", "3", "--temperature", "0.5"});

  EXPECT_THAT(greedy.error, HasSubstr("--top-k changes nothing at --temperature 0"));
  EXPECT_THAT(greedy.error, HasSubstr("--seed changes nothing"));
  EXPECT_EQ(drawn.error, "");
}

TEST_F(Generate, TheSameSeedDrawsTheSameTokens) {
  const auto draw = [&](const char* seed) {
    return generate_json({"-p", "a", "-n", "16", "--temperature", "1.2", "--top-k", "50", "--seed",
                          seed, "--ignore-eos"})
        .at("token_ids_sha256")
        .as_string();
  };

  EXPECT_EQ(draw("7"), draw("7"));
  EXPECT_NE(draw("7"), draw("8"));
}

TEST_F(Generate, BenchReportsRatesAndTheHashOfTheLogits) {
  const RunResult decode =
      run({"bench", "decode", model_, "--tokens", "3", "-r", "2", "--nodes", "--json"});
  const RunResult prefill =
      run({"bench", "prefill", model_, "--tokens", "9", "--depth", "4", "-r", "1", "--json"});

  ASSERT_EQ(decode.exit_code, 0) << decode.error;
  ASSERT_EQ(prefill.exit_code, 0) << prefill.error;
  const Json d = parse_json(decode.out, "decode"), p = parse_json(prefill.out, "prefill");
  EXPECT_GT(d.at("tokens_per_s").as_number(), 0.0);
  EXPECT_GT(d.at("read_bandwidth_gb_per_s").as_number(), 0.0);
  EXPECT_NE(d.find("percent_of_read_bandwidth"), nullptr);
  EXPECT_EQ(d.at("logits_sha256").as_string().size(), 64u);
  EXPECT_TRUE(d.at("nodes").as_array().empty());  // the CPU has none
  EXPECT_GT(p.at("giga_products_per_s").as_number(), 0.0);
  EXPECT_EQ(run({"bench", "train", model_}).exit_code, 2);
  EXPECT_EQ(run({"bench", "prefill", model_, "--nodes"}).exit_code, 2);
  const std::string most = "9223372036854775807";  // sums of such numbers overflow
  EXPECT_EQ(run({"bench", "decode", model_, "--tokens", most, "--depth", most}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "a", "-c", most}).exit_code, 2);
}

TEST_F(Generate, BenchTakesTheMeanOfTheTwoMiddleTimes) {
  const RunResult result = run({"bench", "decode", model_, "--tokens", "2", "-r", "2", "--json"});

  ASSERT_EQ(result.exit_code, 0) << result.error;
  const Json json = parse_json(result.out, "bench");
  const double least = json.at("tokens_per_s_min").as_number(),
               most = json.at("tokens_per_s_max").as_number();
  const double mean_seconds = (1.0 / least + 1.0 / most) / 2.0;
  EXPECT_NEAR(json.at("tokens_per_s").as_number() * mean_seconds, 1.0, 1e-9);
}

TEST_F(Generate, ChatRendersMessagesByTheTemplate) {
  write_text_file(
      model_ + "/chat_template.jinja",
      "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}"
      "{% endfor %}{% if add_generation_prompt %}say{{ mood }}{% endif %}");
  const std::string file = folder_.write(
      "messages.json",
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})");

  const Json one = generate_json({"--chat", "-p", "a<|eos|>", "--system", "s", "-n", "1"});
  const Json two = generate_json(
      {"--messages", file, "-n", "1", "--template-variables", R"({"mood": "<|eos|>"})"});

  EXPECT_EQ(one.at("prompt"), Json("<|bos|>system:s<|eos|>user:a<|eos|><|eos|>say"));
  EXPECT_EQ(two.at("prompt"), Json("<|bos|>user:hi<|eos|>assistant:yo<|eos|>say<|eos|>"));
  const auto count = [](const Json& ids, int64_t id) {
    return std::count(ids.as_array().begin(), ids.as_array().end(), Json(id));
  };
  EXPECT_EQ(count(one.at("prompt_ids"), 0), 1);
  EXPECT_EQ(count(one.at("prompt_ids"), 1), 2);  // not the one that the message spells
  EXPECT_EQ(count(two.at("prompt_ids"), 1), 2);
}

TEST_F(Generate, ChatIsRefusedWithoutATemplateAndWithOptionsOfPlainPrompts) {
  const RunResult none = generate({"--chat", "-p", "a"});
  const std::string path = folder_.write("t.jinja", "{{ messages[0].content }}");

  EXPECT_EQ(none.exit_code, 7);
  EXPECT_THAT(none.error, HasSubstr("the model has no chat template"));
  EXPECT_EQ(generate({"--chat", "-p", "a", "--chat-template", path, "-n", "1"}).exit_code, 0);
  EXPECT_EQ(generate({"--chat", "--token-ids", "1"}).exit_code, 2);
  EXPECT_EQ(generate({"--system", "x", "-p", "a"}).exit_code, 2);
  EXPECT_EQ(generate({"--chat", "-p", "a", "--messages", path}).exit_code, 2);
  EXPECT_EQ(generate({"--chat", "-p", "a", "--chat-template", path, "--date", "x"}).exit_code, 2);
}

TEST_F(Generate, ChatRefusesWhatIsNoConversation) {
  const std::string path = folder_.write("t.jinja", "{{ messages[0].content }}");
  const auto chat = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--chat-template", path, "-n", "1"});
    return generate(words);
  };
  const std::string misspelt = folder_.write("misspelt.json", R"({"message": []})"),
                    tools = folder_.write("tools.json", R"({"tools": 3, "messages": [
                        {"role": "user", "content": "a"}]})");

  EXPECT_THAT(chat({"--messages", misspelt}).error, HasSubstr(misspelt + ": expected an array"));
  EXPECT_THAT(chat({"--messages", tools}).error, HasSubstr(tools + ": tools: expected an array"));
  for (const char* variables : {"{", "[]", R"({"messages": []})", R"({"tools": []})"}) {
    const RunResult result = chat({"--chat", "-p", "a", "--template-variables", variables});

    EXPECT_EQ(result.exit_code, 2) << variables;
    EXPECT_THAT(result.error, HasSubstr("--template-variables")) << variables;
  }
}

TEST(ParseTokenIds, TakesCommasSpacesAndLineEnds) {
  EXPECT_THAT(parse_token_ids(" 1,2 3\n4,\t5,"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_TRUE(parse_token_ids("").empty());
  for (const char* bad : {"-1", "1.5", "1x", "2147483648", "0x1"}) {
    EXPECT_THROW(parse_token_ids(bad), UsageError) << bad;
  }
}

TEST(ReadBandwidth, IsAPlausibleNumber) {
  const double bytes_per_s = host_read_bandwidth(uint64_t{8} << 20);

  EXPECT_GT(bytes_per_s, 1e6);
  EXPECT_LT(bytes_per_s, 1e14);
}

}  // namespace
}  // namespace assay::cli
