#include "verify/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/describe.h"
#include "verify/equivalence_output.h"

namespace assay::report {
namespace {

constexpr double kWidth = 860, kLeft = 76, kRight = 14, kTop = 26, kBottom = 34;
constexpr double kPlotHeight = 220;
constexpr size_t kMostValueLabels = 24;  // bars that carry their value
constexpr int kTicks = 5;

std::string element(std::string_view head, std::string_view tag, std::string_view tooltip) {
  if (tooltip.empty()) return fmt::format("{}/>\n", head);
  return fmt::format("{}><title>{}</title></{}>\n", head, escape_markup(tooltip), tag);
}

/// A step of 1, 2 or 5 times a power of ten that cuts `span` into at most kTicks parts.
double nice_step(double span) {
  const double rough = span / kTicks;
  if (!(rough > 0.0)) return 1.0;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10.0 * power;
}

/// Linear axis from `low` to `high`, both multiples of `step`, zero inside.
struct Axis {
  double low = 0.0, high = 1.0, step = 1.0;

  static Axis around(double smallest, double largest) {
    Axis axis;
    const double low = std::min(0.0, smallest), high = std::max(0.0, largest);
    axis.step = nice_step(high - low);
    axis.low = std::floor(low / axis.step) * axis.step;
    axis.high = std::ceil(high / axis.step) * axis.step;
    if (!(axis.high > axis.low)) axis.high = axis.low + axis.step;
    return axis;
  }
  double y(double value) const {
    return kTop + kPlotHeight * (axis_top() - value) / (axis_top() - low);
  }
  double axis_top() const { return high; }
  int n_ticks() const { return static_cast<int>(std::lround((high - low) / step)); }
};

void draw_axis(Svg& svg, const Axis& axis, std::string_view unit) {
  for (int i = 0; i <= axis.n_ticks(); ++i) {
    double value = axis.low + i * axis.step;
    if (std::fabs(value) < axis.step * 1e-6) value = 0.0;
    svg.line(kLeft, axis.y(value), kWidth - kRight, axis.y(value), value == 0.0 ? "axis" : "grid");
    svg.text(kLeft - 6, axis.y(value) + 4, describe_figure(value), Svg::Anchor::kEnd);
  }
  svg.text(kLeft, kTop - 12, unit);
}

/// Labels below the plot, as many as have room.
void draw_labels(Svg& svg, const std::vector<std::string>& labels, double slot) {
  const double room = 58.0;  // pixels of one label
  const auto every = static_cast<size_t>(std::max(1.0, std::ceil(room / slot)));
  for (size_t i = 0; i < labels.size(); i += every) {
    svg.text(kLeft + slot * (static_cast<double>(i) + 0.5), kTop + kPlotHeight + 18, labels[i],
             Svg::Anchor::kMiddle);
  }
}

/// Decades that hold all positive values.
struct Decades {
  int low = 0, high = 1;

  explicit Decades(const std::vector<Pair>& pairs) {
    double smallest = INFINITY, largest = 0.0;
    for (const Pair& pair : pairs) {
      for (const double value : {pair.a, pair.b}) {
        if (!(value > 0.0) || !std::isfinite(value)) continue;
        smallest = std::min(smallest, value);
        largest = std::max(largest, value);
      }
    }
    if (!(largest > 0.0)) return;
    low = static_cast<int>(std::floor(std::log10(smallest)));
    high = static_cast<int>(std::ceil(std::log10(largest)));
    if (high == low) ++high;
  }
  double y(double value) const {
    return kTop + kPlotHeight * (high - std::log10(value)) / (high - low);
  }
};

bool drawable(double value) { return value > 0.0 && std::isfinite(value); }

}  // namespace

Svg::Svg(double width, double height, std::string_view label) {
  out_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n",
      width, height, escape_markup(label));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  out_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n",
                  x1, y1, x2, y2, css);
}

void Svg::rectangle(double x, double y, double width, double height, std::string_view css,
                    std::string_view tooltip) {
  out_ += element(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                              "class=\"{}\"",
                              x, y, width, height, css),
                  "rect", tooltip);
}

void Svg::circle(double x, double y, double radius, std::string_view css,
                 std::string_view tooltip) {
  out_ += element(fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"{}\"", x, y,
                              radius, css),
                  "circle", tooltip);
}

void Svg::text(double x, double y, std::string_view content, Anchor anchor, std::string_view css) {
  constexpr std::string_view kAnchors[] = {"start", "middle", "end"};
  out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                      x, y, kAnchors[static_cast<size_t>(anchor)], css, escape_markup(content));
}

std::string Svg::finish() {
  out_ += "</svg>\n";
  return std::move(out_);
}

std::string bar_chart(std::string_view label, std::string_view unit, const std::vector<Bar>& bars) {
  double smallest = 0.0, largest = 0.0;
  for (const Bar& bar : bars) {
    smallest = std::min(smallest, bar.value);
    largest = std::max(largest, bar.value);
  }
  const Axis axis = Axis::around(smallest, largest);
  Svg svg(kWidth, kTop + kPlotHeight + kBottom, label);
  draw_axis(svg, axis, unit);
  const double slot =
      (kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(1, bars.size()));
  std::vector<std::string> labels;
  for (size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    labels.push_back(bar.label);
    const double top = axis.y(std::max(0.0, bar.value)), bottom = axis.y(std::min(0.0, bar.value));
    const double x = kLeft + slot * static_cast<double>(i);
    svg.rectangle(x + slot * 0.15, top, slot * 0.7, bottom - top, "a", bar.tooltip);
    if (bars.size() > kMostValueLabels) continue;
    svg.text(x + slot * 0.5, bar.value < 0.0 ? bottom + 13 : top - 4, describe_figure(bar.value),
             Svg::Anchor::kMiddle);
  }
  draw_labels(svg, labels, slot);
  return svg.finish();
}

std::string horizontal_bar_chart(std::string_view label, std::string_view unit,
                                 const std::vector<Bar>& bars) {
  constexpr double kRow = 24, kLabels = 200, kValues = 90;
  double largest = 0.0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  Svg svg(kWidth, kRow * static_cast<double>(bars.size()) + 8, label);
  const double scale = largest > 0.0 ? (kWidth - kLabels - kValues) / largest : 0.0;
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kRow * static_cast<double>(i) + 4;
    const double length = std::max(0.0, bars[i].value) * scale;
    svg.text(kLabels - 8, y + 15, bars[i].label, Svg::Anchor::kEnd);
    svg.rectangle(kLabels, y + 3, length, kRow - 8, "a", bars[i].tooltip);
    svg.text(kLabels + length + 6, y + 15,
             fmt::format("{} {}", describe_figure(bars[i].value), unit));
  }
  return svg.finish();
}

std::string pair_chart(std::string_view label, std::string_view name_a, std::string_view name_b,
                       std::string_view group_name, const std::vector<Pair>& pairs) {
  const Decades decades(pairs);
  Svg svg(kWidth, kTop + kPlotHeight + kBottom, label);
  for (int power = decades.low; power <= decades.high; ++power) {
    const double y = decades.y(std::pow(10.0, power));
    svg.line(kLeft, y, kWidth - kRight, y, "grid");
    svg.text(kLeft - 6, y + 4, fmt::format("1e{}", power), Svg::Anchor::kEnd);
  }
  svg.circle(kLeft + 6, kTop - 15, 4, "a");
  svg.text(kLeft + 14, kTop - 11, name_a);
  svg.circle(kLeft + 126, kTop - 15, 4, "b");
  svg.text(kLeft + 134, kTop - 11, name_b);

  const double slot =
      (kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(1, pairs.size()));
  double last_tick = -1e9;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    const double x = kLeft + slot * (static_cast<double>(i) + 0.5);
    if (i == 0 || pair.group != pairs[i - 1].group) {
      svg.line(x - slot * 0.5, kTop, x - slot * 0.5, kTop + kPlotHeight, "grid");
      if (x - last_tick > 26) {
        svg.text(x, kTop + kPlotHeight + 16,
                 pair.group < 0 ? std::string("–") : fmt::format("{}", pair.group));
        last_tick = x;
      }
    }
    if (drawable(pair.a) && drawable(pair.b)) {
      svg.line(x, decades.y(pair.a), x, decades.y(pair.b), pair.a <= pair.b ? "stem" : "bad-stem");
    }
    const double radius = std::clamp(slot * 0.35, 1.5, 4.0);
    if (drawable(pair.b)) svg.circle(x, decades.y(pair.b), radius, "b", pair.tooltip);
    if (drawable(pair.a)) svg.circle(x, decades.y(pair.a), radius, "a", pair.tooltip);
  }
  svg.text(kWidth - kRight, kTop + kPlotHeight + 30, group_name, Svg::Anchor::kEnd);
  return svg.finish();
}

}  // namespace assay::report
