#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/chat/lexer.h"
#include "convert/chat/value.h"

namespace assay::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

enum class ExpressionKind {
  kConstant,     // value
  kName,         // name
  kList,         // parts
  kTuple,        // parts
  kDict,         // parts: key, value, key, value, …
  kNot,          // parts[0]
  kNegative,     // parts[0]
  kPositive,     // parts[0]
  kAnd,          // parts[0], parts[1]
  kOr,           // parts[0], parts[1]
  kCompare,      // parts[0] names[0] parts[1] names[1] parts[2] …
  kArithmetic,   // parts[0] name parts[1]
  kConcatenate,  // parts, as text
  kCondition,    // parts[1] if parts[0], else parts[2] where there is one
  kAttribute,    // parts[0].name
  kItem,         // parts[0][parts[1]]
  kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], null where left out
  kCall,         // parts[0](parts[1], …, named)
  kFilter,       // parts[0] | name(parts[1], …, named)
  kTest,         // parts[0] is name(parts[1], …, named)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> names;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

enum class StatementKind {
  kText,         // text
  kOutput,       // expression
  kIf,           // branches, otherwise
  kFor,          // names in expression if condition: body, otherwise
  kSet,          // names (or one "namespace", "member") = expression
  kSetBlock,     // names[0] = what body writes, through the filters of `expression`
  kMacro,        // text: name; names: parameters; defaults
  kFilterBlock,  // what body writes through the filters of `expression`
  kPass,         // body
  kBreak,
  kContinue,
};

struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  std::vector<std::string> names;
  bool sets_member = false;  // kSet: names are a namespace and its member
  ExpressionPtr expression, condition;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  std::vector<Branch> branches;
  Body body, otherwise;
};

/// The name that stands for what a block wrote, in the filters of kSetBlock and kFilterBlock.
inline constexpr const char* kBlockText = "<block>";

/// Parses a whole template. Throws FormatError or UnsupportedError with the line.
Body parse(std::string_view text, const Source& source);

}  // namespace assay::chat
