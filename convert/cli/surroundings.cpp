#include "convert/cli/surroundings.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

extern char** environ;

namespace assay::cli {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kLeastColumns = 40;  // narrower than this, tables stop making sense
constexpr int kMostColumns = 120;  // longer lines are hard to read

int terminal_columns(const std::string& columns_variable) {
  int64_t columns = 0;
  for (const int descriptor : {STDERR_FILENO, STDOUT_FILENO}) {
    winsize size{};
    if (isatty(descriptor) == 1 && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      columns = size.ws_col;
      break;
    }
  }
  if (columns == 0 && (!parse_integer(columns_variable, columns) || columns <= 0)) {
    columns = kDefaultColumns;
  }
  return static_cast<int>(
      std::min<int64_t>(std::max<int64_t>(columns, kLeastColumns), kMostColumns));
}

void write_standard_output(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return;
  if (errno == EPIPE) throw BrokenPipe();
  throw_system_error(fmt::format("standard output: cannot write {} bytes", text.size()), errno);
}

}  // namespace

void occupy_standard_descriptors() {
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // The lowest free number is this one, since those below are in use by now.
    if (::open("/dev/null", kModes[descriptor]) < 0) ::open("/", O_RDONLY | O_DIRECTORY);
  }
}

bool write_all(int file_descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(file_descriptor, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string Surroundings::variable(std::string_view name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

Surroundings process_surroundings() {
  Surroundings result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equal = text.find('=');
    if (equal == std::string_view::npos) continue;
    result.environment.emplace(text.substr(0, equal), text.substr(equal + 1));
  }
  result.stdout_is_tty = isatty(STDOUT_FILENO) == 1;
  result.stderr_is_tty = isatty(STDERR_FILENO) == 1;
  result.columns = [variable = result.variable("COLUMNS")] { return terminal_columns(variable); };
  result.write_out = write_standard_output;
  result.write_error = [](std::string_view text) { write_all(STDERR_FILENO, text); };
  result.now = [] {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since_start).count();
  };
  return result;
}

}  // namespace assay::cli
