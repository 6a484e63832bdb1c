#include "convert/core/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <string>

#include "convert/core/error.h"

namespace assay {
namespace {

std::atomic<int> chosen_n_threads{0};  // 0: not chosen

thread_local bool inside_parallel_for = false;

struct MarkInside {
  MarkInside() { inside_parallel_for = true; }
  ~MarkInside() { inside_parallel_for = false; }
};

// One call of parallel_for. Ranges are handed out in ascending order, so when one fails, all before
// it have begun; they finish, later ones are skipped, and the failure with the smallest index is
// kept: the message does not depend on the number of threads.
class Loop {
 public:
  Loop(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body)
      : n_(n), grain_(grain), n_ranges_((n + grain - 1) / grain), body_(body) {}

  int64_t n_ranges() const { return n_ranges_; }

  void work() {
    const MarkInside mark;
    for (;;) {
      const int64_t range = next_.fetch_add(1, std::memory_order_relaxed);
      if (range >= n_ranges_) return;
      try {
        body_(range * grain_, std::min((range + 1) * grain_, n_));
      } catch (...) {
        next_.store(n_ranges_, std::memory_order_relaxed);
        const std::lock_guard lock(mutex_);
        if (range < failed_at_) {
          failed_at_ = range;
          failure_ = std::current_exception();
        }
      }
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  int64_t n_, grain_, n_ranges_;
  const std::function<void(int64_t, int64_t)>& body_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  int64_t failed_at_ = std::numeric_limits<int64_t>::max();
  std::exception_ptr failure_;
};

}  // namespace

void set_n_threads(int n_threads) {
  constexpr int kMost = 4096;
  if (n_threads < 0 || n_threads > kMost) {
    throw UsageError("number of threads: found " + std::to_string(n_threads) +
                     ", expected 0 (all cores) to " + std::to_string(kMost));
  }
  chosen_n_threads.store(n_threads);
}

int n_threads() {
  const int chosen = chosen_n_threads.load(std::memory_order_relaxed);
  if (chosen > 0) return chosen;
  // OMP_NUM_THREADS, or the cores of the affinity mask.
  static const int allowed = std::max(1, omp_get_max_threads());
  return allowed;
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  ASSAY_CHECK(!inside_parallel_for);
  ASSAY_CHECK(n >= 0 && grain > 0);
  ASSAY_CHECK(n < std::numeric_limits<int64_t>::max() / 4);  // sums below cannot wrap
  Loop loop(n, std::min(grain, std::max<int64_t>(n, 1)), body);
  const int team = n_threads();
  if (team == 1 || loop.n_ranges() <= 1) {
    loop.work();
  } else {
    // Always the whole team: libgomp ends threads that a smaller team leaves over, and starting
    // them again costs far more than waking them.
#pragma omp parallel num_threads(team)
    loop.work();
  }
  loop.rethrow();
}

}  // namespace assay
