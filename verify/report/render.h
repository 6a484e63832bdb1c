#pragma once

#include <string>

#include "convert/core/json.h"
#include "verify/report/run_data.h"

namespace assay::report {

/// One static page: charts as inline SVG, tables that sort by a click on a heading, light and dark
/// by the reader's setting, complete without scripts, no request to anywhere. Well-formed as XML;
/// everything that comes from files is escaped.
std::string to_html(const RunData& run);

/// The same tables in GitHub's Markdown; table cells cannot break out of their row.
std::string to_markdown(const RunData& run);

/// All figures, for programs: {"kind": "assay-report", "run", "facts", "modules", "layers",
/// "stages", "verification"}.
Json to_json(const RunData& run);

}  // namespace assay::report
