// Ten megabytes of the texts that make a careless tokenizer take the square of their length: these
// end in seconds, or not before the test's time is up.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer.h"
#include "tests/support/shared_data.h"

namespace assay {
namespace {

std::string repeated(std::string_view unit, size_t n_bytes) {
  std::string text;
  text.reserve(n_bytes + unit.size());
  while (text.size() < n_bytes) text += unit;
  return text;
}

class LongTexts : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Tokenizers, LongTexts,
                         testing::Values("llama-tiny/tokenizer.json", "pieces/bpe.model",
                                         "pieces/bpe_mapped.model", "pieces/unigram.model",
                                         "pieces/unigram_mapped.model", "pieces/metaspace.json",
                                         "pieces/metaspace_bpe.json"),
                         [](const auto& file) {
                           std::string name = file.param;
                           name = name.substr(name.find('/') + 1);
                           if (name == "tokenizer.json") name = "llama_tiny";
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

TEST_P(LongTexts, TakeTimeInProportionToTheirLength) {
  constexpr size_t kBytes = 10'000'000;
  const Tokenizer tokenizer =
      Tokenizer::from_file(test::source_path(std::string("tests/data/") + GetParam()));
  const std::string marks = "a" + repeated("\u0301\u0323\u0316\u0300", kBytes);

  for (const std::string& text : {repeated("a", kBytes), repeated(" ", kBytes), marks,
                                  repeated("\u2581", kBytes), repeated("a ", kBytes)}) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    const std::string decoded = tokenizer.decode(ids, true);

    EXPECT_LE(decoded.size(), 3 * text.size());
    EXPECT_LE(ids.size(), text.size() + 2);
  }
}

}  // namespace
}  // namespace assay
