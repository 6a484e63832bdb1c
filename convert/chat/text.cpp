#include "convert/chat/text.h"

#include <algorithm>

namespace assay::chat {

Text Text::of_template(std::string_view bytes) {
  Text text;
  text.bytes_ = bytes;
  return text;
}

Text Text::from_outside(std::string_view bytes) {
  Text text;
  text.append(bytes, true);
  return text;
}

void Text::append(std::string_view bytes, bool is_outside) {
  if (bytes.empty()) return;
  const size_t begin = bytes_.size();
  bytes_ += bytes;
  if (!is_outside) return;
  if (!outside_.empty() && outside_.back().end == begin) {
    outside_.back().end = bytes_.size();
  } else {
    outside_.push_back({begin, bytes_.size()});
  }
}

void Text::append(const Text& text) {
  text.for_each_stretch(
      [&](std::string_view bytes, bool is_outside) { append(bytes, is_outside); });
}

Text Text::part(size_t begin, size_t end) const {
  Text result;
  result.bytes_ = bytes_.substr(begin, end - begin);
  auto range = std::partition_point(outside_.begin(), outside_.end(),
                                    [&](const ByteRange& r) { return r.end <= begin; });
  for (; range != outside_.end() && range->begin < end; ++range) {
    result.outside_.push_back(
        {std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  }
  return result;
}

}  // namespace assay::chat
