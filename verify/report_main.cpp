// assay report: command line only.

#include <fmt/format.h>

#include <filesystem>

#include "convert/cli/command.h"
#include "convert/core/file.h"
#include "verify/commands.h"
#include "verify/report/render.h"
#include "verify/report/run_data.h"

namespace assay::cli {
namespace {

ExitCode run(const Arguments& arguments, Terminal& terminal) {
  namespace fs = std::filesystem;
  const std::string folder = arguments.text("RUN_DIR");
  const report::RunData data =
      report::read_run(folder, arguments.text("report"), arguments.text("verify"));
  const fs::path html =
      arguments.given("out") ? fs::path(arguments.text("out")) : fs::path(folder) / "report.html";
  if (html.extension() != ".html") {
    throw UsageError(
        fmt::format("--out {}: expected a name that ends in .html; the .md and .json "
                    "files go beside it",
                    html.string()));
  }
  const fs::path markdown = fs::path(html).replace_extension(".md");
  const fs::path figures = fs::path(html).replace_extension(".json");
  for (const fs::path& beside : {markdown, figures}) {
    // An earlier report is replaced as a whole; a lone config.json is something else.
    if (!fs::exists(beside) || fs::exists(html)) continue;
    throw UsageError(
        fmt::format("--out {}: {} would be lost, which belongs to no such report; "
                    "choose another name",
                    html.string(), beside.string()));
  }
  const Json json = report::to_json(data);
  write_text_file(markdown.string(), report::to_markdown(data));
  write_text_file(figures.string(), json.dump() + "\n");
  write_text_file(html.string(), report::to_html(data));
  terminal.print(terminal.json() ? json.dump() + "\n" : html.string() + "\n");
  return ExitCode::kDone;
}

}  // namespace

const Command& report_command() {
  static const Command command = {
      .name = "report",
      .brief = "Make an HTML report of a quantization",
      .description =
          "Reads what assay quantize left in its output folder, and the verdict of assay "
          "verify-equivalence if there is one, and writes one static HTML file (charts and tables, "
          "no request to anywhere) with Markdown and JSON of the same figures beside it.",
      .positionals = {{.name = "RUN_DIR", .help = "output folder of assay quantize"}},
      .options = {{.name = "report",
                   .kind = ValueKind::kPath,
                   .value_name = "FILE",
                   .help = "What assay quantize --report wrote. Default: <RUN_DIR>.report.json.",
                   .group = "Input"},
                  {.name = "verify",
                   .kind = ValueKind::kPath,
                   .value_name = "FILE",
                   .help = "File that assay verify-equivalence --json-out wrote.",
                   .group = "Input"},
                  {.name = "out",
                   .short_name = 'o',
                   .kind = ValueKind::kPath,
                   .value_name = "FILE",
                   .help = "The HTML file. Default: report.html in RUN_DIR.",
                   .group = "Output",
                   .writes = true,
                   .file_at_end = true,
                   .replaceable = ".html"}},
      .examples = {{"assay report model-W4A16", "Writes model-W4A16/report.html."},
                   {"assay report model-W4A16 --verify verify.json --out report.html",
                    "With the verdict and the difference by position."}},
      .run = run,
  };
  return command;
}

}  // namespace assay::cli
