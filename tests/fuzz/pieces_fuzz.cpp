#include <string_view>

#include "convert/core/error.h"
#include "convert/tokenizer.h"
#include "tests/fuzz/fuzz_support.h"

/// A tokenizer.model. Whatever loads encodes a text to ids of its vocabulary and decodes them in
/// pieces as at once.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const fuzz::MemoryFile file;
  constexpr std::string_view kText = "Hello  world 123\n\u20ac\u4f60 the of<s></s>ing";
  file.set(data, size);
  try {
    const Tokenizer tokenizer = Tokenizer::from_file(file.path());
    const std::vector<int32_t> ids = tokenizer.encode(kText);
    for (const int32_t id : ids) fuzz::require(id >= 0 && id < tokenizer.vocab_size());
    fuzz::require(tokenizer.encode(kText) == ids);
    Tokenizer::Stream stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    fuzz::require(streamed == tokenizer.decode(ids));
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
