#include "quantizer/config_patch.h"

#include <optional>
#include <vector>

#include "convert/core/error.h"

namespace assay {
namespace {

struct Member {
  std::string key;   // as written, without quotes
  size_t begin = 0;  // of the opening quote of the key
  size_t value = 0;  // first byte of the value
  size_t end = 0;    // past the value
};

constexpr std::string_view kBlank = " \t\r\n";

// Walks over one top-level object. The text is known to be valid JSON, so that only strings and
// brackets have to be told apart.
class MemberScanner {
 public:
  explicit MemberScanner(std::string_view text) : text_(text) {}

  std::vector<Member> members() {
    std::vector<Member> out;
    skip_blank();
    ++at_;  // {
    for (skip_blank(); at_ < text_.size() && text_[at_] != '}'; skip_blank()) {
      if (text_[at_] == ',') {
        ++at_;
        continue;
      }
      Member member;
      member.begin = at_;
      skip_string();
      member.key = std::string(text_.substr(member.begin + 1, at_ - member.begin - 2));
      skip_blank();
      ++at_;  // :
      skip_blank();
      member.value = at_;
      skip_value();
      member.end = at_;
      out.push_back(std::move(member));
    }
    closing_ = at_;
    return out;
  }
  size_t closing() const { return closing_; }  // of the brace

 private:
  void skip_blank() { at_ = std::min(text_.find_first_not_of(kBlank, at_), text_.size()); }
  void skip_string() {
    for (++at_; text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }
  void skip_value() {
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
      } else if (depth == 0 && (c == ',' || c == '}' || kBlank.find(c) != kBlank.npos)) {
        return;
      } else {
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
        ++at_;
      }
      if (depth == 0 && (c == '"' || c == '}' || c == ']')) return;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t closing_ = 0;
};

// Blanks between the line's start and `at`; empty if the line does not begin with the member.
std::string indentation_at(std::string_view text, size_t at) {
  const size_t line = text.rfind('\n', at);
  if (line == std::string_view::npos) return {};
  const std::string_view before = text.substr(line + 1, at - line - 1);
  return before.find_first_not_of(" \t") == std::string_view::npos ? std::string(before)
                                                                   : std::string();
}

// The value's lines after the first are moved to the right.
std::string indented(const Json& value, const std::string& indentation, bool one_line) {
  std::string out;
  for (const char c : value.dump(one_line ? 0 : static_cast<int>(indentation.size()))) {
    out += c;
    if (c == '\n') out += indentation;
  }
  return out;
}

}  // namespace

std::string set_json_member(std::string_view text, std::string_view key, const Json& value,
                            std::string_view source) {
  if (!parse_json(text, source).is_object()) {
    throw FormatError(std::string(source) + ": expected an object");
  }
  MemberScanner scanner(text);
  const std::vector<Member> members = scanner.members();
  const std::string indentation = members.empty() ? "" : indentation_at(text, members[0].begin);
  const bool one_line = indentation.empty();
  const std::string written = indented(value, indentation, one_line);
  const std::string line = "\"" + std::string(key) + "\": " + written;

  const Member* after = nullptr;
  for (const Member& member : members) {
    if (member.key == key) {
      return std::string(text.substr(0, member.value)) + written +
             std::string(text.substr(member.end));
    }
    if (after == nullptr && member.key > key) after = &member;
  }
  const std::string gap = one_line ? " " : "\n" + indentation;
  if (after != nullptr) {
    return std::string(text.substr(0, after->begin)) + line + "," + gap +
           std::string(text.substr(after->begin));
  }
  const size_t end = members.empty() ? scanner.closing() : members.back().end;
  const std::string separator = members.empty() ? "" : "," + gap;
  return std::string(text.substr(0, end)) + separator + line + std::string(text.substr(end));
}

}  // namespace assay
