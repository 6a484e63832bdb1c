#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizer.h"

namespace assay::chat {

/// Text that knows for each byte whether the template wrote it or whether it came from outside (a
/// message, a tool description). Only what the template wrote may become special tokens.
class Text {
 public:
  Text() = default;
  static Text of_template(std::string_view bytes);
  static Text from_outside(std::string_view bytes);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// Memory, about.
  size_t cost() const { return bytes_.size() + outside_.size() * sizeof(ByteRange); }
  /// What came from outside: ascending, disjoint, not touching each other.
  const std::vector<ByteRange>& outside() const { return outside_; }

  void append(const Text& text);
  void append_own(std::string_view bytes) { bytes_ += bytes; }
  void append(std::string_view bytes, bool is_outside);
  /// Bytes [begin, end).
  Text part(size_t begin, size_t end) const;

  /// Calls visit(bytes, is_outside) for each stretch of one kind.
  template <class Visit>
  void for_each_stretch(const Visit& visit) const {
    const std::string_view all = bytes_;
    size_t done = 0;
    for (const ByteRange& range : outside_) {
      if (range.begin > done) visit(all.substr(done, range.begin - done), false);
      visit(all.substr(range.begin, range.end - range.begin), true);
      done = range.end;
    }
    if (done < all.size()) visit(all.substr(done), false);
  }

 private:
  std::string bytes_;
  std::vector<ByteRange> outside_;
};

}  // namespace assay::chat
