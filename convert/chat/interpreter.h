#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "convert/chat/machine.h"
#include "convert/chat/syntax.h"

namespace assay::chat {

/// A day, for strftime_now.
struct Date {
  int year = 1970, month = 1, day = 1;
};

/// Runs a parsed template once.
class Interpreter {
 public:
  using Variables = std::unordered_map<std::string, Value>;

  /// The body must outlive the interpreter. Without a date, strftime_now is not defined.
  Interpreter(const Body& body, Variables globals, const std::optional<Date>& date,
              Machine& machine);
  Text run();

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // Statements
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement);
  void execute_set(const Statement& statement);
  /// What the body of a block writes, through the filters of its expression.
  Value block_value(const Statement& statement);
  /// Runs `body` in a scope of its own and returns what it writes.
  Text written_by(const Body& body, Variables variables);
  void assign(const std::vector<std::string>& names, const Value& value, Variables& scope);

  // Expressions
  Value evaluate(const Expression& expression);
  Value evaluate_operator(const Expression& expression);
  Value evaluate_access(const Expression& expression);
  bool compare(const Expression& expression);
  Value attribute(const Value& object, const Expression& expression);
  Value loop_attribute(const Loop& loop, const std::string& name);
  Value call(const Expression& expression);
  Value call_function(std::string_view name, const Expression& expression);
  Value call_macro(const Statement& macro, const Expression& expression);
  Value call_loop(const Loop& loop, const Expression& method, const Expression& expression);
  Value find(const std::string& name) const;
  std::vector<Value> positional(const Expression& expression);
  std::vector<std::pair<std::string, Value>> named(const Expression& expression);
  /// What a message calls the value of an expression.
  static std::string described(const Expression& expression);
  std::string formatted_date(const std::string& format) const;

  const Body& body_;
  std::optional<Date> date_;
  Machine& machine_;
  std::vector<Variables> scopes_;  // [0]: the template's
  size_t visible_from_ = 1;        // scopes below are hidden by a macro, but for the first
  int64_t loop_nesting_ = 0;
  Text* out_ = nullptr;
};

}  // namespace assay::chat
