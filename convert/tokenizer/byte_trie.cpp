#include "convert/tokenizer/byte_trie.h"

#include <algorithm>

namespace assay::tokenization {

uint32_t ByteTrie::add(std::string_view text) {
  uint32_t node = kRoot;
  for (const char c : text) {
    uint32_t next = child(node, c);
    if (next == kRoot) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      const auto byte = static_cast<uint8_t>(c);
      std::vector<Edge>& edges = nodes_[node].edges;
      const auto place = std::lower_bound(edges.begin(), edges.end(), byte,
                                          [](const Edge& e, uint8_t b) { return e.byte < b; });
      edges.insert(place, {byte, next});
    }
    node = next;
  }
  return node;
}

}  // namespace assay::tokenization
