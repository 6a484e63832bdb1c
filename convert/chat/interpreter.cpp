#include "convert/chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "convert/chat/builtins.h"
#include "convert/chat/operations.h"

namespace assay::chat {

using Kind = ExpressionKind;

Interpreter::Interpreter(const Body& body, Variables globals, const std::optional<Date>& date,
                         Machine& machine)
    : body_(body), date_(date), machine_(machine) {
  for (const std::string_view name : {"range", "namespace", "dict", "raise_exception"}) {
    globals.emplace(name, Function{name});
  }
  if (date_) globals.emplace("strftime_now", Function{"strftime_now"});
  scopes_.push_back(std::move(globals));
}

Text Interpreter::run() {
  Text out;
  out_ = &out;
  execute(body_);
  return out;
}

// Statements

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const auto& statement : body) {
    const Flow flow = execute(*statement);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const Machine::Level level(machine_);
  machine_.set_line(statement.line);
  machine_.step();
  switch (statement.kind) {
    case StatementKind::kText:
      machine_.make(statement.text.size());
      out_->append_own(statement.text);
      return Flow::kOn;
    case StatementKind::kOutput:
      out_->append(to_text(evaluate(*statement.expression), machine_));
      return Flow::kOn;
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kSet:
      execute_set(statement);
      return Flow::kOn;
    case StatementKind::kSetBlock: {
      Value value = block_value(statement);
      scopes_.back()[statement.names[0]] = std::move(value);
      return Flow::kOn;
    }
    case StatementKind::kFilterBlock:
      out_->append(to_text(block_value(statement), machine_));
      return Flow::kOn;
    case StatementKind::kMacro:
      scopes_.back()[statement.text] = &statement;
      return Flow::kOn;
    case StatementKind::kPass:
      return execute(statement.body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (truth(evaluate(*branch.condition))) return execute(branch.body);
  }
  return execute(statement.otherwise);
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement) {
  auto list = elements(evaluate(*statement.expression), machine_);
  if (statement.condition) {
    std::vector<Value> kept;
    for (const Value& element : list->items) {
      scopes_.emplace_back();
      assign(statement.names, element, scopes_.back());
      const bool keeps = truth(evaluate(*statement.condition));
      scopes_.pop_back();
      if (keeps) kept.push_back(element);
    }
    const Value filtered = make_list(std::move(kept), machine_);
    list = std::get<std::shared_ptr<const List>>(filtered);
  }
  if (list->items.empty()) return execute(statement.otherwise);
  ++loop_nesting_;
  for (size_t i = 0; i < list->items.size(); ++i) {
    machine_.make(sizeof(Loop) + sizeof(Variables));
    Variables variables;
    assign(statement.names, list->items[i], variables);
    variables["loop"] = std::make_shared<const Loop>(Loop{list, i, loop_nesting_});
    scopes_.push_back(std::move(variables));
    const Flow flow = execute(statement.body);
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
  }
  --loop_nesting_;
  return Flow::kOn;
}

void Interpreter::assign(const std::vector<std::string>& names, const Value& value,
                         Variables& scope) {
  machine_.step(names.size());
  if (names.size() == 1) {
    scope[names[0]] = value;
    return;
  }
  const auto parts = elements(value, machine_);
  if (parts->items.size() != names.size()) {
    machine_.malformed(fmt::format("{} values cannot be unpacked into {} names",
                                   parts->items.size(), names.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) scope[names[i]] = parts->items[i];
}

void Interpreter::execute_set(const Statement& statement) {
  const Value value = evaluate(*statement.expression);
  machine_.make(sizeof(Variables::value_type));
  if (!statement.sets_member) return assign(statement.names, value, scopes_.back());
  const Value object = find(statement.names[0]);
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&object);
  if (!space) {
    machine_.malformed(fmt::format("\"{}\" is {}; only members of a namespace can be set",
                                   statement.names[0], kind_name(object)));
  }
  if (std::holds_alternative<std::shared_ptr<Namespace>>(value)) {
    machine_.unsupported("a namespace inside of a namespace is not implemented");
  }
  auto& members = (*space)->members;
  machine_.step(members.size());
  const auto found = std::find_if(members.begin(), members.end(), [&](const auto& member) {
    return member.first == statement.names[1];
  });
  if (found != members.end()) {
    found->second = value;
  } else {
    members.emplace_back(statement.names[1], value);
  }
}

Text Interpreter::written_by(const Body& body, Variables variables) {
  Text written;
  Text* const outer = std::exchange(out_, &written);
  scopes_.push_back(std::move(variables));
  execute(body);
  scopes_.pop_back();
  out_ = outer;
  return written;
}

Value Interpreter::block_value(const Statement& statement) {
  Value written = make_charged(written_by(statement.body, {}), machine_);
  scopes_.emplace_back();
  scopes_.back()[kBlockText] = std::move(written);
  Value value = evaluate(*statement.expression);
  scopes_.pop_back();
  return value;
}

// Expressions

Value Interpreter::find(const std::string& name) const {
  machine_.step(scopes_.size() - visible_from_);
  for (size_t i = scopes_.size(); i > visible_from_; --i) {
    const auto found = scopes_[i - 1].find(name);
    if (found != scopes_[i - 1].end()) return found->second;
  }
  const auto found = scopes_[0].find(name);
  return found != scopes_[0].end() ? found->second : Value(Undefined{});
}

Value Interpreter::evaluate(const Expression& expression) {
  const Machine::Level level(machine_);
  machine_.step();
  machine_.set_line(expression.line);
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.value;
    case Kind::kName:
      return find(expression.name);
    case Kind::kAttribute:
    case Kind::kItem:
    case Kind::kSlice:
      return evaluate_access(expression);
    case Kind::kCall:
      return call(expression);
    case Kind::kFilter: {
      const Value value = evaluate(*expression.parts[0]);
      return apply_filter(
          expression.name, value,
          CallArguments(expression.name, positional(expression), named(expression), machine_),
          machine_);
    }
    case Kind::kTest: {
      const Value value = evaluate(*expression.parts[0]);
      return apply_test(
          expression.name, value,
          CallArguments(expression.name, positional(expression), named(expression), machine_),
          machine_);
    }
    default:
      return evaluate_operator(expression);
  }
}

Value Interpreter::evaluate_operator(const Expression& expression) {
  const auto part = [&](size_t i) { return evaluate(*expression.parts[i]); };
  switch (expression.kind) {
    case Kind::kList:
    case Kind::kTuple: {
      std::vector<Value> items;
      for (const ExpressionPtr& element : expression.parts) items.push_back(evaluate(*element));
      return make_list(std::move(items), machine_, expression.kind == Kind::kTuple);
    }
    case Kind::kDict: {
      std::vector<std::pair<Text, Value>> members;
      for (size_t i = 0; i < expression.parts.size(); i += 2) {
        const Value key = part(i);
        if (!as_text(key)) machine_.unsupported("keys that are no strings are not implemented");
        members.emplace_back(*as_text(key), part(i + 1));
      }
      return make_dict(std::move(members), machine_);
    }
    case Kind::kNot:
      return !truth(part(0));
    case Kind::kNegative:
      return negative(part(0), machine_);
    case Kind::kPositive:
      return negative(negative(part(0), machine_), machine_);
    case Kind::kAnd: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Kind::kOr: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case Kind::kCompare:
      return compare(expression);
    case Kind::kArithmetic: {
      const Value left = part(0), right = part(1);
      for (size_t i = 0; i < 2; ++i) {
        if (is_undefined(i == 0 ? left : right)) {
          machine_.malformed(fmt::format("{} is undefined", described(*expression.parts[i])));
        }
      }
      return arithmetic(expression.name, left, right, machine_);
    }
    case Kind::kConcatenate: {
      Text text;
      for (const ExpressionPtr& element : expression.parts) {
        text.append(to_text(evaluate(*element), machine_));
      }
      return make_charged(std::move(text), machine_);
    }
    case Kind::kCondition:
      if (truth(part(0))) return part(1);
      return expression.parts.size() > 2 ? part(2) : Value(Undefined{});
    default:
      return Undefined{};
  }
}

bool Interpreter::compare(const Expression& expression) {
  Value left = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < expression.names.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1]);
    const std::string& op = expression.names[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, machine_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left, machine_) == (op == "in");
    } else if (op == "<" || op == ">=") {
      holds = less(left, right, machine_) == (op == "<");
    } else {
      holds = less(right, left, machine_) == (op == ">");
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_access(const Expression& expression) {
  const Value object = evaluate(*expression.parts[0]);
  if (is_undefined(object)) {
    machine_.malformed(
        fmt::format("{} is undefined and has no members", described(*expression.parts[0])));
  }
  if (expression.kind == Kind::kAttribute) return attribute(object, expression);
  const auto bound = [&](size_t i) {
    return expression.parts[i] ? evaluate(*expression.parts[i]) : Value(None{});
  };
  if (expression.kind == Kind::kSlice) {
    return slice(object, bound(1), bound(2), bound(3), machine_);
  }
  const Value index = bound(1);
  // As in Jinja2, an index that is no member may still be an attribute.
  if (const Text* name = as_text(index); name && !as_dict(object)) {
    Expression same;
    same.name = name->bytes();
    same.line = expression.line;
    return attribute(object, same);
  }
  return item(object, index, machine_);
}

Value Interpreter::attribute(const Value& object, const Expression& expression) {
  const std::string& name = expression.name;
  if (is_method(object, name)) {
    machine_.unsupported(fmt::format("the method {} without a call is not implemented", name));
  }
  if (const auto* space = std::get_if<std::shared_ptr<Namespace>>(&object)) {
    machine_.step((*space)->members.size());
    for (const auto& [member, value] : (*space)->members) {
      if (member == name) return value;
    }
    return Undefined{};
  }
  if (const auto* loop = std::get_if<std::shared_ptr<const Loop>>(&object)) {
    return loop_attribute(**loop, name);
  }
  return as_dict(object) ? item(object, make_own_text(name), machine_) : Value(Undefined{});
}

Value Interpreter::loop_attribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto n = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return n - index;
  if (name == "revindex0") return n - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == n;
  if (name == "length") return n;
  if (name == "depth") return loop.nesting;
  if (name == "depth0") return loop.nesting - 1;
  if (name == "previtem") {
    return index > 0 ? loop.items->items[loop.index - 1] : Value(Undefined{});
  }
  if (name == "nextitem") {
    return index + 1 < n ? loop.items->items[loop.index + 1] : Value(Undefined{});
  }
  machine_.unsupported(fmt::format("loop.{} is not implemented", name));
}

std::vector<Value> Interpreter::positional(const Expression& expression) {
  std::vector<Value> values;
  for (size_t i = 1; i < expression.parts.size(); ++i) {
    values.push_back(evaluate(*expression.parts[i]));
  }
  return values;
}

std::vector<std::pair<std::string, Value>> Interpreter::named(const Expression& expression) {
  std::vector<std::pair<std::string, Value>> values;
  for (const auto& [name, value] : expression.named) values.emplace_back(name, evaluate(*value));
  return values;
}

Value Interpreter::call(const Expression& expression) {
  const Expression& callee = *expression.parts[0];
  if (callee.kind == Kind::kAttribute) {
    const Value object = evaluate(*callee.parts[0]);
    if (is_undefined(object)) {
      machine_.malformed(
          fmt::format("{} is undefined and has no members", described(*callee.parts[0])));
    }
    if (const auto* loop = std::get_if<std::shared_ptr<const Loop>>(&object)) {
      return call_loop(**loop, callee, expression);
    }
    if (is_method(object, callee.name)) {
      return *call_method(
          object, callee.name,
          CallArguments(callee.name, positional(expression), named(expression), machine_),
          machine_);
    }
    const Value member = attribute(object, callee);
    if (const auto* macro = std::get_if<const Statement*>(&member)) {
      return call_macro(**macro, expression);
    }
    machine_.unsupported(
        fmt::format("the method {} of {} is not implemented", callee.name, kind_name(object)));
  }
  const Value function = evaluate(callee);
  if (const auto* macro = std::get_if<const Statement*>(&function)) {
    return call_macro(**macro, expression);
  }
  if (const auto* builtin = std::get_if<Function>(&function)) {
    return call_function(builtin->name, expression);
  }
  if (callee.kind == Kind::kName && callee.name == "strftime_now") {
    machine_.malformed(
        "strftime_now needs the date, which would make the prompt differ from day to day; state "
        "one");
  }
  machine_.malformed(
      fmt::format("{} is {} and cannot be called", described(callee), kind_name(function)));
}

Value Interpreter::call_loop(const Loop& loop, const Expression& method,
                             const Expression& expression) {
  const std::vector<Value> values = positional(expression);
  if (method.name != "cycle" || values.empty()) {
    machine_.unsupported(fmt::format("loop.{}() is not implemented", method.name));
  }
  return values[loop.index % values.size()];
}

Value Interpreter::call_macro(const Statement& macro, const Expression& expression) {
  Variables variables;
  std::vector<Value> given = positional(expression);
  auto by_name = named(expression);
  if (given.size() > macro.names.size()) {
    machine_.malformed(fmt::format("the macro {} has {} parameters, found {} arguments", macro.text,
                                   macro.names.size(), given.size()));
  }
  for (size_t i = 0; i < given.size(); ++i) variables[macro.names[i]] = std::move(given[i]);
  for (auto& [name, value] : by_name) {
    if (std::find(macro.names.begin(), macro.names.end(), name) == macro.names.end() ||
        !variables.emplace(name, std::move(value)).second) {
      machine_.malformed(
          fmt::format("the macro {} does not take the argument {} here", macro.text, name));
    }
  }
  machine_.make(sizeof(Variables) * (1 + macro.names.size()));
  const size_t visible_from = std::exchange(visible_from_, scopes_.size());
  scopes_.push_back(std::move(variables));
  const size_t n_required = macro.names.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.names.size(); ++i) {
    if (scopes_.back().contains(macro.names[i])) continue;
    Value value = Undefined{};
    if (i >= n_required) value = evaluate(*macro.defaults[i - n_required]);
    scopes_.back()[macro.names[i]] = std::move(value);
  }
  Text written = written_by(macro.body, {});
  scopes_.pop_back();
  visible_from_ = visible_from;
  return make_charged(std::move(written), machine_);
}

Value Interpreter::call_function(std::string_view name, const Expression& expression) {
  CallArguments arguments(name, positional(expression), named(expression), machine_);
  if (name == "namespace" || name == "dict") {
    if (!arguments.positional().empty()) {
      machine_.unsupported(arguments.described("takes only arguments with names here"));
    }
    std::vector<std::pair<Text, Value>> members;
    for (const auto& [key, value] : arguments.named()) {
      members.emplace_back(Text::of_template(key), value);
    }
    Value dict = make_dict(std::move(members), machine_);
    if (name == "dict") return dict;
    auto space = std::make_shared<Namespace>();
    for (const auto& [key, value] : as_dict(dict)->members) {
      space->members.emplace_back(key.bytes(), value);
    }
    return space;
  }
  if (name == "raise_exception") {
    const auto bound = arguments.bind({"message"});
    machine_.malformed(fmt::format(
        "the template refuses these messages: {}",
        bound[0] ? to_text(*bound[0], machine_).bytes() : std::string("it says no more")));
  }
  if (name == "strftime_now") {
    const auto bound = arguments.bind({"format"});
    return make_own_text(
        formatted_date(text_of(bound[0].value_or(None{}), "strftime_now", machine_).bytes()));
  }
  const auto bound = arguments.bind({"start", "stop", "step"});
  if (!bound[0]) machine_.malformed("range: needs an argument");
  const bool one = !bound[1];
  const int64_t first = one ? 0 : integer_of(*bound[0], "range", machine_);
  const int64_t end = integer_of(one ? *bound[0] : *bound[1], "range", machine_);
  const int64_t step = bound[2] ? integer_of(*bound[2], "range", machine_) : 1;
  if (step == 0) machine_.malformed("range: a step of 0");
  std::vector<Value> items;
  for (int64_t i = first; step > 0 ? i < end : i > end;) {
    machine_.make(sizeof(Value));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(std::move(items), machine_);
}

std::string Interpreter::described(const Expression& expression) {
  switch (expression.kind) {
    case Kind::kName:
      return fmt::format("\"{}\"", expression.name);
    case Kind::kAttribute:
      return fmt::format("\".{}\"", expression.name);
    default:
      return "a value";
  }
}

std::string Interpreter::formatted_date(const std::string& format) const {
  static constexpr std::array<std::string_view, 12> kMonths = {
      "January", "February", "March",     "April",   "May",      "June",
      "July",    "August",   "September", "October", "November", "December"};
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      text += format[i];
      continue;
    }
    const std::string_view month = kMonths[static_cast<size_t>(date_->month - 1)];
    switch (format[++i]) {
      case 'Y':
        text += fmt::format("{:04}", date_->year);
        break;
      case 'm':
        text += fmt::format("{:02}", date_->month);
        break;
      case 'd':
        text += fmt::format("{:02}", date_->day);
        break;
      case 'B':
        text += month;
        break;
      case 'b':
        text += month.substr(0, 3);
        break;
      case '%':
        text += '%';
        break;
      default:
        machine_.unsupported(fmt::format(
            "strftime_now: %{} is not implemented; known are %Y %m %d %B %b", format[i]));
    }
  }
  return text;
}

}  // namespace assay::chat
