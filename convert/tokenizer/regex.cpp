#define PCRE2_CODE_UNIT_WIDTH 8

#include "convert/tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "convert/core/error.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

/// Steps of one match. A split rule needs a few per character of the longest word; the limit is for
/// patterns that would try exponentially many ways.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kJitStackStart = 64 * 1024, kJitStackMost = 8 * 1024 * 1024;
constexpr size_t kPatternBytes = 64 * 1024;

struct StandIn {
  uint32_t first, last, by;
};
/// Characters added to Unicode after version 14, the version of PCRE2 10.42.
constexpr StandIn kStandIns[] = {
#include "convert/tokenizer/newer_characters.inc"
};
constexpr uint32_t kFirstStandIn = 0x897;

const StandIn* find_stand_in(uint32_t code) {
  if (code < kFirstStandIn) return nullptr;
  const auto* found =
      std::lower_bound(std::begin(kStandIns), std::end(kStandIns), code,
                       [](const StandIn& s, uint32_t value) { return s.last < value; });
  return found != std::end(kStandIns) && found->first <= code ? found : nullptr;
}

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using CodePointer = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

/// What a thread needs to match; one for all patterns.
struct Scratch {
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};

  Scratch() {
    if (!context || !data) throw ResourceError("no memory for a regular expression");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Scratch& scratch() {
  thread_local Scratch instance;
  return instance;
}

std::string error_text(int code) {
  char buffer[160] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

}  // namespace

struct Regex::Code {
  CodePointer code;
  std::string place;  // "<file>: <path>"
};

Regex::Regex(const Part& part) : code_(std::make_unique<Code>()) {
  const std::string& pattern = part.string();
  code_->place = part.source() + ": " + part.path();
  if (pattern.empty()) part.unsupported("an empty pattern is not implemented");
  if (pattern.size() > kPatternBytes) part.unsupported("the pattern is longer than 65536 bytes");
  const TranslatedPattern translated = translate_pattern(pattern);
  if (!translated.pattern) {
    part.unsupported("pattern \"" + pattern + "\" has " + translated.problem);
  }
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw ResourceError(code_->place + ": no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.pattern->data()),
                                  translated.pattern->size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                  &error, &offset, context.get()));
  if (!code_->code) part.malformed("pattern \"" + pattern + "\": " + error_text(error));
  // Without a just-in-time compiler for this machine the interpreter gives the same matches.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex::Subject::Subject(std::string_view text) : text_(text) {
  size_t at = ascii_prefix(text);
  while (at < text.size()) {
    const DecodedCharacter c = decode_character(text.data() + at);
    if (const StandIn* stand_in = find_stand_in(c.code)) {
      if (replaced_.empty()) replaced_ = text;
      std::string by;
      append_utf8(by, stand_in->by);
      ASSAY_CHECK(by.size() == c.length);
      replaced_.replace(at, c.length, by);
    }
    at += c.length;
  }
}

std::optional<std::pair<size_t, size_t>> Regex::search(const Subject& subject, size_t start) const {
  Scratch& own = scratch();
  const std::string_view text = subject.text();
  const int result =
      pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                  PCRE2_NO_UTF_CHECK, own.data.get(), own.context.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw UnsupportedError(code_->place + ": the pattern needs too much work at byte " +
                           std::to_string(start) + " of a text of " + std::to_string(text.size()) +
                           " bytes (" + error_text(result) + "); a simpler pattern is needed");
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(own.data.get());
  return std::pair<size_t, size_t>(offsets[0], offsets[1]);
}

}  // namespace assay::tokenization
