#include <string_view>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/tokenizer.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

constexpr size_t kLongestText = 4096;  // bytes; what a rule does to it has limits of its own

/// Letters, digits, spaces, marks, scripts without spaces, bytes that are no UTF-8, specials.
constexpr std::string_view kText =
    "Hello, world! I'll  pay 1234567 \u20ac\r\n\n\t e\u0301\u00e9 \u4f60\u597d \U0001f600"
    "<|endoftext|><s></s>\xff\xfe _snake-case  ";

void check(const assay::Tokenizer& tokenizer, std::string_view text,
           const assay::EncodeOptions& options) {
  using assay::fuzz::require;
  const std::vector<int32_t> ids = tokenizer.encode(text, options);
  for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
  require(tokenizer.encode(text, options) == ids);  // the second time from its cache
  for (const bool skip_special : {false, true}) {
    assay::Tokenizer::Stream stream(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    require(streamed == tokenizer.decode(ids, skip_special));
  }
}

}  // namespace

/// A tokenizer.json, and after a byte 0 the text to encode (without: a fixed one). Whatever loads
/// encodes any text to ids of its vocabulary, twice alike, and decodes them in pieces as at once.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view text =
      end == std::string_view::npos ? kText : input.substr(end + 1, kLongestText);
  try {
    const Tokenizer tokenizer =
        Tokenizer::from_json(parse_json(input.substr(0, end), "fuzz"), "fuzz");
    for (const bool special : {true, false}) {
      check(tokenizer, text, {.add_special_tokens = special, .parse_special = special});
    }
    const auto merges = tokenizer.merges();
    for (const AddedToken& token : tokenizer.added_tokens()) {
      fuzz::require(tokenizer.token(token.id).has_value());
    }
    tokenizer.decode(std::vector<int32_t>{-1, 0, tokenizer.vocab_size(), 1});
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  } catch (const NumericError&) {
    std::abort();  // no numbers here
  }
  return 0;
}
