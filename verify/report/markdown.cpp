#include <fmt/format.h>

#include <cmath>
#include <string>

#include "verify/report/render.h"
#include "verify/report/sections.h"

namespace assay::report {
namespace {

/// Text that stays text: no markup, no line or cell ends.
std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
    } else if (std::string_view("\\`*_{}[]<>#|~&").find(c) != std::string_view::npos) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string row_of(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += fmt::format(" {} |", cell);
  return line + "\n";
}

std::string table_of(const Table& table) {
  if (table.rows.empty()) return {};
  std::vector<std::string> cells, rules;
  for (size_t i = 0; i < table.headings.size(); ++i) {
    cells.push_back(escape(table.headings[i]));
    rules.emplace_back(table.rows.front()[i].value ? "---:" : "---");
  }
  std::string text = row_of(cells) + row_of(rules);
  for (const auto& row : table.rows) {
    cells.clear();
    for (const Cell& cell : row) cells.push_back(escape(cell.text));
    text += row_of(cells);
  }
  return text + "\n";
}

Json json_of(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

Json json_of(const ModuleRow& row) {
  Json json = Json::object();
  json.set("layer", row.layer < 0 ? Json(nullptr) : Json(row.layer));
  json.set("module", row.module);
  json.set("loss", json_of(row.loss));
  json.set("rtn_loss", json_of(row.rtn_loss));
  json.set("relative_loss", json_of(row.relative_loss()));
  json.set("relative_rtn_loss", json_of(row.relative_rtn_loss()));
  json.set("damp_percent", json_of(row.damp_percent));
  json.set("clipped_share", json_of(row.clipped_share));
  json.set("bits_per_weight", json_of(row.bits_per_weight));
  json.set("seconds", json_of(row.seconds));
  return json;
}

Json json_of(const Verification& verification) {
  Json json = Json::object();
  json.set("equal", verification.equal);
  json.set("judged", verification.judged);
  json.set("verdict", verification.verdict);
  json.set("policy", verification.policy);
  json.set("windows", verification.windows);
  json.set("delta_nll", json_of(verification.nll.delta_nll));
  json.set("delta_nll_half_width_95", json_of(verification.nll.delta_half_width));
  json.set("kld", json_of(verification.nll.kld));
  Json checks = Json::object();
  for (const CheckRow& check : verification.checks) checks.set(check.name, check.outcome);
  json.set("checks", std::move(checks));
  Json buckets = Json::array();
  for (const BucketRow& row : verification.buckets) {
    Json item = Json::object();
    item.set("rows", row.rows);
    item.set("delta_nll", row.delta);
    item.set("kld", json_of(row.kld));
    item.set("top1_agreement", row.top1_agreement);
    buckets.push(std::move(item));
  }
  json.set("buckets", std::move(buckets));
  return json;
}

}  // namespace

std::string to_markdown(const RunData& run) {
  std::string text = fmt::format("# {}\n\n", escape(run.name));
  for (const Section& section : make_sections(run)) {
    text += fmt::format("## {}\n\n", escape(section.title));
    for (const std::string& paragraph : section.paragraphs) text += escape(paragraph) + "\n\n";
    text += table_of(section.table);
  }
  return text;
}

Json to_json(const RunData& run) {
  Json json = Json::object();
  json.set("kind", "assay-report");
  json.set("run", run.name);
  Json facts = Json::object();
  for (const auto& [name, value] : run.facts) facts.set(name, value);
  json.set("facts", std::move(facts));
  Json modules = Json::array();
  for (const ModuleRow& row : run.modules) modules.push(json_of(row));
  json.set("modules", std::move(modules));
  Json layers = Json::array();
  for (const LayerBits& layer : bits_per_layer(run)) {
    layers.push(Json::object().set("layer", layer.layer).set("bits_per_weight", layer.bits));
  }
  json.set("layers", std::move(layers));
  Json stages = Json::array();
  for (const StageRow& stage : run.stages) {
    stages.push(Json::object().set("name", stage.name).set("seconds", stage.seconds));
  }
  json.set("stages", std::move(stages));
  json.set("verification", run.verification ? json_of(*run.verification) : Json(nullptr));
  return json;
}

}  // namespace assay::report
