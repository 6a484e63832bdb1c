#include "convert/cli/stream_terminal.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>

#include "convert/core/words.h"

namespace assay::cli {
namespace {

constexpr double kRedrawSeconds = 0.1;    // of the bar
constexpr double kPlainLineSeconds = 10;  // at most one plain line in this time …
constexpr double kSilenceSeconds = 50;    // … and at least one in a minute
constexpr double kEtaAfterSeconds = 1;    // before that an ETA is noise
constexpr auto kBeat = std::chrono::seconds(1);
constexpr int kBarWidth = 24;

constexpr std::string_view kRed = "\x1b[1;31m", kYellow = "\x1b[33m", kReset = "\x1b[0m";
constexpr std::string_view kEraseLine = "\r\x1b[K";

constexpr std::string_view level_name(LogLevel level) {
  constexpr std::string_view kNames[] = {"error", "warning", "info", "debug"};
  return kNames[static_cast<size_t>(level)];
}

bool use_color(const std::string& when, const Surroundings& surroundings) {
  if (when == "always") return true;
  if (when == "never") return false;
  if (!surroundings.variable("NO_COLOR").empty()) return false;
  const std::string forced = surroundings.variable("CLICOLOR_FORCE");
  if (!forced.empty() && forced != "0") return true;
  return surroundings.stderr_is_tty && surroundings.variable("TERM") != "dumb";
}

ProgressStyle progress_style(const std::string& when, const Surroundings& surroundings) {
  if (when == "none") return ProgressStyle::kNone;
  if (when == "bar") return ProgressStyle::kBar;
  if (when == "plain") return ProgressStyle::kPlain;
  bool disabled = false;
  parse_switch(surroundings.variable("HF_HUB_DISABLE_PROGRESS_BARS"), disabled);
  if (disabled) return ProgressStyle::kNone;
  const bool can_draw = surroundings.stderr_is_tty && surroundings.variable("TERM") != "dumb";
  return can_draw ? ProgressStyle::kBar : ProgressStyle::kPlain;
}

}  // namespace

TerminalOptions TerminalOptions::from(const Arguments& arguments,
                                      const Surroundings& surroundings) {
  TerminalOptions result;
  result.json = arguments.flag("json");
  result.quiet = arguments.flag("quiet");
  result.verbose = arguments.flag("verbose");
  if (result.quiet && result.verbose) {
    throw UsageError("--quiet and --verbose contradict each other; give one of them");
  }
  result.color = use_color(arguments.text("color"), surroundings);
  result.progress = progress_style(arguments.text("progress"), surroundings);
  if (result.json || result.quiet) result.progress = ProgressStyle::kNone;
  result.log_file = arguments.text("log-file");
  return result;
}

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

/// The Progress that commands hold; all state lives in the terminal's step, under its lock.
class StreamProgress : public Progress {
 public:
  StreamProgress(StreamTerminal& terminal, std::string_view title, double total)
      : terminal_(terminal), n_exceptions_(std::uncaught_exceptions()) {
    step_.title = title;
    step_.total = total;
    step_.begin = terminal.surroundings_.now();
    step_.last_line = -1;
    const std::lock_guard lock(terminal.mutex_);
    terminal.steps_.push_back(&step_);
  }
  ~StreamProgress() override {
    terminal_.end_step(step_, std::uncaught_exceptions() > n_exceptions_);
  }
  StreamProgress(const StreamProgress&) = delete;
  StreamProgress& operator=(const StreamProgress&) = delete;

  void update(double done, std::string_view label) override {
    terminal_.update_step(step_, done, label);
  }

 private:
  StreamTerminal& terminal_;
  StreamTerminal::Step step_;
  int n_exceptions_;
};

StreamTerminal::StreamTerminal(const TerminalOptions& options, const Surroundings& surroundings)
    : options_(options), surroundings_(surroundings), start_(surroundings.now()) {
  if (options_.log_file.empty()) return;
  constexpr mode_t kMode = 0644;
  log_descriptor_ =
      ::open(options_.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kMode);
  if (log_descriptor_ < 0) {
    throw_system_error(options_.log_file + ": cannot open the log file", errno);
  }
}

StreamTerminal::~StreamTerminal() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    erase_bar();
  }
  wake_.notify_all();
  if (heart_.joinable()) heart_.join();
  if (log_descriptor_ >= 0) ::close(log_descriptor_);
}

void StreamTerminal::print(std::string_view text) {
  const std::lock_guard lock(mutex_);
  erase_bar();
  printed_ = true;
  surroundings_.write_out(text);
}

void StreamTerminal::log(LogLevel level, std::string_view message) {
  const std::lock_guard lock(mutex_);
  write_log_record(level, message);
  if (level == LogLevel::kDebug && !options_.verbose) return;
  if (level == LogLevel::kInfo && options_.quiet) return;

  std::string line;
  if (level != LogLevel::kInfo) {
    const bool colored = options_.color && level <= LogLevel::kWarning;
    if (colored) line += level == LogLevel::kError ? kRed : kYellow;
    line += level_name(level);
    line += ":";
    if (colored) line += kReset;
    line += " ";
  }
  line += printable(message);
  line += "\n";
  erase_bar();
  surroundings_.write_error(line);
  draw_bar();
}

std::unique_ptr<Progress> StreamTerminal::progress(std::string_view title, double total) {
  auto result = std::make_unique<StreamProgress>(*this, title, total);
  if (options_.progress != ProgressStyle::kNone) {
    const std::lock_guard lock(mutex_);
    if (!heart_.joinable()) heart_ = std::thread([this] { run_heart(); });
  }
  return result;
}

void StreamTerminal::require_log_file() const {
  const std::lock_guard lock(mutex_);
  if (log_error_ == 0) return;
  throw_system_error(options_.log_file + ": cannot write to the log file, later lines are lost",
                     log_error_);
}

void StreamTerminal::update_step(Step& step, double done, std::string_view label) {
  const std::lock_guard lock(mutex_);
  step.done = done;
  const bool new_label = step.label != label;
  if (new_label) {
    step.label = printable(label);
    if (log_descriptor_ >= 0) {
      write_log_record(LogLevel::kInfo, status_text(step, surroundings_.now()));
    }
  }
  if (steps_.empty() || steps_.back() != &step) return;
  const double now = surroundings_.now();
  if (options_.progress == ProgressStyle::kBar) {
    if (!bar_drawn_ || now - last_draw_ >= kRedrawSeconds) draw_bar();
  } else if (options_.progress == ProgressStyle::kPlain) {
    const bool never = step.last_line < 0;
    if (never || (step.last_label != step.label && now - step.last_line >= kPlainLineSeconds)) {
      write_plain_line(step);
    }
  }
}

void StreamTerminal::end_step(Step& step, bool unwinding) {
  const std::lock_guard lock(mutex_);
  steps_.erase(std::remove(steps_.begin(), steps_.end(), &step), steps_.end());
  erase_bar();
  const bool complete = !unwinding && step.total > 0 && step.done >= step.total;
  if (complete && options_.progress != ProgressStyle::kNone) {
    const double elapsed = surroundings_.now() - step.begin;
    surroundings_.write_error(
        fmt::format("{}: done in {}\n", step.title, format_duration(elapsed)));
  }
  draw_bar();
}

/// "layer 3, mlp.down_proj, 41 %, 0:12 elapsed, about 0:17 left"
std::string StreamTerminal::status_text(const Step& step, double now) const {
  std::string result = step.label;
  const double elapsed = now - step.begin;
  const double part = step.total > 0 ? std::clamp(step.done / step.total, 0.0, 1.0) : 0;
  if (!result.empty()) result += ", ";
  if (step.total > 0) result += fmt::format("{:.0f} %, ", std::floor(100 * part));
  result += format_duration(elapsed) + " elapsed";
  if (part > 0 && part < 1 && elapsed >= kEtaAfterSeconds) {
    result += fmt::format(", about {} left", format_duration(elapsed / part * (1 - part)));
  }
  return result;
}

void StreamTerminal::write_plain_line(Step& step) {
  const double now = surroundings_.now();
  surroundings_.write_error(fmt::format("{}: {}\n", step.title, status_text(step, now)));
  step.last_line = now;
  step.last_label = step.label;
}

void StreamTerminal::draw_bar() {
  if (options_.progress != ProgressStyle::kBar || steps_.empty() || ended_) return;
  const Step& step = *steps_.back();
  const double now = surroundings_.now();
  std::string line = step.title + " ";
  if (step.total > 0) {
    const double part = std::clamp(step.done / step.total, 0.0, 1.0);
    const auto filled = static_cast<size_t>(std::floor(part * kBarWidth));
    line += "[" + std::string(filled, '=') + std::string(kBarWidth - filled, ' ') + "] ";
  }
  line += status_text(step, now);
  const auto limit = static_cast<size_t>(std::max(1, surroundings_.columns() - 1));
  if (line.size() > limit) line.resize(limit);
  surroundings_.write_error(std::string(kEraseLine) + line);
  bar_drawn_ = true;
  last_draw_ = now;
}

void StreamTerminal::erase_bar() {
  if (!bar_drawn_) return;
  surroundings_.write_error(kEraseLine);
  bar_drawn_ = false;
}

void StreamTerminal::beat() {
  const std::lock_guard lock(mutex_);
  if (steps_.empty()) return;
  Step& step = *steps_.back();
  if (options_.progress == ProgressStyle::kBar) {
    draw_bar();
  } else if (options_.progress == ProgressStyle::kPlain &&
             surroundings_.now() - std::max(step.last_line, step.begin) >= kSilenceSeconds) {
    write_plain_line(step);
  }
}

void StreamTerminal::run_heart() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kBeat, [this] { return ended_; })) {
    lock.unlock();
    beat();
    lock.lock();
  }
}

void StreamTerminal::write_log_record(LogLevel level, std::string_view message) {
  if (log_descriptor_ < 0 || log_error_ != 0) return;
  Json record = Json::object();
  record.set("elapsed_s", std::round((surroundings_.now() - start_) * 1e3) / 1e3);
  record.set("level", level_name(level));
  record.set("message", message);
  if (write_all(log_descriptor_, record.dump(0) + "\n")) return;
  log_error_ = errno;
}

}  // namespace assay::cli
