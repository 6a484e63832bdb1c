#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>

#include "convert/chat/syntax.h"

namespace assay::chat {
namespace {

constexpr int kMaxDepth = 200;      // of an expression
constexpr int kMaxStatements = 60;  // inside one another

using Kind = ExpressionKind;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const Source& source)
      : tokens_(std::move(tokens)), source_(source) {}

  Body run() {
    Body body = parse_body({});
    if (token().kind != TokenKind::kEnd) {
      malformed(fmt::format("{{% {} %}} without its beginning", token().text));
    }
    return body;
  }

 private:
  // Tokens

  const Token& token(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_.back(); }
  bool is_operator(std::string_view op, size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::kOperator && token(ahead).text == op;
  }
  bool is_name(std::string_view name, size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::kName && token(ahead).text == name;
  }
  bool skip_operator(std::string_view op) {
    if (!is_operator(op)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
  }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) malformed(fmt::format("expected {}, found {}", op, described()));
  }
  void expect_block_end() {
    if (token().kind != TokenKind::kBlockEnd) {
      malformed(fmt::format("expected %}}, found {}", described()));
    }
    take();
  }
  std::string expect_name() {
    if (token().kind != TokenKind::kName) {
      malformed(fmt::format("expected a name, found {}", described()));
    }
    return take().text;
  }
  std::string described() const {
    switch (token().kind) {
      case TokenKind::kBlockEnd:
        return "%}";
      case TokenKind::kVariableEnd:
        return "}}";
      case TokenKind::kString:
        return "a string";
      case TokenKind::kEnd:
        return "the end of the template";
      default:
        return token().text;
    }
  }
  [[noreturn]] void malformed(std::string_view what) const {
    source_.malformed(token().line, what);
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    source_.unsupported(token().line, what);
  }

  // Statements

  /// Up to a block tag whose name is one of `ends` (its `{%` is taken), or to the end.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    if (++nesting_ > kMaxStatements) unsupported("statements are nested too deep");
    Body body;
    while (token().kind != TokenKind::kEnd) {
      if (token().kind == TokenKind::kText) {
        auto statement = make_statement(StatementKind::kText);
        statement->text = take().text;
        body.push_back(std::move(statement));
      } else if (token().kind == TokenKind::kVariableBegin) {
        auto statement = make_statement(StatementKind::kOutput);
        take();
        statement->expression = parse_tuple();
        if (token().kind != TokenKind::kVariableEnd) {
          malformed(fmt::format("expected }}}}, found {}", described()));
        }
        take();
        body.push_back(std::move(statement));
      } else {
        take();  // {%
        if (token().kind != TokenKind::kName) {
          malformed(fmt::format("expected the name of a statement, found {}", described()));
        }
        const bool ended = std::find(ends.begin(), ends.end(), token().text) != ends.end();
        if (ended || token().text.starts_with("end") || token().text == "else" ||
            token().text == "elif") {
          if (!ended) malformed(fmt::format("an unexpected {{% {} %}}", token().text));
          break;
        }
        body.push_back(parse_statement());
      }
    }
    if (ends.size() > 0 && token().kind == TokenKind::kEnd) {
      malformed(fmt::format("the template ends where {{% {} %}} was expected", *ends.begin()));
    }
    --nesting_;
    return body;
  }

  std::unique_ptr<Statement> make_statement(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = token().line;
    return statement;
  }

  std::unique_ptr<const Statement> parse_statement() {
    const std::string& name = token().text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "filter") return parse_filter_block();
    if (name == "generation") return parse_generation();
    if (name == "break" || name == "continue") {
      if (n_loops_ == 0) malformed(fmt::format("{{% {} %}} outside of a loop", name));
      auto statement =
          make_statement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      take();
      expect_block_end();
      return statement;
    }
    unsupported(
        fmt::format("the statement {{% {} %}} is not implemented; known are if, for, set, "
                    "macro, filter, generation, break and continue",
                    name));
  }

  std::unique_ptr<const Statement> parse_if() {
    auto statement = make_statement(StatementKind::kIf);
    take();
    for (;;) {
      Branch branch;
      branch.condition = parse_tuple(false);
      expect_block_end();
      branch.body = parse_body({"endif", "elif", "else"});
      statement->branches.push_back(std::move(branch));
      const std::string end = take().text;
      if (end == "elif") continue;
      expect_block_end();
      if (end == "else") {
        statement->otherwise = parse_body({"endif"});
        take();
        expect_block_end();
      }
      return statement;
    }
  }

  std::unique_ptr<const Statement> parse_for() {
    auto statement = make_statement(StatementKind::kFor);
    take();
    statement->names = parse_targets();
    if (!skip_name("in")) malformed(fmt::format("expected in, found {}", described()));
    statement->expression = parse_tuple(false);
    if (skip_name("if")) statement->condition = parse_expression();
    if (is_name("recursive")) unsupported("recursive loops are not implemented");
    expect_block_end();
    ++n_loops_;
    ++n_scopes_;
    statement->body = parse_body({"endfor", "else"});
    --n_scopes_;
    --n_loops_;
    const bool has_else = take().text == "else";
    expect_block_end();
    if (has_else) {
      statement->otherwise = parse_body({"endfor"});
      take();
      expect_block_end();
    }
    return statement;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> names;
    const bool parentheses = skip_operator("(");
    do {
      if (!names.empty() && token().kind != TokenKind::kName) break;
      names.push_back(expect_name());
    } while (skip_operator(","));
    if (parentheses) expect_operator(")");
    return names;
  }

  std::unique_ptr<const Statement> parse_set() {
    auto statement = make_statement(StatementKind::kSet);
    take();
    if (token().kind == TokenKind::kName && is_operator(".", 1)) {
      statement->sets_member = true;
      statement->names.push_back(expect_name());
      take();
      statement->names.push_back(expect_name());
      if (is_operator(".")) unsupported("only members of a namespace can be set");
    } else {
      statement->names = parse_targets();
    }
    if (skip_operator("=")) {
      statement->expression = parse_tuple();
      expect_block_end();
      return statement;
    }
    if (statement->sets_member || statement->names.size() != 1) {
      unsupported("a block of text can only be set to one variable");
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expression = parse_filters(make_name(kBlockText));
    expect_block_end();
    statement->body = parse_scope("endset");
    take();
    expect_block_end();
    return statement;
  }

  std::unique_ptr<const Statement> parse_macro() {
    if (n_scopes_ > 0) {
      unsupported("a macro inside of a loop, a macro or another block is not implemented");
    }
    auto statement = make_statement(StatementKind::kMacro);
    take();
    statement->text = expect_name();
    expect_operator("(");
    while (!skip_operator(")")) {
      if (!statement->names.empty()) expect_operator(",");
      if (skip_operator(")")) break;
      statement->names.push_back(expect_name());
      if (skip_operator("=")) {
        statement->defaults.push_back(parse_expression());
      } else if (!statement->defaults.empty()) {
        malformed("a parameter without a default after one with a default");
      }
    }
    expect_block_end();
    statement->body = parse_scope("endmacro");
    take();
    if (token().kind == TokenKind::kName) take();  // the name again
    expect_block_end();
    return statement;
  }
  Body parse_scope(std::string_view end) {
    ++n_scopes_;
    Body body = parse_body({end});
    --n_scopes_;
    return body;
  }

  std::unique_ptr<const Statement> parse_filter_block() {
    auto statement = make_statement(StatementKind::kFilterBlock);
    take();
    statement->expression = parse_filter(make_name(kBlockText));
    statement->expression = parse_filters(std::move(statement->expression));
    expect_block_end();
    statement->body = parse_scope("endfilter");
    take();
    expect_block_end();
    return statement;
  }

  /// Marks what the assistant wrote, for training; renders as its content.
  std::unique_ptr<const Statement> parse_generation() {
    auto statement = make_statement(StatementKind::kPass);
    take();
    expect_block_end();
    statement->body = parse_body({"endgeneration"});
    take();
    expect_block_end();
    return statement;
  }

  // Expressions, from loose to tight

  std::unique_ptr<Expression> make(Kind kind) const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = token().line;
    return expression;
  }
  ExpressionPtr make_name(std::string_view name) const {
    auto expression = make(Kind::kName);
    expression->name = name;
    return expression;
  }
  void add_part(Expression& expression, ExpressionPtr part) const {
    if (part) {
      expression.depth = std::max(expression.depth, part->depth + 1);
      if (expression.depth > kMaxDepth) unsupported("an expression is nested too deep");
    }
    expression.parts.push_back(std::move(part));
  }
  ExpressionPtr make(Kind kind, ExpressionPtr left, ExpressionPtr right = nullptr) const {
    auto expression = make(kind);
    expression->line = left->line;
    add_part(*expression, std::move(left));
    if (right) add_part(*expression, std::move(right));
    return expression;
  }

  ExpressionPtr parse_tuple(bool with_condition = true) {
    const auto element = [&] { return with_condition ? parse_expression() : parse_or(); };
    ExpressionPtr first = element();
    if (!is_operator(",")) return first;
    auto tuple = make(Kind::kTuple);
    add_part(*tuple, std::move(first));
    while (skip_operator(",")) {
      if (token().kind == TokenKind::kVariableEnd || token().kind == TokenKind::kBlockEnd ||
          is_operator(")")) {
        break;
      }
      add_part(*tuple, element());
    }
    return tuple;
  }

  /// Recursion goes through here and through parse_unary, parse_not.
  ExpressionPtr parse_expression() {
    if (++parse_depth_ > kMaxDepth) unsupported("an expression is nested too deep");
    ExpressionPtr value = parse_or();
    while (skip_name("if")) {
      auto condition = make(Kind::kCondition);
      add_part(*condition, parse_or());
      add_part(*condition, std::move(value));
      if (skip_name("else")) add_part(*condition, parse_expression());
      value = std::move(condition);
    }
    --parse_depth_;
    return value;
  }
  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (skip_name("or")) left = make(Kind::kOr, std::move(left), parse_and());
    return left;
  }
  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (skip_name("and")) left = make(Kind::kAnd, std::move(left), parse_not());
    return left;
  }
  ExpressionPtr parse_not() {
    if (!skip_name("not")) return parse_compare();
    if (++parse_depth_ > kMaxDepth) unsupported("an expression is nested too deep");
    ExpressionPtr value = make(Kind::kNot, parse_not());
    --parse_depth_;
    return value;
  }

  std::optional<std::string> take_comparison() {
    if (is_name("in")) return take().text;
    if (is_name("not") && is_name("in", 1)) {
      take();
      take();
      return "not in";
    }
    for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_operator(op)) return take().text;
    }
    return std::nullopt;
  }
  ExpressionPtr parse_compare() {
    ExpressionPtr left = parse_sum();
    std::optional<std::string> op = take_comparison();
    if (!op) return left;
    auto compare = make(Kind::kCompare);
    add_part(*compare, std::move(left));
    while (op) {
      compare->names.push_back(*op);
      add_part(*compare, parse_sum());
      op = take_comparison();
    }
    return compare;
  }

  template <class Next>
  ExpressionPtr parse_arithmetic(std::initializer_list<std::string_view> operators,
                                 const Next& next) {
    ExpressionPtr left = next();
    for (;;) {
      const auto* op = std::find_if(operators.begin(), operators.end(),
                                    [&](std::string_view o) { return is_operator(o); });
      if (op == operators.end()) return left;
      auto result = make(Kind::kArithmetic);
      result->name = take().text;
      add_part(*result, std::move(left));
      add_part(*result, next());
      left = std::move(result);
    }
  }
  ExpressionPtr parse_sum() {
    return parse_arithmetic({"+", "-"}, [&] { return parse_concatenation(); });
  }
  ExpressionPtr parse_concatenation() {
    ExpressionPtr first = parse_product();
    if (!is_operator("~")) return first;
    auto result = make(Kind::kConcatenate);
    add_part(*result, std::move(first));
    while (skip_operator("~")) add_part(*result, parse_product());
    return result;
  }
  ExpressionPtr parse_product() {
    return parse_arithmetic({"*", "/", "//", "%"}, [&] {
      ExpressionPtr value = parse_unary(true);
      if (is_operator("**")) unsupported("the operator ** is not implemented");
      return value;
    });
  }

  ExpressionPtr parse_unary(bool with_filters) {
    if (++parse_depth_ > kMaxDepth) unsupported("an expression is nested too deep");
    ExpressionPtr value;
    if (skip_operator("-")) {
      value = make(Kind::kNegative, parse_unary(false));
    } else if (skip_operator("+")) {
      value = make(Kind::kPositive, parse_unary(false));
    } else {
      value = parse_primary();
    }
    value = parse_postfix(std::move(value));
    if (with_filters) value = parse_filters(std::move(value));
    --parse_depth_;
    return value;
  }

  ExpressionPtr parse_primary() {
    if (token().kind == TokenKind::kName) return parse_name();
    if (token().kind == TokenKind::kString) {
      auto constant = make(Kind::kConstant);
      std::string text;
      while (token().kind == TokenKind::kString) text += take().text;
      constant->value = make_own_text(text);
      return constant;
    }
    if (token().kind == TokenKind::kInteger || token().kind == TokenKind::kFloat) {
      return parse_number();
    }
    if (skip_operator("(")) {
      if (skip_operator(")")) return make(Kind::kTuple);
      ExpressionPtr value = parse_tuple();
      expect_operator(")");
      return value;
    }
    if (skip_operator("[")) {
      auto list = make(Kind::kList);
      while (!skip_operator("]")) {
        if (!list->parts.empty()) expect_operator(",");
        if (skip_operator("]")) break;
        add_part(*list, parse_expression());
      }
      return list;
    }
    if (skip_operator("{")) {
      auto dict = make(Kind::kDict);
      while (!skip_operator("}")) {
        if (!dict->parts.empty()) expect_operator(",");
        if (skip_operator("}")) break;
        add_part(*dict, parse_expression());
        expect_operator(":");
        add_part(*dict, parse_expression());
      }
      return dict;
    }
    malformed(fmt::format("expected an expression, found {}", described()));
  }

  ExpressionPtr parse_name() {
    auto result = make(Kind::kConstant);
    const std::string name = take().text;
    if (name == "true" || name == "True") {
      result->value = true;
    } else if (name == "false" || name == "False") {
      result->value = false;
    } else if (name == "none" || name == "None") {
      result->value = None{};
    } else {
      result->kind = Kind::kName;
      result->name = name;
    }
    return result;
  }

  ExpressionPtr parse_number() {
    auto constant = make(Kind::kConstant);
    const Token number = take();
    const char* const begin = number.text.data();
    const char* const end = begin + number.text.size();
    std::from_chars_result read{};
    if (number.kind == TokenKind::kInteger) {
      int64_t value = 0;
      read = std::from_chars(begin, end, value);
      constant->value = value;
    } else {
      double value = 0;
      read = std::from_chars(begin, end, value);
      constant->value = value;
    }
    if (read.ec != std::errc() || read.ptr != end) {
      unsupported(fmt::format("the number {} is out of range", number.text));
    }
    return constant;
  }

  ExpressionPtr parse_postfix(ExpressionPtr value) {
    for (;;) {
      if (skip_operator(".")) {
        if (token().kind == TokenKind::kInteger) {
          auto item = make(Kind::kItem);
          add_part(*item, std::move(value));
          add_part(*item, parse_number());
          value = std::move(item);
          continue;
        }
        auto attribute = make(Kind::kAttribute);
        attribute->name = expect_name();
        add_part(*attribute, std::move(value));
        value = std::move(attribute);
      } else if (skip_operator("[")) {
        value = parse_subscript(std::move(value));
      } else if (is_operator("(")) {
        auto call = make(Kind::kCall);
        add_part(*call, std::move(value));
        parse_arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr value) {
    auto result = make(Kind::kItem);
    add_part(*result, std::move(value));
    const auto bound = [&] {
      const bool empty = is_operator(":") || is_operator("]");
      add_part(*result, empty ? nullptr : parse_expression());
    };
    if (is_operator("]")) malformed("expected an index, found ]");
    bound();
    if (is_operator(":")) {
      result->kind = Kind::kSlice;
      for (int i = 0; i < 2; ++i) {
        if (skip_operator(":")) {
          bound();
        } else {
          result->parts.push_back(nullptr);
        }
      }
    }
    if (is_operator(",")) unsupported("an index of several values is not implemented");
    expect_operator("]");
    return result;
  }

  /// `( … )` into parts and named.
  void parse_arguments(Expression& call) {
    expect_operator("(");
    bool first = true;
    while (!skip_operator(")")) {
      if (!first) expect_operator(",");
      if (skip_operator(")")) break;
      first = false;
      if (is_operator("*") || is_operator("**")) {
        unsupported("arguments unpacked by * are not implemented");
      }
      if (token().kind == TokenKind::kName && is_operator("=", 1)) {
        std::string name = take().text;
        take();
        ExpressionPtr argument = parse_expression();
        call.depth = std::max(call.depth, argument->depth + 1);
        if (call.depth > kMaxDepth) unsupported("an expression is nested too deep");
        call.named.emplace_back(std::move(name), std::move(argument));
      } else {
        if (!call.named.empty()) malformed("an argument without a name after one with a name");
        add_part(call, parse_expression());
      }
    }
  }

  /// A filter's name and arguments.
  ExpressionPtr parse_filter(ExpressionPtr value) {
    auto filter = make(Kind::kFilter);
    filter->name = expect_name();
    if (is_operator(".")) unsupported("filters with a dot in their name are not implemented");
    add_part(*filter, std::move(value));
    if (is_operator("(")) parse_arguments(*filter);
    return filter;
  }

  ExpressionPtr parse_filters(ExpressionPtr value) {
    for (;;) {
      if (skip_operator("|")) {
        value = parse_filter(std::move(value));
      } else if (is_name("is")) {
        value = parse_test(std::move(value));
      } else if (is_operator("(")) {
        auto call = make(Kind::kCall);
        add_part(*call, std::move(value));
        parse_arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_test(ExpressionPtr value) {
    take();  // is
    const bool negated = skip_name("not");
    auto test = make(Kind::kTest);
    test->name = expect_name();
    add_part(*test, std::move(value));
    if (is_operator("(")) {
      parse_arguments(*test);
    } else if (starts_argument()) {
      if (is_name("is")) malformed("tests cannot be chained");
      add_part(*test, parse_postfix(parse_primary()));
    }
    if (!negated) return test;
    return make(Kind::kNot, std::move(test));
  }
  bool starts_argument() const {
    if (token().kind == TokenKind::kString || token().kind == TokenKind::kInteger ||
        token().kind == TokenKind::kFloat || is_operator("[") || is_operator("{")) {
      return true;
    }
    return token().kind == TokenKind::kName && !is_name("else") && !is_name("or") &&
           !is_name("and");
  }

  std::vector<Token> tokens_;
  const Source& source_;
  size_t at_ = 0;
  int nesting_ = 0;   // statements around this one, and the template
  int n_loops_ = 0;   // loops around this one
  int n_scopes_ = 0;  // loops, macros and blocks around this one
  int parse_depth_ = 0;
};

}  // namespace

Body parse(std::string_view text, const Source& source) {
  return Parser(tokenize(text, source), source).run();
}

}  // namespace assay::chat
