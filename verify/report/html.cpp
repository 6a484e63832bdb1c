#include <fmt/format.h>

#include "verify/equivalence_output.h"
#include "verify/report/render.h"
#include "verify/report/sections.h"

namespace assay::report {
namespace {

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5b6570; --paper: #ffffff; --line: #d9dee3;
  --a: #0b6bcb; --b: #b3bac2; --bad: #c4320a; --good: #1a7f37; --head: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --dim: #9aa4ae; --paper: #14171a;
  --line: #343a41; --a: #5aa9f7; --b: #6b747d; --bad: #ff8a65; --good: #57c778; --head: #1e2226; } }
body { margin: 2rem auto; max-width: 58rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p { margin: 0.4rem 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { color: var(--dim); font-size: 0.87rem; }
svg { width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
svg .a { fill: var(--a); } svg .b { fill: var(--b); }
svg .axis { stroke: var(--dim); } svg .grid { stroke: var(--line); }
svg .stem { stroke: var(--line); stroke-width: 1.5; }
svg .bad-stem { stroke: var(--bad); stroke-width: 2; }
.scroll { overflow-x: auto; max-height: 32rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.87rem; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; white-space: pre-line; overflow-wrap: anywhere; }
th { background: var(--head); position: sticky; top: 0; white-space: nowrap; }
td:first-child { overflow-wrap: break-word; } /* names are short and stay whole */
.sortable th { cursor: pointer; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { font-weight: 600; } .equal { color: var(--good); } .different { color: var(--bad); }
footer { margin-top: 3rem; color: var(--dim); font-size: 0.87rem; }
)css";

// Sorts a table by the clicked column; a second click turns the order. Free of the characters that
// XML would want escaped.
constexpr std::string_view kScript = R"js(
document.querySelectorAll('table.sortable').forEach(function (table) {
  var body = table.tBodies[0];
  Array.from(table.tHead.rows[0].cells).forEach(function (head, column) {
    var direction = 1;
    head.addEventListener('click', function () {
      function key(row) {
        var cell = row.cells[column];
        var number = cell.getAttribute('data-value');
        return number === null ? cell.textContent : parseFloat(number);
      }
      Array.from(body.rows).sort(function (x, y) {
        var a = key(x), b = key(y);
        if (typeof a !== typeof b) { return typeof a === 'number' ? -1 : 1; }
        if (typeof a === 'number') { return direction * (a - b); }
        return direction * a.localeCompare(b, 'en', { numeric: true });
      }).forEach(function (row) { body.appendChild(row); });
      direction = -direction;
    });
  });
});
)js";

std::string cell_element(const Cell& cell) {
  if (!cell.value) return fmt::format("<td>{}</td>", escape_markup(cell.text));
  return fmt::format("<td class=\"number\" data-value=\"{}\">{}</td>", *cell.value,
                     escape_markup(cell.text));
}

std::string table_element(const Table& table) {
  if (table.rows.empty()) return {};
  std::string html = "<div class=\"scroll\"><table class=\"sortable\">\n<thead><tr>";
  for (const std::string& heading : table.headings) {
    html += fmt::format("<th scope=\"col\">{}</th>", escape_markup(heading));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const Cell& cell : row) html += cell_element(cell);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string section_element(const Section& section) {
  std::string html = fmt::format("<section>\n<h2>{}</h2>\n", escape_markup(section.title));
  for (const std::string& paragraph : section.paragraphs) {
    html += fmt::format("<p>{}</p>\n", escape_markup(paragraph));
  }
  if (!section.chart.empty()) {
    html += fmt::format("<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", section.chart,
                        escape_markup(section.chart_caption));
  }
  return html + table_element(section.table) + "</section>\n";
}

}  // namespace

std::string to_html(const RunData& run) {
  const std::string title = escape_markup(run.name);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{} – Assay report</title>\n<style>{}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
      title, kStyle, title);
  if (run.verification) {
    const Verification& verification = *run.verification;
    const char* kind = !verification.judged ? "reported"
                       : verification.equal ? "equal"
                                            : "different";
    html +=
        fmt::format("<p class=\"verdict {}\">{}</p>\n", kind, escape_markup(verification.verdict));
  }
  for (const Section& section : make_sections(run)) html += section_element(section);
  html += fmt::format(
      "<footer>Click a heading to sort a table.</footer>\n<script>{}</script>\n"
      "</body>\n</html>\n",
      kScript);
  return html;
}

}  // namespace assay::report
