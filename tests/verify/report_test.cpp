#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "tests/support/temporary_directory.h"
#include "tests/verify/markup.h"
#include "verify/equivalence_output.h"
#include "verify/report/render.h"
#include "verify/report/svg.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr std::string_view kRun = R"({
  "kind": "assay quantize report", "arithmetic": "canonical-1", "options": {"bits": 4, "group_size": 128},
  "note": "<b>low</b> & hot",
  "layers": [
    {"layer": 0, "seconds": {"gram & solve": 12.5}, "modules": [
      {"module": "model.layers.0.self_attn.q_proj", "loss": 0.5, "rtn_loss": 1.0,
       "weight_norm": 100.0, "damp_percent": 0.01, "clipped_share": 0.001, "seconds": 1.5,
       "bits_per_weight": 4.125, "out_features": 64, "in_features": 128}]},
    {"layer": 1, "modules": [
      {"module": "<script>alert('x')</script>|evil", "loss": 2.0, "rtn_loss": 1.0,
       "weight_norm": 10.0, "bits_per_weight": 8.0}]}]})";

constexpr std::string_view kVerdict = R"({
  "kind": "assay-verification", "equal": false, "verdict": "DIFFERENT", "windows": "2 windows of 1024 tokens",
  "policy": {"kind": "tolerance", "reason": "limits were given"},
  "sides": {"a": {"path": "a<b"}, "b": {"path": "b"}},
  "checks": [
    {"name": "weights", "outcome": "reported", "summary": "1 of 3 differ", "details": ["x < y"],
     "data": {}},
    {"name": "nll", "outcome": "different", "summary": "delta_nll is 0.02", "details": [],
     "data": {"delta_nll": 0.02, "kld": 0.01, "delta_nll_windows": {"half_width_95": 0.001},
       "buckets": [
         {"rows": "0-64", "n_scored": 128, "mean_nll_a": 3.0, "mean_nll_b": 3.1,
          "delta_nll": 0.1, "kld": 0.05, "top1_agreement": 0.75},
         {"rows": "64-128", "n_scored": 126, "mean_nll_a": 2.5, "mean_nll_b": 2.4,
          "delta_nll": -0.1, "kld": null, "top1_agreement": 0.5}]}}]})";

report::RunData run(std::string_view report = kRun, std::string_view verdict = kVerdict) {
  const test::TemporaryDirectory folder;
  folder.write("model.report.json", report);
  const std::string verify = verdict.empty() ? "" : folder.write("verify.json", verdict);
  return report::read_run(folder.file("model"), "", verify);
}

TEST(Report, SaysWhichFileItTakesAsAVerdict) {
  for (const char* other : {"# Verdict\n", "{}", "[1]"}) {
    try {
      run(kRun, other);
      ADD_FAILURE() << other;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("verify.json: "),
                                               HasSubstr("verify-equivalence --json-out")));
    }
  }
}

TEST(ReportHtml, ColoursAVerdictOnlyIfSomethingWasJudged) {
  const auto html = [](const std::string& members, const std::string& outcome) {
    return report::to_html(run(kRun, R"({"kind": "assay-verification", "verdict": "V", )" +
                                         members + R"(, "checks": [{"name": "nll", "outcome": ")" +
                                         outcome + "\"}]}"));
  };

  EXPECT_THAT(html(R"("equal": true, "judged": true)", "within limit"),
              HasSubstr("<p class=\"verdict equal\">"));
  EXPECT_THAT(html(R"("equal": true, "judged": false)", "reported"),
              HasSubstr("<p class=\"verdict reported\">"));
  EXPECT_THAT(html(R"("equal": false, "judged": true)", "different"),
              HasSubstr("<p class=\"verdict different\">"));
}

// A report may not show a pass that its rows contradict.
TEST(ReadRun, RefusesAVerdictThatDoesNotFollowFromItsChecks) {
  const auto expect_refused = [](const std::string& equal, const std::string& checks,
                                 const std::string& words) {
    EXPECT_THAT(
        [&] {
          run(kRun, R"({"kind": "assay-verification", "judged": true, "equal": )" + equal +
                        R"(, "checks": [)" + checks + "]}");
        },
        ThrowsMessage<FormatError>(HasSubstr(words)));
  };
  const std::string equal = R"({"name": "nll", "outcome": "equal"})",
                    different = R"({"name": "logits", "outcome": "different"})";

  expect_refused("true", "", "of 0 checks none is different");
  expect_refused("true", equal + "," + different, "of 2 checks some are different");
  expect_refused("false", equal, "of 1 checks none is different");
  expect_refused("true", equal + "," + equal, "check \"nll\" stands there twice");
  expect_refused("true", R"({"name": "nll", "outcome": "fine"})", "unknown outcome \"fine\"");
  EXPECT_THROW(
      run(kRun,
          R"({"equal": true, "judged": true, "checks": [{"name": "a", "outcome": "equal"}]})"),
      FormatError);
}

TEST(ReadRun, RefusesTwoRunsInOneReport) {
  const std::string module = R"({"layer": 0, "modules": [{"module": "a"}]})";
  const auto report = [&](const std::string& layers) {
    return R"({"kind": "assay quantize report", "layers": [)" + layers + "]}";
  };

  EXPECT_NO_THROW(run(report(module), ""));
  EXPECT_THAT([&] { run(report(module + "," + module), ""); },
              ThrowsMessage<FormatError>(HasSubstr("module \"a\" stands there twice")));
  EXPECT_THROW(run(R"({"kind": "sweep", "layers": []})", ""), FormatError);
}

TEST(ReadRun, ReadsModulesStagesAndVerdict) {
  const report::RunData data = run();

  ASSERT_EQ(data.modules.size(), 2u);
  EXPECT_EQ(data.modules[0].relative_loss(), 0.005);
  EXPECT_EQ(data.modules[0].bits_per_weight, 4.125);
  EXPECT_EQ(data.modules[1].layer, 1);
  EXPECT_FALSE(data.modules[1].damp_percent.has_value());
  EXPECT_EQ(data.stages[0].seconds, 12.5);
  EXPECT_EQ(data.verification->buckets[1].delta, -0.1);
  EXPECT_FALSE(data.verification->buckets[1].kld.has_value());
}

TEST(ReadRun, ReadsTheReportThatQuantizeWritesBesideItsFolder) {
  const test::TemporaryDirectory folder;
  folder.write("model.report.json", R"({"kind": "assay quantize report", "layers": [
      {"layer": 0, "seconds": {"forward": 1.5, "solve": 0.5},
       "modules": [{"module": "a", "loss": 1.0, "weight_norm": 4.0}]},
      {"layer": 1, "seconds": {"forward": 2.0}, "modules": [{"module": "b"}]}]})");

  const report::RunData data = report::read_run(folder.path() + "/model/", "", "");

  ASSERT_EQ(data.modules.size(), 2u);
  EXPECT_EQ(data.modules[1].layer, 1);
  EXPECT_EQ(data.stages[0].name, "forward");
  EXPECT_EQ(data.stages[0].seconds, 3.5);
}

TEST(ReadRun, ReadsAReportThatLiesElsewhere) {
  const test::TemporaryDirectory folder;
  const std::string elsewhere =
      folder.write("elsewhere.json", R"({"kind": "assay quantize report", "layers": [
          {"layer": 3, "modules": [{"module": "a"}]}]})");

  const report::RunData data = report::read_run(folder.file("model"), elsewhere, "");

  ASSERT_EQ(data.modules.size(), 1u);
  EXPECT_EQ(data.modules[0].layer, 3);
}

TEST(Report, SaysWhatHeldOutWindowsShowed) {
  const std::string text =
      report::to_markdown(run(R"({"kind": "assay quantize report", "layers": [], "held_out": {
      "n_windows": 4, "delta_nll": 0.5, "kld": 0.25,
      "delta_nll_windows": {"half_width_95": 0.125}}})",
                              ""));

  EXPECT_THAT(text, HasSubstr("On 4 windows held out of the calibration: delta\\_nll 0.5 ± 0.125, "
                              "KLD 0.25 nats per token."));
  EXPECT_THAT(report::to_markdown(run()), Not(HasSubstr("held out")));
}

TEST(Report, DoesNotCompareRoundingToNearestWithItself) {
  const auto text = [](const std::string& loss) {
    return report::to_markdown(
        run(R"({"kind": "assay quantize report", "layers": [{"layer": 0, "modules": [
        {"module": "a", "rtn_loss": 1.0, "loss": )" +
                loss + "}]}]}",
            ""));
  };

  EXPECT_THAT(text("1.0"), Not(HasSubstr("no better than rounding")));
  EXPECT_THAT(text("1.5"), HasSubstr("1 of them do no better than rounding to nearest"));
}

TEST(ReadRun, WeighsBitsOfALayerBySize) {
  const report::RunData data =
      run(R"({"kind": "assay quantize report", "layers": [{"layer": 0, "modules": [
      {"module": "a", "bits_per_weight": 4.0, "out_features": 3, "in_features": 10},
      {"module": "b", "bits_per_weight": 8.0, "out_features": 1, "in_features": 10}]}]})",
          "");

  ASSERT_EQ(bits_per_layer(data).size(), 1u);
  EXPECT_EQ(bits_per_layer(data)[0].bits, 5.0);
}

TEST(ReadRun, NamesFileAndMemberOfWrongInput) {
  EXPECT_THROW(run("{}", ""), FormatError);
  EXPECT_THROW(
      run(R"({"kind": "assay quantize report", "layers": [{"modules": [{"layer": 0}]}]})", ""),
      FormatError);
  EXPECT_THROW(run(kRun, "{}"), FormatError);
  const test::TemporaryDirectory empty;
  EXPECT_THROW(report::read_run(empty.path(), "", ""), FormatError);
}

TEST(HtmlReport, IsWellFormed) {
  EXPECT_EQ(test::find_markup_fault(report::to_html(run())), "");
  EXPECT_EQ(test::find_markup_fault(report::to_html(run(kRun, ""))), "");
  EXPECT_EQ(test::find_markup_fault(
                report::to_html(run(R"({"kind": "assay quantize report", "layers": []})", ""))),
            "");
}

TEST(HtmlReport, EscapesEverythingThatComesFromFiles) {
  const std::string html = report::to_html(run());

  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"));
  EXPECT_THAT(html, HasSubstr("&lt;b&gt;low&lt;/b&gt; &amp; hot"));
}

TEST(HtmlReport, AsksForNothingFromAnywhere) {
  std::string html = report::to_html(run());
  for (const std::string_view name_space :
       {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}) {
    for (size_t at = html.find(name_space); at != std::string::npos; at = html.find(name_space)) {
      html.erase(at, name_space.size());
    }
  }

  EXPECT_THAT(html, AllOf(Not(HasSubstr("http")), Not(HasSubstr("src=")), Not(HasSubstr("url("))));
}

TEST(HtmlReport, ShowsAllFourChartsAndTheFigures) {
  const std::string html = report::to_html(run());

  size_t n_charts = 0;
  for (size_t at = html.find("<svg"); at != std::string::npos; at = html.find("<svg", at + 1)) {
    ++n_charts;
  }
  EXPECT_EQ(n_charts, 4u);
  EXPECT_THAT(html, AllOf(HasSubstr("DIFFERENT"), HasSubstr("delta_nll 0.02"),
                          HasSubstr("gram &amp; solve"), HasSubstr("data-value=\"0.005\"")));
}

TEST(HtmlReport, IsTheSameTextTwice) {
  const report::RunData data = run();

  EXPECT_EQ(report::to_html(data), report::to_html(data));
}

TEST(MarkdownReport, KeepsCellsInTheirRow) {
  const std::string text = report::to_markdown(run());

  EXPECT_THAT(text, HasSubstr("\\<script\\>alert('x')\\</script\\>\\|evil |"));
  EXPECT_THAT(text, HasSubstr("1 of 3 differ x \\< y |"));
}

TEST(JsonReport, HoldsTheFigures) {
  const Json json = report::to_json(run());

  EXPECT_EQ(json.at("modules").as_array()[0].at("relative_loss").as_number(), 0.005);
  EXPECT_EQ(json.at("verification").at("checks").at("nll").as_string(), "different");
  EXPECT_EQ(json.at("facts").at("options.bits").as_string(), "4");
}

TEST(Charts, AreWellFormedForAwkwardValues) {
  using report::Bar;
  EXPECT_EQ(test::find_markup_fault(report::bar_chart("x", "y", {})), "");
  EXPECT_EQ(test::find_markup_fault(report::bar_chart("x", "y", {{"zero", 0.0, "t"}})), "");
  EXPECT_EQ(test::find_markup_fault(report::bar_chart("x", "y", {{"<", -1e-9, "&"}})), "");
  EXPECT_EQ(test::find_markup_fault(report::horizontal_bar_chart("x", "y", {{"z", 0.0, ""}})), "");
  EXPECT_EQ(
      test::find_markup_fault(report::pair_chart("x", "a", "b", "g", {{"m", 0, 0.0, 0.0, "none"}})),
      "");
}

TEST(EscapeMarkup, ReplacesWhatXmlForbids) {
  EXPECT_EQ(escape_markup("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape_markup(std::string_view("\x01\0x", 3)), "\xEF\xBF\xBD\xEF\xBF\xBDx");
  EXPECT_EQ(escape_markup("caf\xC3\xA9 \xF0\x9F\x98\x80"), "caf\xC3\xA9 \xF0\x9F\x98\x80");
  EXPECT_EQ(escape_markup("\xC3"), "\xEF\xBF\xBD");
  EXPECT_EQ(escape_markup("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escape_markup("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escape_markup("tab\there\n"), "tab\there\n");
}

TEST(MarkupChecker, FindsTheFaultsItIsThereFor) {
  EXPECT_EQ(test::find_markup_fault("<a><b x=\"1\"/></a>"), "");
  EXPECT_NE(test::find_markup_fault("<a><b></a></b>"), "");
  EXPECT_NE(test::find_markup_fault("<a>x & y</a>"), "");
  EXPECT_NE(test::find_markup_fault("<a>1 < 2</a>"), "");
  EXPECT_NE(test::find_markup_fault("<a b=1/>"), "");
  EXPECT_NE(test::find_markup_fault("<a b=\"1\" b=\"2\"></a>"), "");
  EXPECT_NE(test::find_markup_fault("<a></a><b></b>"), "");
}

}  // namespace
}  // namespace assay
