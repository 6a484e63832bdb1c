#include "convert/cli/yaml_tree.h"

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "convert/core/error.h"

namespace assay::cli {
namespace {

constexpr size_t kDeepestLevel = 8;

/// '-' for '_', as option names are spelt.
std::string normalized_key(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

/// Builds the tree from yaml-cpp's events: its own node type keeps the first of duplicate keys and
/// resolves anchors silently.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& source) : source_(source) {}

  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (n_documents_++ > 0) fail(mark, "a second document; a config file holds one");
  }
  void OnDocumentEnd() override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "an alias (*name); write the value out");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(node(YamlNode::Kind::kNull, mark, "", anchor));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode result = node(YamlNode::Kind::kScalar, mark, tag, anchor);
    result.text = value;
    result.quoted = tag == "!";
    add(std::move(result));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(node(YamlNode::Kind::kSequence, mark, tag, anchor), mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(node(YamlNode::Kind::kMapping, mark, tag, anchor), mark);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode node;
    YamlNode key;  // of the member whose value comes next
    bool has_key = false;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, std::string_view found) const {
    throw UsageError(
        fmt::format("{}:{}:{}: found {}", source_, mark.line + 1, mark.column + 1, found));
  }

  YamlNode node(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor) const {
    if (anchor != 0) fail(mark, "an anchor (&name); write the value out");
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(mark, fmt::format("the tag \"{}\"; write the value without it", tag));
    }
    YamlNode result;
    result.kind = kind;
    result.line = mark.line + 1;
    result.column = mark.column + 1;
    return result;
  }

  void open(YamlNode node, const YAML::Mark& mark) {
    if (levels_.size() == kDeepestLevel) fail(mark, "more than 8 levels of nesting");
    levels_.push_back({std::move(node), {}, false});
  }

  void close() {
    YamlNode done = std::move(levels_.back().node);
    levels_.pop_back();
    add(std::move(done));
  }

  void add(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (level.has_key) {
      level.node.members.push_back({std::move(level.key), std::move(node)});
      level.has_key = false;
    } else {
      check_key(level.node, node);
      node.text = normalized_key(node.text);
      level.key = std::move(node);
      level.has_key = true;
    }
  }

  void check_key(const YamlNode& mapping, const YamlNode& key) const {
    const std::string place = key.place(source_);
    if (key.kind != YamlNode::Kind::kScalar) {
      throw UsageError(fmt::format("{}: expected a name as key, found {}", place, key.describe()));
    }
    if (key.text == "<<" && !key.quoted) {
      throw UsageError(place + ": found a merge key (<<); write the values out");
    }
    for (const YamlMember& before : mapping.members) {
      if (before.key.text == normalized_key(key.text)) {
        throw UsageError(fmt::format("{}: the key \"{}\" stands a second time, first at {}", place,
                                     key.text, before.key.place(source_)));
      }
    }
  }

  const std::string& source_;
  YamlNode root_;
  std::vector<Level> levels_;
  int n_documents_ = 0;
};

}  // namespace

std::string YamlNode::place(std::string_view source) const {
  return fmt::format("{}:{}:{}", source, line, column);
}

std::string YamlNode::describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return fmt::format("{}\"{}\"", quoted ? "the text " : "", text);
    case Kind::kSequence:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
  }
  return {};
}

YamlNode parse_yaml(std::string_view text, const std::string& source) {
  TreeBuilder builder(source);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    throw UsageError(fmt::format("{}:{}:{}: this is no YAML: {}", source, error.mark.line + 1,
                                 error.mark.column + 1, error.msg));
  }
  YamlNode root = builder.take_root();
  if (root.kind == YamlNode::Kind::kNull) root.kind = YamlNode::Kind::kMapping;
  return root;
}

}  // namespace assay::cli
