#include "convert/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "convert/tokenizer/byte_level.h"
#include "convert/tokenizer/pattern.h"
#include "convert/tokenizer/splitters.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

using Steps = std::vector<std::unique_ptr<PreTokenizer>>;

void emit(const Piece& from, size_t begin, size_t end, PieceSink sink) {
  if (begin < end) sink({from.text.substr(begin, end - begin), from.at_start && begin == 0});
}

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(Steps steps) : steps_(std::move(steps)) {}
  void split(const Piece& piece, PieceSink sink) const override { run(0, piece, sink); }

 private:
  void run(size_t step, const Piece& piece, PieceSink sink) const {
    if (step == steps_.size()) return sink(piece);
    if (step + 1 == steps_.size()) return steps_[step]->split(piece, sink);
    steps_[step]->split(piece, [&](const Piece& part) { run(step + 1, part, sink); });
  }

  Steps steps_;
};

/// Every match is a piece of a hand-written splitter; nothing lies between matches.
class SplitByRule : public PreTokenizer {
 public:
  explicit SplitByRule(Splitter splitter) : splitter_(splitter) {}
  void split(const Piece& piece, PieceSink sink) const override {
    for (size_t begin = 0; begin < piece.text.size();) {
      const size_t end = begin + splitter_(piece.text.substr(begin));
      emit(piece, begin, end, sink);
      begin = end;
    }
  }

 private:
  Splitter splitter_;
};

/// What becomes of the matches of a pattern.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class Split : public PreTokenizer {
 public:
  Split(std::shared_ptr<const Pattern> pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(const Piece& piece, PieceSink sink) const override {
    struct Pending {
      size_t begin, end;
      bool is_match;
    };
    std::optional<Pending> pending;
    const auto flush = [&] {
      if (pending) emit(piece, pending->begin, pending->end, sink);
      pending.reset();
    };
    pattern_->find(piece.text, [&](size_t begin, size_t end, bool matched) {
      const bool is_match = matched != invert_;
      if (behavior_ == Behavior::kRemoved) {
        if (!is_match) emit(piece, begin, end, sink);
        return;
      }
      if (pending && joins(pending->is_match, is_match)) {
        pending->end = end;
        pending->is_match = is_match;
        return;
      }
      flush();
      pending = Pending{begin, end, is_match};
    });
    flush();
  }

 private:
  /// Whether a part goes into the same piece as the part before it.
  bool joins(bool previous_match, bool is_match) const {
    switch (behavior_) {
      case Behavior::kMergedWithPrevious:
        return is_match && !previous_match;
      case Behavior::kMergedWithNext:
        return !is_match && previous_match;
      case Behavior::kContiguous:
        return is_match == previous_match;
      default:
        return false;
    }
  }

  std::shared_ptr<const Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool individual) : individual_(individual) {}
  void split(const Piece& piece, PieceSink sink) const override {
    const uint8_t* const classes = character_classes();
    size_t begin = 0;
    bool in_digits = false;
    for (size_t at = 0; at < piece.text.size();) {
      const DecodedCharacter c = decode_character(piece.text.data() + at);
      const bool digit = (classes[c.code] & kNumeric) != 0;
      if (digit != in_digits || (digit && individual_)) {
        emit(piece, begin, at, sink);
        begin = at;
        in_digits = digit;
      }
      at += c.length;
    }
    emit(piece, begin, piece.text.size(), sink);
  }

 private:
  bool individual_;
};

class PrefixSpace : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink sink) const override {
    if (piece.text.starts_with(' ')) return sink(piece);
    std::string text(1, ' ');
    text += piece.text;
    sink({text, piece.at_start});
  }
};

/// Spaces become a mark, which also begins the text and each piece.
class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string mark, MetaspacePrefix prefix, bool splits)
      : mark_(std::move(mark)), prefix_(prefix), splits_(splits) {}
  void split(const Piece& piece, PieceSink sink) const override {
    std::string text;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += mark_;
      } else {
        text += c;
      }
    }
    const bool wanted = prefix_ == MetaspacePrefix::kAlways ||
                        (prefix_ == MetaspacePrefix::kFirst && piece.at_start);
    if (wanted && !text.starts_with(mark_)) text.insert(0, mark_);
    if (!splits_) return sink({text, piece.at_start});
    const Piece whole{text, piece.at_start};
    for (size_t begin = 0; begin < text.size();) {
      const size_t next =
          text.find(mark_, begin == 0 && !text.starts_with(mark_) ? 0 : begin + mark_.size());
      const size_t end = next == std::string::npos ? text.size() : next;
      emit(whole, begin, end, sink);
      begin = end;
    }
  }

 private:
  std::string mark_;
  MetaspacePrefix prefix_;
  bool splits_;
};

class ToByteLevel : public PreTokenizer {
 public:
  void split(const Piece& piece, PieceSink sink) const override {
    std::string text;
    append_byte_level(text, piece.text);
    sink({text, piece.at_start});
  }
};

Behavior read_behavior(const Part& part) {
  const std::string& name = part.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  part.malformed(fmt::format("\"{}\" is no behavior of a split", name));
}

std::unique_ptr<PreTokenizer> make_split(const Part& part) {
  const Behavior behavior = read_behavior(part.member("behavior"));
  const bool invert = part.boolean_or("invert", false);
  std::unique_ptr<Pattern> pattern = make_pattern(part.member("pattern"));
  // All parts of a splitter's text are matches, so most behaviors come to the same.
  const bool separate = invert ? behavior == Behavior::kRemoved : behavior != Behavior::kRemoved;
  if (pattern->splitter() && separate && behavior != Behavior::kContiguous) {
    return std::make_unique<SplitByRule>(pattern->splitter());
  }
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

void add_steps(const Part& part, Steps& steps, bool& asks_for_start) {
  const std::string& type = part.type();
  if (type == "Sequence") {
    for (const Part& step : part.member("pretokenizers").elements()) {
      add_steps(step, steps, asks_for_start);
    }
  } else if (type == "Split") {
    steps.push_back(make_split(part));
  } else if (type == "Digits") {
    steps.push_back(std::make_unique<Digits>(part.member("individual_digits").boolean()));
  } else if (type == "ByteLevel") {
    if (part.member("add_prefix_space").boolean()) steps.push_back(std::make_unique<PrefixSpace>());
    if (part.boolean_or("use_regex", true)) {
      steps.push_back(std::make_unique<SplitByRule>(find_splitter(kGpt2Pattern)));
    }
    steps.push_back(std::make_unique<ToByteLevel>());
  } else if (type == "Metaspace") {
    const MetaspaceRules rules = read_metaspace(part);
    asks_for_start |= rules.prefix == MetaspacePrefix::kFirst;
    steps.push_back(std::make_unique<Metaspace>(rules.mark, rules.prefix, rules.splits));
  } else {
    part.unsupported(fmt::format("the pre-tokenizer \"{}\" is not implemented", type));
  }
}

}  // namespace

MetaspaceRules read_metaspace(const Part& part) {
  MetaspaceRules rules;
  const Part mark = part.member("replacement");
  rules.mark = mark.string();
  if (rules.mark.empty() || decode_character(rules.mark.data()).length != rules.mark.size()) {
    mark.malformed("must be one character");
  }
  if (const auto scheme = part.optional_member("prepend_scheme")) {
    const std::string& name = scheme->string();
    if (name == "first") {
      rules.prefix = MetaspacePrefix::kFirst;
    } else if (name == "never") {
      rules.prefix = MetaspacePrefix::kNever;
    } else if (name != "always") {
      scheme->malformed(fmt::format("\"{}\"; expected always, first or never", name));
    }
  }
  if (!part.boolean_or("add_prefix_space", true)) rules.prefix = MetaspacePrefix::kNever;
  rules.splits = part.boolean_or("split", true);
  return rules;
}

PreTokenizerPlan make_pre_tokenizer(const Part& part) {
  Steps steps;
  PreTokenizerPlan plan;
  add_steps(part, steps, plan.asks_for_start);
  int alphabets = 0;
  for (const auto& step : steps)
    alphabets += dynamic_cast<const ToByteLevel*>(step.get()) != nullptr;
  constexpr int kMostAlphabets = 3;  // each may double the text
  if (alphabets > kMostAlphabets) part.unsupported("more than three steps ByteLevel");
  // With steps after the alphabet, or with two of them, the pieces must really be spelled in it.
  if (alphabets == 1 && dynamic_cast<const ToByteLevel*>(steps.back().get()) != nullptr) {
    steps.pop_back();
    plan.byte_level_model = true;
  }
  if (steps.size() == 1) plan.pre_tokenizer = std::move(steps.front());
  if (steps.size() > 1) plan.pre_tokenizer = std::make_unique<Sequence>(std::move(steps));
  return plan;
}

}  // namespace assay::tokenization
