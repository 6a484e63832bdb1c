#include <algorithm>

#include "tests/quantizer/kill_fixture.h"
#include "tests/support/random.h"

namespace assay {
namespace {

using test::Kill;
using test::Random;

constexpr int kKilled = 128 + 9;
constexpr int kPoints = 200;

// Runs are killed again and again, at random writes, syncs and renames, until one comes through.
TEST_F(Kill, Case_B84_TwoHundredKillsAtRandomPointsChangeNoByte) {
  Random random(84);
  int n_kills = 0;
  int latest = 0;
  while (n_kills < kPoints) {
    clear();
    for (int status = kKilled; status == kKilled;) {
      const auto point = static_cast<int>(1 + random.below(70));
      status = run("kill:" + std::to_string(point), true);
      if (status == kKilled) {
        ++n_kills;
        latest = std::max(latest, point);
      } else {
        ASSERT_EQ(status, 0) << "kill:" << point;
      }
    }
    expect_result();
  }
  EXPECT_GT(latest, 50);
}

TEST_F(Kill, Case_B82_ErrorsAtEveryPointLeaveNoResultAndAStateToGoOnFrom) {
  for (const std::string kind : {"enospc", "eio"}) {
    int n_failures = 0;
    for (int point = 1;; point += 3) {
      SCOPED_TRACE(kind + std::to_string(point));
      clear();
      const int status = run(kind + ":" + std::to_string(point), false);
      if (status == 0) break;
      ++n_failures;
      EXPECT_EQ(status, kind == "eio" ? 3 : 6);
      EXPECT_EQ(run("", true), 0);
      expect_result();
    }
    EXPECT_GT(n_failures, 15);
  }
}

}  // namespace
}  // namespace assay
