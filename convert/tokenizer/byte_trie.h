#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace assay::tokenization {

/// Strings as paths of bytes from a root, each end with a number.
class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr int32_t kNoNumber = -1;

  /// The node at which `text` ends, made where it is missing. It keeps the number that it has.
  uint32_t add(std::string_view text);
  void set_number(uint32_t node, int32_t number) { nodes_[node].number = number; }
  /// Of the string that ends at `node`, or kNoNumber.
  int32_t number(uint32_t node) const { return nodes_[node].number; }
  /// The node behind byte `c`, or kRoot if no string goes on so.
  uint32_t child(uint32_t node, char c) const {
    const auto byte = static_cast<uint8_t>(c);
    const std::vector<Edge>& edges = nodes_[node].edges;
    const auto found = std::lower_bound(edges.begin(), edges.end(), byte,
                                        [](const Edge& e, uint8_t b) { return e.byte < b; });
    return found != edges.end() && found->byte == byte ? found->node : kRoot;
  }

 private:
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };
  struct Node {
    std::vector<Edge> edges;  // by byte
    int32_t number = kNoNumber;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace assay::tokenization
