#include "tests/quantizer/kill_fixture.h"

namespace assay {
namespace {

using test::Kill;

constexpr int kKilled = 128 + 9;

TEST_F(Kill, Case_B84_ARunKilledAtAWriteIsResumedToTheSameBytes) {
  for (const int point : {1, 2, 3, 6, 11, 17, 24, 33, 45}) {
    SCOPED_TRACE(point);
    clear();

    EXPECT_EQ(run("kill:" + std::to_string(point), false), kKilled);
    EXPECT_EQ(run("", true), 0);

    expect_result();
  }
}

TEST_F(Kill, Case_B82_AFullDiskOrAFailedWriteEndsWithItsCodeAndLeavesNoResult) {
  for (const int point : {1, 5, 20, 40}) {
    SCOPED_TRACE(point);
    clear();

    EXPECT_EQ(run("enospc:" + std::to_string(point), false), 6);
    EXPECT_FALSE(has_result());
    EXPECT_EQ(run("eio:1", true), 3);
    EXPECT_EQ(run("", true), 0);

    expect_result();
  }
}

}  // namespace
}  // namespace assay
