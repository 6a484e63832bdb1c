#include "verify/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/describe.h"
#include "verify/report/svg.h"

namespace assay::report {
namespace {

Cell text_cell(std::string text) { return {std::move(text), std::nullopt}; }

Cell number_cell(const std::optional<double>& value, double factor = 1.0) {
  if (!value) return {"–", std::nullopt};
  return {describe_figure(*value * factor), *value};
}

Cell integer_cell(const std::optional<int64_t>& value) {
  if (!value) return {"–", std::nullopt};
  return {fmt::format("{}", *value), static_cast<double>(*value)};
}

std::string seconds_text(double seconds) {
  if (seconds < 100.0) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

std::optional<double> share_of_rtn(const ModuleRow& row) {
  if (!row.loss || !row.rtn_loss || !(*row.rtn_loss > 0.0)) return std::nullopt;
  return *row.loss / *row.rtn_loss;
}

std::string module_tooltip(const ModuleRow& row) {
  const auto figure = [](const std::optional<double>& value) {
    return value ? describe_figure(*value) : std::string("unknown");
  };
  return fmt::format("{}: relative loss {}, RTN {}", row.module, figure(row.relative_loss()),
                     figure(row.relative_rtn_loss()));
}

/// Whether the run itself rounded to nearest.
bool rounds_to_nearest(const RunData& run) {
  return std::all_of(run.modules.begin(), run.modules.end(), [](const ModuleRow& row) {
    return row.loss && row.rtn_loss && *row.loss == *row.rtn_loss;
  });
}

/// Modules that do no better than rounding to nearest at what they aim at: the distance to the
/// 16-bit output where it is known, else the loss.
size_t count_not_better(const RunData& run) {
  return static_cast<size_t>(
      std::count_if(run.modules.begin(), run.modules.end(), [](const ModuleRow& row) {
        if (row.output_distance && row.rtn_output_distance) {
          return *row.output_distance >= *row.rtn_output_distance;
        }
        const auto share = share_of_rtn(row);
        return share && *share >= 1.0;
      }));
}

std::string nll_text(const NllFigures& nll) {
  std::string text = "delta_nll " + describe_figure(*nll.delta_nll);
  if (nll.delta_half_width) text += " ± " + describe_figure(*nll.delta_half_width);
  if (nll.kld) text += ", KLD " + describe_figure(*nll.kld);
  return text + " nats per token.";
}

Section summary_section(const RunData& run) {
  Section section;
  section.title = "Summary";
  double weights = 0.0, bits = 0.0, seconds = 0.0;
  for (const ModuleRow& row : run.modules) {
    const double n = row.n_weights ? static_cast<double>(*row.n_weights) : 0.0;
    weights += n;
    bits += n * row.bits_per_weight.value_or(0.0);
  }
  for (const StageRow& stage : run.stages) seconds += stage.seconds;
  std::string line = fmt::format("{} linears quantized", run.modules.size());
  if (weights > 0.0) {
    line += fmt::format(" ({:.1f} million weights, {:.3f} bits each, scales included)",
                        weights / 1e6, bits / weights);
  }
  if (seconds > 0.0) line += fmt::format(" in {}", seconds_text(seconds));
  section.paragraphs.push_back(line + ".");
  if (const size_t n = count_not_better(run); n > 0 && !rounds_to_nearest(run)) {
    section.paragraphs.push_back(
        fmt::format("{} of them do no better than rounding to nearest.", n));
  }
  if (run.held_out && run.held_out->nll.delta_nll) {
    section.paragraphs.push_back(fmt::format("On {} windows held out of the calibration: {}",
                                             run.held_out->n_windows, nll_text(run.held_out->nll)));
  }
  if (run.verification) {
    const Verification& verification = *run.verification;
    section.paragraphs.push_back(fmt::format("Verification: {}.", verification.verdict));
    if (verification.nll.delta_nll) section.paragraphs.push_back(nll_text(verification.nll));
  }
  return section;
}

Section loss_section(const RunData& run) {
  Section section;
  section.title = "Loss per module";
  std::vector<Pair> pairs;
  for (const ModuleRow& row : run.modules) {
    pairs.push_back({row.module, row.layer, row.relative_loss().value_or(0.0),
                     row.relative_rtn_loss().value_or(0.0), module_tooltip(row)});
    section.table.rows.push_back(
        {integer_cell(row.layer < 0 ? std::nullopt : std::optional(row.layer)),
         text_cell(row.module), number_cell(row.relative_loss()),
         number_cell(row.relative_rtn_loss()), number_cell(share_of_rtn(row)),
         number_cell(row.damp_percent), number_cell(row.clipped_share, 100.0),
         number_cell(row.bits_per_weight), number_cell(row.seconds)});
  }
  section.table.headings = {"layer",   "module",    "loss", "RTN loss", "loss / RTN",
                            "damping", "clipped %", "bits", "seconds"};
  const bool drawable = std::any_of(pairs.begin(), pairs.end(),
                                    [](const Pair& pair) { return pair.a > 0.0 || pair.b > 0.0; });
  if (drawable) {
    section.chart = pair_chart("Relative loss of every module, and of rounding to nearest",
                               "this run", "round to nearest", "layer", pairs);
    section.chart_caption =
        "Squared error of the output on the calibration tokens, relative to the output "
        "(logarithmic). Each stem is one linear.";
  }
  return section;
}

Section bits_section(const RunData& run) {
  Section section;
  section.title = "Bits per layer";
  const std::vector<LayerBits> layers = bits_per_layer(run);
  if (layers.empty()) return section;
  std::vector<Bar> bars;
  for (const LayerBits& layer : layers) {
    bars.push_back({fmt::format("{}", layer.layer), layer.bits,
                    fmt::format("layer {}: {:.3f} bits a weight", layer.layer, layer.bits)});
    section.table.rows.push_back(
        {integer_cell(layer.layer), {fmt::format("{:.3f}", layer.bits), layer.bits}});
  }
  section.table.headings = {"layer", "bits a weight"};
  section.chart = bar_chart("Bits a weight of every layer", "bits a weight", bars);
  section.chart_caption = "Mean over the quantized linears of a layer, scales included.";
  return section;
}

Section position_section(const Verification& verification) {
  Section section;
  section.title = "Difference by position";
  std::vector<Bar> bars;
  for (const BucketRow& row : verification.buckets) {
    bars.push_back(
        {row.rows, row.delta,
         fmt::format("positions {}: delta_nll {}", row.rows, describe_figure(row.delta))});
    section.table.rows.push_back(
        {text_cell(row.rows),
         integer_cell(row.n_scored),
         {fmt::format("{:.6f}", row.mean_a), row.mean_a},
         {fmt::format("{:.6f}", row.mean_b), row.mean_b},
         number_cell(row.delta),
         number_cell(row.kld),
         {fmt::format("{:.2f}", 100.0 * row.top1_agreement), row.top1_agreement}});
  }
  if (bars.empty()) return section;
  section.table.headings = {"positions", "scored",           "NLL A", "NLL B", "delta_nll",
                            "KLD",       "same best token %"};
  section.chart = bar_chart("delta_nll by position in the window", "delta_nll, nats a token", bars);
  section.chart_caption = verification.windows;
  return section;
}

Section time_section(const RunData& run) {
  Section section;
  section.title = "Time per stage";
  std::vector<Bar> bars;
  for (const StageRow& stage : run.stages) {
    bars.push_back({stage.name, stage.seconds, {}});
    section.table.rows.push_back(
        {text_cell(stage.name), {fmt::format("{:.2f}", stage.seconds), stage.seconds}});
  }
  if (bars.empty()) return section;
  section.table.headings = {"stage", "seconds"};
  section.chart = horizontal_bar_chart("Seconds of every stage", "s", bars);
  return section;
}

Section checks_section(const Verification& verification) {
  Section section;
  section.title = "Verification";
  section.paragraphs = {fmt::format("A: {}", verification.side_a),
                        fmt::format("B: {}", verification.side_b),
                        fmt::format("Policy: {}.", verification.policy)};
  section.table.headings = {"check", "outcome", "found"};
  for (const CheckRow& check : verification.checks) {
    std::string found = check.summary;
    for (const std::string& detail : check.details) found += "\n" + detail;
    section.table.rows.push_back(
        {text_cell(check.name), text_cell(check.outcome), text_cell(found)});
  }
  return section;
}

Section facts_section(const RunData& run) {
  Section section;
  section.title = "Settings and versions";
  section.table.headings = {"name", "value"};
  for (const auto& [name, value] : run.facts) {
    section.table.rows.push_back({text_cell(name), text_cell(value)});
  }
  return section;
}

}  // namespace

std::vector<Section> make_sections(const RunData& run) {
  std::vector<Section> sections = {summary_section(run), loss_section(run), bits_section(run)};
  if (run.verification) {
    sections.push_back(position_section(*run.verification));
    sections.push_back(checks_section(*run.verification));
  }
  sections.push_back(time_section(run));
  sections.push_back(facts_section(run));
  std::erase_if(sections, [](const Section& section) {
    return section.paragraphs.empty() && section.table.rows.empty();
  });
  return sections;
}

}  // namespace assay::report
