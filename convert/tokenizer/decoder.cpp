#include "convert/tokenizer/decoder.h"

#include <optional>
#include <utility>

#include "convert/tokenizer/byte_level.h"
#include "convert/tokenizer/expansion.h"
#include "convert/tokenizer/pattern.h"
#include "convert/tokenizer/pre_tokenizer.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

size_t size_of(const std::vector<std::string>& tokens) {
  size_t n_bytes = 0;
  for (const std::string& token : tokens) n_bytes += token.size();
  return n_bytes;
}

class ByteLevel : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes, text;
    for (const std::string& token : tokens) bytes += bytes_of_token(token);
    append_lossy_utf8(text, bytes);
    tokens.clear();
    tokens.push_back(std::move(text));
  }
  StepKind kind() const override { return StepKind::kBytes; }
};

/// The byte that `<0xHH>` stands for.
std::optional<uint8_t> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint32_t byte = 0;
  // The reference reads the two characters as a number, which lets a plus sign pass.
  for (size_t i = token[3] == '+' ? 4 : 3; i < 5; ++i) {
    const char c = token[i];
    if (c >= '0' && c <= '9') {
      byte = byte * 16 + static_cast<uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      byte = byte * 16 + static_cast<uint32_t>((c | 32) - 'a') + 10;
    } else {
      return std::nullopt;
    }
  }
  return static_cast<uint8_t>(byte);
}

class ByteFallback : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (valid_utf8_prefix(bytes) == bytes.size()) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const std::optional<uint8_t> byte = fallback_byte(token)) {
        bytes += static_cast<char>(*byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }
  bool settled_after(std::string_view last_token) const override {
    return !fallback_byte(last_token).has_value();
  }
  StepKind kind() const override { return StepKind::kLocal; }
};

class Fuse : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens.clear();
    tokens.push_back(std::move(text));
  }
  StepKind kind() const override { return StepKind::kFuse; }
};

class Strip : public Decoder {
 public:
  Strip(std::string content, uint64_t start, uint64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view text = token;
      for (uint64_t i = 0; i < start_ && text.starts_with(content_); ++i) {
        text.remove_prefix(content_.size());
      }
      for (uint64_t i = 0; i < stop_ && text.ends_with(content_); ++i) {
        text.remove_suffix(content_.size());
      }
      token = std::string(text);
    }
  }
  bool changes_start_only() const override { return stop_ == 0; }
  bool strips_start() const override { return start_ > 0; }
  StepKind kind() const override { return StepKind::kLocal; }

 private:
  std::string content_;  // one character
  uint64_t start_, stop_;
};

/// Marks become spaces; those of the first token, which were put in front, go away.
class Metaspace : public Decoder {
 public:
  Metaspace(std::string mark, bool drops_first)
      : mark_(std::move(mark)), drops_first_(drops_first) {}
  void apply(std::vector<std::string>& tokens) const override { apply(tokens, drops_first_); }
  void apply_inside(std::vector<std::string>& tokens) const override { apply(tokens, false); }
  StepKind kind() const override { return StepKind::kLocal; }

 private:
  void apply(std::vector<std::string>& tokens, bool first) const {
    for (std::string& token : tokens) {
      std::string out;
      size_t done = 0;
      for (size_t at = token.find(mark_); at != std::string::npos; at = token.find(mark_, done)) {
        out.append(token, done, at - done);
        if (!first) out += ' ';
        done = at + mark_.size();
      }
      out.append(token, done);
      token = std::move(out);
      first = false;
    }
  }

  std::string mark_;
  bool drops_first_;
};

class Replace : public Decoder {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    const size_t n_before = size_of(tokens);
    size_t n_after = 0;
    for (std::string& token : tokens) {
      std::string out;
      pattern_->find(token, [&](size_t begin, size_t end, bool is_match) {
        out += is_match ? content_ : token.substr(begin, end - begin);
        check_expansion(n_before, n_after + out.size());
      });
      n_after += out.size();
      token = std::move(out);
    }
  }
  StepKind kind() const override { return StepKind::kLocal; }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class Sequence : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& tokens) const override {
    const size_t n_before = size_of(tokens);
    for (const auto& step : steps_) {
      step->apply(tokens);
      check_expansion(n_before, size_of(tokens));
    }
  }
  void apply_inside(std::vector<std::string>& tokens) const override {
    const size_t n_before = size_of(tokens);
    bool fused = false;
    for (const auto& step : steps_) {
      if (fused && step->changes_start_only()) continue;
      step->apply_inside(tokens);
      check_expansion(n_before, size_of(tokens));
      fused |= step->kind() == StepKind::kFuse;
    }
  }
  bool strips_start() const override {
    bool fused = false;
    for (const auto& step : steps_) {
      if (fused && step->changes_start_only() && step->strips_start()) return true;
      fused |= step->kind() == StepKind::kFuse;
    }
    return false;
  }
  bool settled_after(std::string_view last_token) const override {
    for (const auto& step : steps_) {
      if (!step->settled_after(last_token)) return false;
    }
    return true;
  }
  StepKind kind() const override {
    if (steps_.empty()) return StepKind::kLocal;
    if (steps_.size() == 1) return steps_.front()->kind();
    StepKind so_far = StepKind::kLocal;
    for (const auto& step : steps_) {
      const StepKind next = step->kind();
      if (next == StepKind::kFuse && so_far != StepKind::kGlobal) {
        so_far = StepKind::kFuse;
      } else if (so_far == StepKind::kFuse && step->changes_start_only()) {
        continue;
      } else if (next != StepKind::kLocal || so_far != StepKind::kLocal) {
        return StepKind::kGlobal;  // works on the bytes of, or after, the joined text
      }
    }
    return so_far;
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::unique_ptr<Decoder> make_strip(const Part& part) {
  const Part content = part.member("content");
  const std::string& text = content.string();
  if (text.empty() || decode_character(text.data()).length != text.size()) {
    content.malformed("must be one character");
  }
  const Part start = part.member("start"), stop = part.member("stop");
  if (start.integer() < 0) start.malformed("must not be negative");
  if (stop.integer() < 0) stop.malformed("must not be negative");
  return std::make_unique<Strip>(text, static_cast<uint64_t>(start.integer()),
                                 static_cast<uint64_t>(stop.integer()));
}

}  // namespace

std::string bytes_of_token(std::string_view token) {
  std::optional<std::string> bytes = from_byte_level(token);
  return bytes ? std::move(*bytes) : std::string(token);
}

std::unique_ptr<Decoder> make_decoder(const Part& part) {
  const std::string& type = part.type();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") return make_strip(part);
  if (type == "Metaspace") {
    const MetaspaceRules rules = read_metaspace(part);
    return std::make_unique<Metaspace>(rules.mark, rules.prefix != MetaspacePrefix::kNever);
  }
  if (type == "Replace") {
    const Part pattern = part.member("pattern");
    const Part content = part.member("content");
    if (pattern.optional_member("Regex") && content.string().find('$') != std::string::npos) {
      content.unsupported("references to groups ($) are not implemented");
    }
    return std::make_unique<Replace>(make_pattern(pattern), content.string());
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const Part& step : part.member("decoders").elements()) steps.push_back(make_decoder(step));
    return std::make_unique<Sequence>(std::move(steps));
  }
  part.unsupported("the decoder \"" + type + "\" is not implemented");
}

}  // namespace assay::tokenization
