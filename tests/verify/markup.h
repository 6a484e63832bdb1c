#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace assay::test {

/// The first thing that keeps a text from being well-formed XML (elements that do not close, bare
/// & or <, attributes without quotes or twice), or an empty string. Knows enough for what this
/// program writes: one optional declaration and doctype, no CDATA, no comments.
inline std::string find_markup_fault(std::string_view text) {
  const auto name_end = [&](size_t at) {
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 ||
                                text[at] == '-' || text[at] == ':' || text[at] == '_')) {
      ++at;
    }
    return at;
  };
  const auto bad_reference = [&](size_t at) {
    for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
      if (text.substr(at).starts_with(known)) return false;
    }
    return true;
  };
  std::vector<std::string_view> open;
  size_t n_roots = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '&' && bad_reference(at)) return "bare & at " + std::to_string(at);
    if (text[at] != '<') continue;
    if (text.substr(at).starts_with("<?xml") || text.substr(at).starts_with("<!DOCTYPE")) {
      at = text.find('>', at);
      continue;
    }
    const bool closing = text.substr(at).starts_with("</");
    const size_t begin = at + (closing ? 2 : 1);
    size_t end = name_end(begin);
    const std::string_view name = text.substr(begin, end - begin);
    if (name.empty()) return "bare < at " + std::to_string(at);
    std::vector<std::string_view> attributes;
    while (end < text.size() && text[end] != '>' && text[end] != '/') {
      if (text[end] == ' ' || text[end] == '\n') {
        ++end;
        continue;
      }
      const size_t stop = name_end(end);
      const std::string_view attribute = text.substr(end, stop - end);
      for (const std::string_view other : attributes) {
        if (other == attribute) return "attribute twice: " + std::string(attribute);
      }
      attributes.push_back(attribute);
      if (attribute.empty() || !text.substr(stop).starts_with("=\"")) {
        return "attribute without quotes in <" + std::string(name);
      }
      end = stop + 2;
      while (end < text.size() && text[end] != '"') {
        if (text[end] == '<' || (text[end] == '&' && bad_reference(end))) {
          return "bad character in an attribute of <" + std::string(name);
        }
        ++end;
      }
      ++end;
    }
    const bool empty = end < text.size() && text[end] == '/';
    if (closing) {
      if (open.empty() || open.back() != name) return "</" + std::string(name) + "> closes nothing";
      open.pop_back();
    } else if (!empty) {
      if (open.empty()) ++n_roots;
      open.push_back(name);
    }
    at = text.find('>', end);
    if (at == std::string_view::npos) return "unfinished element <" + std::string(name);
  }
  if (!open.empty()) return "<" + std::string(open.back()) + "> is not closed";
  return n_roots == 1 ? "" : std::to_string(n_roots) + " root elements";
}

}  // namespace assay::test
