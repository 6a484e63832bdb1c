#include "convert/core/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "convert/core/error.h"

namespace assay {
namespace {

using testing::ThrowsMessage;

class ParallelFor : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_n_threads(GetParam()); }
  void TearDown() override { set_n_threads(0); }
};

TEST_P(ParallelFor, CoversEachIndexOnceInRangesOfAtMostTheGrain) {
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    for (const int64_t grain : {1, 3, 1000, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
      std::atomic<int64_t> longest{0};

      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        for (int64_t seen = longest; seen < end - begin;) {
          if (longest.compare_exchange_weak(seen, end - begin)) break;
        }
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });

      EXPECT_LE(longest, grain);
      for (const auto& count : visits) ASSERT_EQ(count, 1);
    }
  }
}

TEST_P(ParallelFor, CarriesOutTheFailureOfTheSmallestIndex) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    EXPECT_THAT(
        [] {
          parallel_for(1000, 1, [](int64_t begin, int64_t) {
            if (begin % 10 == 7) throw std::runtime_error(std::to_string(begin));
          });
        },
        ThrowsMessage<std::runtime_error>("7"));
  }
}

TEST_P(ParallelFor, WorksAgainAfterAFailureAndRefusesNesting) {
  const auto nested = [](int64_t, int64_t) { parallel_for(1, 1, [](int64_t, int64_t) {}); };
  EXPECT_THROW(parallel_for(4, 1, nested), std::logic_error);
  std::atomic<int> n_calls{0};

  parallel_for(4, 1, [&](int64_t, int64_t) { ++n_calls; });

  EXPECT_EQ(n_calls, 4);
}

TEST_P(ParallelFor, AnywhereGoesInRangesOfTheGrainInsideAndOutsideOfBodies) {
  const auto visits_of = [](auto&& loop) {
    std::vector<std::atomic<int>> visits(100);
    loop([&](int64_t begin, int64_t end) {
      EXPECT_LE(end - begin, 7);
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    return std::vector<int>(visits.begin(), visits.end());
  };

  const auto outside = visits_of([](const auto& body) { parallel_for_anywhere(100, 7, body); });
  const auto inside = visits_of([](const auto& body) {
    parallel_for(3, 1, [&](int64_t, int64_t) { parallel_for_anywhere(100, 7, body); });
  });

  EXPECT_THAT(outside, testing::Each(1));
  EXPECT_THAT(inside, testing::Each(3));
}

TEST_P(ParallelFor, ServesManyShortLoopsOfSeveralThreadsAtATime) {
  std::atomic<int64_t> sum{0};
  const auto caller = [&] {
    for (int loop = 0; loop < 2000; ++loop) {
      parallel_for(5, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    }
  };

  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back(caller);
  for (std::thread& thread : callers) thread.join();

  EXPECT_EQ(sum, 3 * 2000 * 5);
}

TEST_P(ParallelFor, WakesWorkersThatSleep) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::atomic<int> n_calls{0};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));

    parallel_for(64, 1, [&](int64_t, int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ++n_calls;
    });

    EXPECT_EQ(n_calls, 64);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, testing::Values(1, 2, 5));

TEST(NThreads, CanBeSetAndResetToAllCores) {
  const int all = n_threads();
  set_n_threads(3);
  EXPECT_EQ(n_threads(), 3);
  set_n_threads(0);
  EXPECT_EQ(n_threads(), all);
  EXPECT_GE(all, 1);
  EXPECT_THROW(set_n_threads(-1), UsageError);
}

}  // namespace
}  // namespace assay
