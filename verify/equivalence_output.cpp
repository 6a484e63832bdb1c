#include "verify/equivalence_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/units.h"
#include "verify/describe.h"

namespace assay {
namespace {

/// Length of the well-formed UTF-8 character at the front of `text` whose code point XML 1.0
/// allows; 0 if there is none.
size_t xml_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (length == 0 || first > 0xF4 || text.size() < length) return 0;
  uint32_t code = first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const uint32_t smallest = length == 4 ? 0x10000u : length == 3 ? 0x800u : 0x80u;
  const bool surrogate = code >= 0xD800u && code <= 0xDFFFu;
  const bool forbidden = code == 0xFFFEu || code == 0xFFFFu;
  return code < smallest || code > 0x10FFFFu || surrogate || forbidden ? 0 : length;
}

std::string side_line(std::string_view name, const Json& side) {
  std::string line =
      fmt::format("{}  {}  ({}", name, side.at("path").as_string(), side.at("kind").as_string());
  if (const Json* arithmetic = side.find("arithmetic")) {
    line += fmt::format(", arithmetic {}", arithmetic->as_string());
  }
  return line + ")\n";
}

/// The NLL per position of the nll check.
std::string bucket_table(const Json& data) {
  const Json* buckets = data.find("buckets");
  if (buckets == nullptr || buckets->as_array().empty()) return {};
  std::string text = fmt::format("    {:>11} {:>8} {:>10} {:>10} {:>11} {:>10} {:>8}\n", "rows",
                                 "scored", "NLL A", "NLL B", "delta_nll", "KLD", "top-1");
  for (const Json& bucket : buckets->as_array()) {
    const Json& kld = bucket.at("kld");
    text += fmt::format("    {:>11} {:>8} {:>10.6f} {:>10.6f} {:>11} {:>10} {:>7.2f}%\n",
                        bucket.at("rows").as_string(), bucket.at("n_scored").as_integer(),
                        bucket.at("mean_nll_a").as_number(), bucket.at("mean_nll_b").as_number(),
                        describe_figure(bucket.at("delta_nll").as_number()),
                        kld.is_null() ? std::string("-") : describe_figure(kld.as_number()),
                        100.0 * bucket.at("top1_agreement").as_number());
  }
  return text;
}

std::string verdict_of(const EquivalenceReport& report) {
  if (!report.equal()) return "DIFFERENT";
  std::vector<std::string> reported;
  for (const Check& check : report.checks) {
    if (check.outcome == Outcome::kReported) reported.push_back(check.name);
  }
  if (!report.judged() && reported.empty()) {
    return "NOT JUDGED: no check compared the numbers of one side with the other's";
  }
  if (!report.judged()) {
    return fmt::format("NOT JUDGED: no limit was given for {}; --max-kld and its like do that",
                       fmt::join(reported, ", "));
  }
  if (!reported.empty()) {
    return fmt::format("WITHIN LIMITS; not judged: {}", fmt::join(reported, ", "));
  }
  const bool exact =
      std::all_of(report.checks.begin(), report.checks.end(),
                  [](const Check& check) { return check.outcome == Outcome::kEqual; });
  return exact ? "EQUAL, bit for bit" : "WITHIN LIMITS, not equal";
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = xml_character(text);
    if (length == 0) {
      out += kReplacement;
      text.remove_prefix(1);
      continue;
    }
    switch (text.front()) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::string to_text(const EquivalenceReport& report) {
  std::string text = side_line("A", report.side_a) + side_line("B", report.side_b);
  text += fmt::format("policy   {}\n         {}\n", report.policy.describe(), report.policy.reason);
  text += fmt::format("KV type  {}\n", report.kv_type);
  if (!report.prompts.empty()) text += fmt::format("prompts  {}\n", report.prompts);
  if (!report.windows.empty()) text += fmt::format("windows  {}\n", report.windows);
  for (const std::string& note : report.notes) text += fmt::format("note     {}\n", note);
  text += '\n';
  for (const Check& check : report.checks) {
    text +=
        fmt::format("{:<16} {:<13} {}\n", check.name, outcome_name(check.outcome), check.summary);
    for (const std::string& line : check.details) text += fmt::format("    {}\n", line);
    if (check.name == "nll") text += bucket_table(check.data);
  }
  text += fmt::format("\n{}\n", verdict_of(report));
  return text;
}

std::string to_text(const EquivalencePlan& plan) {
  std::string text = side_line("A", plan.side_a) + side_line("B", plan.side_b);
  text += fmt::format("KV type  {}, {} positions\n", plan.kv_type, plan.context);
  text += fmt::format("prompts  {}\n", plan.prompts);
  if (!plan.windows.empty()) text += fmt::format("windows  {}\n", plan.windows);
  for (const std::string& note : plan.notes) text += fmt::format("note     {}\n", note);
  text += fmt::format("checks   {}\n", fmt::join(plan.checks, ", "));
  text += fmt::format("tokens   {} through each model\n", plan.n_tokens);
  text += fmt::format("memory   {}\n", bytes_text(plan.memory_bytes()));
  for (const LedgerItem& item : plan.memory) {
    text += fmt::format("         {:<30} {}\n", item.name, bytes_text(item.bytes));
  }
  return text;
}

Json to_json(const EquivalencePlan& plan) {
  Json checks = Json::array(), notes = Json::array(), memory = Json::object();
  for (const std::string& check : plan.checks) checks.push(check);
  for (const std::string& note : plan.notes) notes.push(note);
  for (const LedgerItem& item : plan.memory) memory.set(item.name, item.bytes);
  Json sides = Json::object();
  sides.set("a", plan.side_a).set("b", plan.side_b);
  Json json = Json::object();
  json.set("sides", std::move(sides))
      .set("kv_type", plan.kv_type)
      .set("context", plan.context)
      .set("prompts", plan.prompts)
      .set("windows", plan.windows)
      .set("checks", std::move(checks))
      .set("notes", std::move(notes))
      .set("n_tokens", plan.n_tokens)
      .set("memory_bytes", plan.memory_bytes())
      .set("memory", std::move(memory));
  return json;
}

Json to_json(const EquivalenceReport& report) {
  Json json = Json::object();
  json.set("kind", "assay-verification");
  json.set("equal", report.equal());  // nothing that was judged differs
  json.set("judged", report.judged());
  json.set("verdict", verdict_of(report));
  Json sides = Json::object();
  sides.set("a", report.side_a);
  sides.set("b", report.side_b);
  json.set("sides", std::move(sides));
  json.set("policy", report.policy.to_json());
  json.set("kv_type", report.kv_type);
  json.set("prompts", report.prompts);
  json.set("windows", report.windows);
  Json notes = Json::array();
  for (const std::string& note : report.notes) notes.push(note);
  json.set("notes", std::move(notes));
  Json checks = Json::array();
  for (const Check& check : report.checks) {
    Json item = Json::object();
    item.set("name", check.name);
    item.set("outcome", outcome_name(check.outcome));
    item.set("summary", check.summary);
    Json details = Json::array();
    for (const std::string& line : check.details) details.push(line);
    item.set("details", std::move(details));
    item.set("data", check.data);
    checks.push(std::move(item));
  }
  json.set("checks", std::move(checks));
  return json;
}

std::string to_junit(const EquivalenceReport& report) {
  const auto count = [&](Outcome outcome) {
    return std::count_if(report.checks.begin(), report.checks.end(),
                         [&](const Check& check) { return check.outcome == outcome; });
  };
  const std::string suite = escape_markup(fmt::format(
      "{} against {}", report.side_a.at("path").as_string(), report.side_b.at("path").as_string()));
  const std::string counts =
      fmt::format("tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\"", report.checks.size(),
                  count(Outcome::kDifferent), count(Outcome::kReported));
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  xml += fmt::format("<testsuites name=\"assay verify-equivalence\" {}>\n", counts);
  xml += fmt::format("  <testsuite name=\"{}\" {}>\n", suite, counts);
  xml += fmt::format(
      "    <properties>\n      <property name=\"policy\" value=\"{}\"/>\n"
      "      <property name=\"kv_type\" value=\"{}\"/>\n    </properties>\n",
      escape_markup(report.policy.describe()), escape_markup(report.kv_type));
  for (const Check& check : report.checks) {
    const std::string text =
        escape_markup(fmt::format("{}\n{}", check.summary, fmt::join(check.details, "\n")));
    xml += fmt::format("    <testcase classname=\"verify-equivalence\" name=\"{}\">\n",
                       escape_markup(check.name));
    if (check.outcome == Outcome::kDifferent) {
      xml += fmt::format("      <failure message=\"{}\">{}</failure>\n",
                         escape_markup(check.summary), text);
    } else {
      if (check.outcome == Outcome::kReported) {
        xml += "      <skipped message=\"not judged\"/>\n";
      }
      xml +=
          fmt::format("      <system-out>{}: {}</system-out>\n", outcome_name(check.outcome), text);
    }
    xml += "    </testcase>\n";
  }
  xml += "  </testsuite>\n</testsuites>\n";
  return xml;
}

}  // namespace assay
