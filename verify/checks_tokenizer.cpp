// Check of what comes before and after the numbers: text to ids and back, chat template, ends.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "convert/chat/chat_prompt.h"
#include "convert/core/error.h"
#include "verify/checks.h"
#include "verify/describe.h"

namespace assay {
namespace {

/// Texts in which the split rules and normalizers of known tokenizers part.
constexpr std::array<std::string_view, 9> kProbes = {
    "Hello world, hello  World.",
    "   three spaces\n\n\n \t\ttabs \r\nand a space at the end ",
    "It's we'll I'M THEY'RE o'clock",
    "1 12 123 1234567890 3.14159 1e-5 \xC2\xBD \xC2\xB2",
    "na\xC3\xAFve cafe\xCC\x81 \xC3\x9C \xEF\xAC\x81 \xC2\xA0 \xE3\x80\x80",
    "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4 "
    "\xE0\xB9\x84\xE0\xB8\x97\xE0\xB8\xA2 \xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D",
    "\xF0\x9F\xA6\x99 \xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
    "if (foo_bar(x) != y->z) { return \"a\\n\"; } /* c */ #include <a>",
    "Bytes \x80\xFF that are no text"};

std::string quoted(const std::optional<std::string>& text) {
  return text ? Json(*text).dump(0) : std::string("no token");
}

/// Lines of one kind of difference: the first in full, the others as a count.
class Lines {
 public:
  void add(const std::string& line) {
    if (n_++ == 0) first_ = line;
  }
  void move_into(std::vector<std::string>& lines) const {
    if (n_ > 0) lines.push_back(n_ == 1 ? first_ : fmt::format("{}; and {} more", first_, n_ - 1));
  }

 private:
  size_t n_ = 0;
  std::string first_;
};

/// Compares two tokenizers by what they do, since a folder and its GGUF file spell some tokens in
/// other ways; where both are of one kind, by every word of theirs, too.
class TokenizerComparison {
 public:
  TokenizerComparison(const Tokenizer& a, const Tokenizer& b, bool same_kind)
      : a_(a), b_(b), same_kind_(same_kind) {}

  std::vector<std::string> lines() {
    compare_tokens();
    compare_merges();
    if (same_kind_) compare_added_tokens();
    if (same_kind_ && a_.gguf_pre() != b_.gguf_pre()) {
      lines_.push_back(fmt::format("split rule: {} against {}", a_.gguf_pre().value_or("unnamed"),
                                   b_.gguf_pre().value_or("unnamed")));
    }
    Lines texts;
    for (const std::string_view text : kProbes) compare_encoding(text, texts);
    texts.move_into(lines_);
    if (a_.encode("") != b_.encode("")) {
      lines_.push_back(fmt::format("ids put around a text: {} against {}",
                                   fmt::join(a_.encode(""), " "), fmt::join(b_.encode(""), " ")));
    }
    if (a_.bos_id() && b_.bos_id() && a_.bos_id() != b_.bos_id()) {
      lines_.push_back(fmt::format("BOS: {} against {}", *a_.bos_id(), *b_.bos_id()));
    }
    return std::move(lines_);
  }

 private:
  /// Each token's text back into ids takes the merges that make it.
  void compare_tokens() {
    Lines spellings, texts;
    for (int32_t id = 0; id < std::max(a_.vocab_size(), b_.vocab_size()); ++id) {
      const std::optional<std::string> token_a = a_.token(id), token_b = b_.token(id);
      if (!token_a && !token_b) continue;
      const std::array<int32_t, 1> ids = {id};
      const bool same =
          token_a == token_b || (!same_kind_ && token_a && token_b && have_same_text(ids));
      if (same) {
        compare_encoding(a_.decode(ids), texts);
      } else {
        spellings.add(fmt::format("id {}: {} against {}", id, quoted(token_a), quoted(token_b)));
      }
    }
    spellings.move_into(lines_);
    texts.move_into(lines_);
  }

  /// Bytes that are no text are all alike when they are decoded.
  bool have_same_text(std::span<const int32_t> ids) const {
    const std::string text = a_.decode(ids);
    return text == b_.decode(ids) && text.find(kReplacement) == std::string::npos;
  }

  void compare_encoding(std::string_view text, Lines& lines) const {
    const std::vector<int32_t> ids_a = a_.encode(text, {.add_special_tokens = false});
    const std::vector<int32_t> ids_b = b_.encode(text, {.add_special_tokens = false});
    if (ids_a == ids_b) return;
    lines.add(fmt::format("{} becomes {} against {}", quoted(std::string(text)),
                          fmt::join(ids_a, " "), fmt::join(ids_b, " ")));
  }

  void compare_merges() {
    if (!std::equal(a_.scores().begin(), a_.scores().end(), b_.scores().begin(),
                    b_.scores().end()) &&
        !a_.scores().empty() && !b_.scores().empty()) {
      lines_.emplace_back("scores of the tokens differ");
    }
    if (!a_.scores().empty() || !b_.scores().empty()) return;
    const auto merges_a = a_.merges(), merges_b = b_.merges();
    const auto [at_a, at_b] =
        std::mismatch(merges_a.begin(), merges_a.end(), merges_b.begin(), merges_b.end());
    if (at_a == merges_a.end() && at_b == merges_b.end()) return;
    const auto text = [](const auto& merges, const auto& at) {
      return at == merges.end() ? std::string("none") : Json(at->first + " " + at->second).dump(0);
    };
    lines_.push_back(fmt::format("merge {}: {} against {}", at_a - merges_a.begin(),
                                 text(merges_a, at_a), text(merges_b, at_b)));
  }

  void compare_added_tokens() {
    const auto same = [](const AddedToken& x, const AddedToken& y) {
      return x.id == y.id && x.content == y.content && x.single_word == y.single_word &&
             x.lstrip == y.lstrip && x.rstrip == y.rstrip && x.normalized == y.normalized &&
             x.special == y.special;
    };
    const auto &added_a = a_.added_tokens(), &added_b = b_.added_tokens();
    if (!std::equal(added_a.begin(), added_a.end(), added_b.begin(), added_b.end(), same)) {
      lines_.push_back(fmt::format("added tokens differ in number ({} against {}) or kind",
                                   added_a.size(), added_b.size()));
    }
  }

  const Tokenizer& a_;
  const Tokenizer& b_;
  bool same_kind_;
  std::vector<std::string> lines_;
};

std::optional<std::string> template_of(const Checkpoint& checkpoint) {
  const GgufFile* gguf = checkpoint.gguf();
  const auto found = gguf != nullptr ? chat::find_template(gguf->metadata(), checkpoint.path())
                                     : chat::find_template(checkpoint.path());
  return found ? std::optional(found->text) : std::nullopt;
}

void compare_templates(const Checkpoint& a, const Checkpoint& b, std::vector<std::string>& lines) {
  const std::optional<std::string> text_a = template_of(a), text_b = template_of(b);
  if (text_a == text_b) return;
  if (!text_a || !text_b) {
    lines.push_back(fmt::format("chat template: only in {}", text_a ? "A" : "B"));
    return;
  }
  const auto [at, other] =
      std::mismatch(text_a->begin(), text_a->end(), text_b->begin(), text_b->end());
  lines.push_back(fmt::format("chat template: differs from byte {} on", at - text_a->begin()));
}

/// What ends a generated text (case B54).
std::vector<int32_t> ends_of(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = checkpoint.spec().stop_ids;
  if (tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

bool same_kind(const Side& a, const Side& b) {
  return (a.checkpoint()->gguf() != nullptr) == (b.checkpoint()->gguf() != nullptr);
}

std::vector<std::string> compare_models(const Side& a, const Side& b) {
  const Checkpoint &model_a = *a.checkpoint(), &model_b = *b.checkpoint();
  const Tokenizer tokenizer_a = *a.tokenizer();
  std::optional<Tokenizer> tokenizer_b;
  try {
    tokenizer_b = b.tokenizer();
  } catch (const UnsupportedError& error) {
    if (!same_kind(a, b)) throw;
    return {error.what()};  // what A has can be read
  }
  std::vector<std::string> lines =
      TokenizerComparison(tokenizer_a, *tokenizer_b, same_kind(a, b)).lines();
  const std::vector<int32_t> ends_a = ends_of(model_a, tokenizer_a),
                             ends_b = ends_of(model_b, *tokenizer_b);
  if (ends_a != ends_b) {
    lines.push_back(fmt::format("ids that end a text: {} against {}", fmt::join(ends_a, " "),
                                fmt::join(ends_b, " ")));
  }
  compare_templates(model_a, model_b, lines);
  return lines;
}

size_t n_texts(const ReferenceBundle& bundle) {
  return static_cast<size_t>(
      std::count_if(bundle.prompts().begin(), bundle.prompts().end(),
                    [](const ReferencePrompt& prompt) { return prompt.text.has_value(); }));
}

/// The texts of a bundle's prompts must become the ids that stand beside them.
std::vector<std::string> compare_prompts(const ReferenceBundle& bundle, const Side& side) {
  const Tokenizer tokenizer = *side.tokenizer();
  Lines lines;
  for (const ReferencePrompt& prompt : bundle.prompts()) {
    if (!prompt.text) continue;
    const std::vector<int32_t> found = tokenizer.encode(*prompt.text);
    const auto divergence = first_divergence(std::span<const int32_t>(prompt.token_ids),
                                             std::span<const int32_t>(found));
    if (!divergence) continue;
    lines.add(fmt::format("text of prompt \"{}\": id {} is {} in the bundle, {} by the tokenizer",
                          prompt.id, divergence->step, divergence->a, divergence->b));
  }
  std::vector<std::string> all;
  lines.move_into(all);
  return all;
}

}  // namespace

bool can_check_tokenizer(const Side& a, const Side& b) {
  if (a.is_bundle()) return b.has_tokenizer() && n_texts(a.bundle()) > 0;
  if (b.is_bundle()) return a.has_tokenizer() && n_texts(b.bundle()) > 0;
  return a.has_tokenizer() && b.has_tokenizer();
}

Check check_tokenizer(const Side& a, const Side& b) {
  Check check;
  check.name = "tokenizer";
  check.judges = false;
  try {
    if (a.is_bundle() || b.is_bundle()) {
      const ReferenceBundle& bundle = a.is_bundle() ? a.bundle() : b.bundle();
      check.details = compare_prompts(bundle, a.is_bundle() ? b : a);
      check.summary = fmt::format("the texts of {} prompts and their ids", n_texts(bundle));
    } else {
      check.details = compare_models(a, b);
      check.summary = "tokens, merges, split rule, special and end tokens, chat template";
    }
  } catch (const UnsupportedError& error) {
    check.outcome = Outcome::kReported;
    check.summary = fmt::format("cannot be compared: {}", error.what());
    return check;
  }
  check.outcome = check.details.empty() ? Outcome::kEqual : Outcome::kDifferent;
  check.summary += check.details.empty() ? ": equal" : ": not all are equal";
  return check;
}

}  // namespace assay
