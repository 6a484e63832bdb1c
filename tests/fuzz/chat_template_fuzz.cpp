#include <string_view>

#include "convert/chat/chat_template.h"
#include "convert/core/error.h"
#include "convert/core/json.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

constexpr std::string_view kMessages =
    R"([{"role": "system", "content": " a\nb "}, {"role": "user", "content": "x<y>\u00e9"},)"
    R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",)"
    R"("arguments": {"p": [1, 2.5, true, null, {"q": "r"}]}}}]}])";

}  // namespace

/// A chat template. Whatever parses renders fixed messages twice to the same text, whose marked
/// parts lie in order inside it, or is refused with an error of the program, soon.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const Json messages = parse_json(kMessages, "fuzz");
  try {
    const auto chat_template = chat::ChatTemplate::parse(
        std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const chat::Text text = chat_template.render(messages, messages, {.date = chat::Date{}});
    size_t done = 0;
    for (const ByteRange& range : text.outside()) {
      fuzz::require(range.begin >= done && range.begin < range.end && range.end <= text.size());
      done = range.end + 1;
    }
    const chat::Text again = chat_template.render(messages, messages, {.date = chat::Date{}});
    fuzz::require(again.bytes() == text.bytes());
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
