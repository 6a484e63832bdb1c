#include "convert/cli/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "convert/cli/command.h"

namespace assay::cli {
namespace {

std::atomic<int> g_n_signals{0};
static_assert(std::atomic<int>::is_always_lock_free);  // used in a signal handler

constexpr int kSecondSignalExit = 130;

extern "C" void handle_signal(int) {
  const int saved_errno = errno;
  constexpr std::string_view kFirst =
      "\nstopping at the next safe point (a second signal ends at once)\n";
  constexpr std::string_view kSecond = "\nended by a second signal\n";
  const bool second = g_n_signals.fetch_add(1) > 0;
  const std::string_view message = second ? kSecond : kFirst;
  // The result is of no use here: there is no other place to report to.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
  if (second) _exit(kSecondSignalExit);
  errno = saved_errno;
}

void handle_unless_ignored(int signal_number) {
  struct sigaction before {};
  if (sigaction(signal_number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handle_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

void install_signal_handlers() {
  handle_unless_ignored(SIGINT);
  handle_unless_ignored(SIGTERM);
  handle_unless_ignored(SIGHUP);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

bool stop_requested() { return g_n_signals.load(std::memory_order_relaxed) > 0; }

}  // namespace assay::cli
