#include "convert/core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "convert/core/error.h"

namespace assay {
namespace {

constexpr int kMostThreads = 4096;

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

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Threads that sleep between loops. A loop never waits for a worker that has not begun: on a
// machine with other work to do, the caller takes the ranges of workers that get no core. Waiting
// is a short spin, which catches the next loop of a decode step, then a sleep in the kernel, so
// that stretches on one thread cost the others nothing.
class Pool {
 public:
  /// Runs loop.work() on up to `team` threads, the caller among them. False if another thread's
  /// loop has the pool.
  bool run(Loop& loop, int team) {
    const std::unique_lock lock(callers_, std::try_to_lock);
    if (!lock) return false;
    start_workers(team - 1);
    loop_ = &loop;
    team_ = team;
    const uint32_t turn = (state_.load(std::memory_order_relaxed) + kTurn) & ~(kTurn - 1);
    state_.store(turn | kOpen, std::memory_order_release);
    state_.notify_all();
    loop.work();
    uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while ((state & kInside) != 0) state = wait_for_change(state);
    return true;
  }

 private:
  // state_: a counter of loops, whether workers may join, how many are inside.
  static constexpr uint32_t kInside = (1u << 13) - 1;
  static constexpr uint32_t kOpen = 1u << 13;
  static constexpr uint32_t kTurn = 1u << 14;

  void start_workers(int n) {
    for (; n_workers_ < n; ++n_workers_) {
      const uint32_t seen = state_.load(std::memory_order_relaxed);
      try {
        std::thread([this, seen, index = n_workers_] { serve(index, seen); }).detach();
      } catch (const std::system_error& error) {
        throw ResourceError("thread " + std::to_string(n_workers_ + 2) + " of " +
                            std::to_string(n + 1) + " does not start: " + error.what() +
                            "; use fewer with --threads");
      }
    }
  }

  [[noreturn]] void serve(int index, uint32_t state) {
    uint32_t served = state & ~(kTurn - 1);
    for (;;) {
      if ((state & kOpen) == 0 || (state & ~(kTurn - 1)) == served) {
        state = wait_for_change(state);
        continue;
      }
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) continue;
      served = state & ~(kTurn - 1);
      if (index < team_ - 1) loop_->work();
      state = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
      if ((state & (kOpen | kInside)) == 0) state_.notify_all();  // the caller may sleep
    }
  }

  uint32_t wait_for_change(uint32_t seen) {
    constexpr int kSpins = 1000;  // some 15 to 50 µs
    for (int i = 0; i < kSpins; ++i) {
      const uint32_t now = state_.load(std::memory_order_acquire);
      if (now != seen) return now;
      relax();
    }
    state_.wait(seen, std::memory_order_acquire);
    return state_.load(std::memory_order_acquire);
  }

  std::mutex callers_;
  std::atomic<uint32_t> state_{0};
  Loop* loop_ = nullptr;  // of the open turn; written while nobody is inside
  int team_ = 1;
  int n_workers_ = 0;
};

// Never destroyed: its threads live until the process ends.
Pool& pool() {
  static Pool* const pool = new Pool;
  return *pool;
}

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// The first number of OMP_NUM_THREADS, by which schedulers of shared machines tell programs how
// many threads they may start; else the cores of the affinity mask.
int default_n_threads() {
  const char* const text = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe)
  const long wanted = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return wanted > 0 ? static_cast<int>(std::min(wanted, long{kMostThreads})) : allowed_cores();
}

}  // namespace

void set_n_threads(int n_threads) {
  if (n_threads < 0 || n_threads > kMostThreads) {
    throw UsageError("number of threads: found " + std::to_string(n_threads) +
                     ", expected 0 (all cores) to " + std::to_string(kMostThreads));
  }
  chosen_n_threads.store(n_threads);
}

int n_threads() {
  const int chosen = chosen_n_threads.load(std::memory_order_relaxed);
  if (chosen > 0) return chosen;
  static const int allowed = default_n_threads();
  return allowed;
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  ASSAY_CHECK(!inside_parallel_for);
  ASSAY_CHECK(n >= 0 && grain > 0);
  ASSAY_CHECK(n < std::numeric_limits<int64_t>::max() / 4);  // sums below cannot wrap
  Loop loop(n, std::min(grain, std::max<int64_t>(n, 1)), body);
  const auto team = static_cast<int>(std::min<int64_t>(n_threads(), loop.n_ranges()));
  if (team <= 1 || !pool().run(loop, team)) loop.work();
  loop.rethrow();
}

void parallel_for_anywhere(int64_t n, int64_t grain,
                           const std::function<void(int64_t, int64_t)>& body) {
  if (!inside_parallel_for) return parallel_for(n, grain, body);
  for (int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(begin + grain, n));
}

}  // namespace assay
