#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay::report {

/// Drawing of one chart: an <svg> element as text. Colours come from CSS classes of the page
/// ("a", "b", "axis", "grid", "good", "bad"), so that the chart follows light and dark. All text is
/// escaped; coordinates are pixels with one decimal.
class Svg {
 public:
  /// `label` is what a screen reader says.
  Svg(double width, double height, std::string_view label);

  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void rectangle(double x, double y, double width, double height, std::string_view css,
                 std::string_view tooltip = {});
  void circle(double x, double y, double radius, std::string_view css,
              std::string_view tooltip = {});
  enum class Anchor : uint8_t { kStart, kMiddle, kEnd };
  void text(double x, double y, std::string_view content, Anchor anchor = Anchor::kStart,
            std::string_view css = "label");
  std::string finish();

 private:
  std::string out_;
};

/// One bar of a chart.
struct Bar {
  std::string label;
  double value = 0.0;
  std::string tooltip;
};

/// Vertical bars from zero, which may point down; the value stands at each where there are few.
std::string bar_chart(std::string_view label, std::string_view unit, const std::vector<Bar>& bars);

/// Horizontal bars for values ≥ 0, the label to the left and the value to the right.
std::string horizontal_bar_chart(std::string_view label, std::string_view unit,
                                 const std::vector<Bar>& bars);

/// Two values of one thing, on a logarithmic axis.
struct Pair {
  std::string label;
  int64_t group = 0;  // a grid line and a tick where it changes
  double a = 0.0;     // both > 0, else the dot is left out
  double b = 0.0;
  std::string tooltip;
};

/// A dot for a and one for b over each other, joined by a stem, in the given order.
std::string pair_chart(std::string_view label, std::string_view name_a, std::string_view name_b,
                       std::string_view group_name, const std::vector<Pair>& pairs);

}  // namespace assay::report
