#include "convert/tokenizer/normalizer.h"

#include <utility>
#include <vector>

#include "convert/tokenizer/byte_level.h"
#include "convert/tokenizer/charsmap.h"
#include "convert/tokenizer/expansion.h"
#include "convert/tokenizer/normal_forms.h"
#include "convert/tokenizer/pattern.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  bool apply(std::string_view text, std::string& result) const override {
    return to_normal_form(form_, text, result);
  }

 private:
  NormalForm form_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  bool apply(std::string_view text, std::string& result) const override {
    bool changed = false;
    std::string current, next;
    for (const auto& step : steps_) {
      if (!step->apply(changed ? std::string_view(current) : text, next)) continue;
      std::swap(current, next);
      changed = true;
      check_expansion(text.size(), current.size());
    }
    if (changed) result = std::move(current);
    return changed;
  }
  bool keeps_start(std::string_view text) const override {
    std::string current(text), next;
    for (const auto& step : steps_) {
      if (!step->keeps_start(current)) return false;
      if (step->apply(current, next)) std::swap(current, next);
      check_expansion(text.size(), current.size());
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

class Replace : public Normalizer {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  bool apply(std::string_view text, std::string& result) const override {
    bool changed = false;
    std::string out;
    pattern_->find(text, [&](size_t begin, size_t end, bool is_match) {
      changed |= is_match;
      out += is_match ? std::string_view(content_) : text.substr(begin, end - begin);
      check_expansion(text.size(), out.size());
    });
    if (changed) result = std::move(out);
    return changed;
  }
  bool keeps_start(std::string_view text) const override {
    if (!content_.empty()) return true;
    bool dropped = false;
    pattern_->find(text, [&](size_t begin, size_t end, bool is_match) {
      dropped |= begin == 0 && end > 0 && is_match;
    });
    return !dropped;
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string_view text, std::string& result) const override {
    if (text.empty() || prefix_.empty()) return false;
    std::string out = prefix_;
    out += text;
    result = std::move(out);
    return true;
  }

 private:
  std::string prefix_;
};

class Lowercase : public Normalizer {
 public:
  bool apply(std::string_view text, std::string& result) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const DecodedCharacter c = decode_character(text.data() + at);
      append_lower_case(out, c.code);
      at += c.length;
    }
    if (out == text) return false;
    result = std::move(out);
    return true;
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string_view text, std::string& result) const override {
    const uint8_t* const classes = character_classes();
    const char* begin = text.data();
    const char* end = begin + text.size();
    while (left_ && begin < end && (classes[decode_character(begin).code] & kSpace)) {
      begin += decode_character(begin).length;
    }
    while (right_ && begin < end) {
      const char* last = previous_character(end);
      if (!(classes[decode_character(last).code] & kSpace)) break;
      end = last;
    }
    if (static_cast<size_t>(end - begin) == text.size()) return false;
    result = std::string(begin, end);
    return true;
  }
  bool keeps_start(std::string_view text) const override {
    return !left_ || text.empty() ||
           (character_classes()[decode_character(text.data()).code] & kSpace) == 0;
  }

 private:
  bool left_, right_;
};

class ByteLevel : public Normalizer {
 public:
  bool apply(std::string_view text, std::string& result) const override {
    std::string out;
    append_byte_level(out, text);
    result = std::move(out);
    return true;
  }
};

std::unique_ptr<Normalizer> make_replace(const Part& part) {
  const Part content = part.member("content");
  const bool regex = part.member("pattern").optional_member("Regex").has_value();
  if (regex && content.string().find('$') != std::string::npos) {
    content.unsupported("references to groups ($) are not implemented");
  }
  return std::make_unique<Replace>(make_pattern(part.member("pattern")), content.string());
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Part& part) {
  const std::string& type = part.type();
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Replace") return make_replace(part);
  if (type == "Precompiled") return make_precompiled(part);
  if (type == "Prepend") return std::make_unique<Prepend>(part.member("prepend").string());
  if (type == "Strip") {
    return std::make_unique<Strip>(part.member("strip_left").boolean(),
                                   part.member("strip_right").boolean());
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const Part& step : part.member("normalizers").elements()) {
      steps.push_back(make_normalizer(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  part.unsupported("the normalizer \"" + type + "\" is not implemented");
}

}  // namespace assay::tokenization
