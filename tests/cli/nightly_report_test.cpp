// scripts/nightly_report.sh: its exit code and what it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "convert/core/file.h"
#include "tests/cli/program_fixture.h"
#include "tests/support/shared_data.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::ShellResult;
using testing::HasSubstr;

class NightlyReport : public test::Program {
 protected:
  NightlyReport() {
    test::make_tiny_model().write(path("model"));
    directory_.write("text", "The theory of the thing is there in the other then.");
  }
  std::string path(const std::string& name) const { return directory_.file(name); }

  ShellResult run(const std::string& limits, const std::string& text = "text") const {
    return shell(limits + " ASSAY=\"$program\" bash '" +
                 test::source_path("scripts/nightly_report.sh") + "' model text " + text +
                 " night --force --algorithm rtn --group-size 32 --window-length 8");
  }
};

TEST_F(NightlyReport, EndsWithTheVerdictAndLeavesEveryFile) {
  for (const bool passes : {true, false}) {
    const ShellResult result = run(passes ? "MAX_KLD=10" : "MAX_KLD=10 MAX_DELTA_NLL=0");

    EXPECT_EQ(result.exit_code, passes ? 0 : 1) << result.error;
    EXPECT_THAT(read_text_file(path("night/verify.xml")),
                HasSubstr(passes ? "failures=\"0\"" : "failures=\"1\""));
    for (const char* name :
         {"model/model.safetensors", "verify.json", "report.html", "report.md", "report.json"}) {
      EXPECT_TRUE(file_exists(path("night/") + name)) << name;
    }
  }
}

TEST_F(NightlyReport, LeavesNoOldVerdictWhereAStepFails) {
  ASSERT_EQ(run("MAX_KLD=10").exit_code, 0);

  const ShellResult result = run("MAX_KLD=10", "no-such-text");

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(file_exists(path("night/verify.xml")));
  EXPECT_FALSE(file_exists(path("night/report.html")));
}

}  // namespace
}  // namespace assay
