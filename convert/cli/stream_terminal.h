#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "convert/cli/command.h"
#include "convert/cli/surroundings.h"

namespace assay::cli {

enum class ProgressStyle : uint8_t { kNone, kPlain, kBar };

/// What the global options make of the terminal.
struct TerminalOptions {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  bool color = false;  // of stderr
  ProgressStyle progress = ProgressStyle::kNone;
  std::string log_file = {};  // JSON lines; empty: none

  /// Reads the options and the variables NO_COLOR, CLICOLOR_FORCE, TERM and
  /// HF_HUB_DISABLE_PROGRESS_BARS. Throws UsageError for --quiet with --verbose.
  static TerminalOptions from(const Arguments& arguments, const Surroundings& surroundings);
};

/// "1:05" or "2:03:09".
std::string format_duration(double seconds);

/// The terminal of a process. All members may be called from any thread.
class StreamTerminal : public Terminal {
 public:
  /// Opens the log file; throws FileError.
  StreamTerminal(const TerminalOptions& options, const Surroundings& surroundings);
  ~StreamTerminal() override;
  StreamTerminal(const StreamTerminal&) = delete;
  StreamTerminal& operator=(const StreamTerminal&) = delete;

  void print(std::string_view text) override;
  void log(LogLevel level, std::string_view message) override;
  std::unique_ptr<Progress> progress(std::string_view title, double total) override;
  bool json() const override { return options_.json; }
  bool quiet() const override { return options_.quiet; }

  /// Redraws the bar, or writes a plain line if there was none for most of a minute. A thread calls
  /// this each second, so that long steps do not look like a hang.
  void beat();

  /// Whether print() was called: an error may then not add a JSON document.
  bool printed() const { return printed_; }
  /// Throws FileError or ResourceError if lines are missing in the log file.
  void require_log_file() const;

 private:
  friend class StreamProgress;
  struct Step {  // one live Progress; only the newest is shown
    std::string title;
    std::string label;
    double total = 0;
    double done = 0;
    double begin = 0;      // seconds
    double last_line = 0;  // when the last plain line was written; below 0: never
    std::string last_label;
  };

  void update_step(Step& step, double done, std::string_view label);
  void end_step(Step& step, bool unwinding);
  void write_plain_line(Step& step);
  void draw_bar();
  void erase_bar();
  void run_heart();
  void write_log_record(LogLevel level, std::string_view message);
  std::string status_text(const Step& step, double now) const;

  TerminalOptions options_;
  Surroundings surroundings_;
  double start_ = 0;
  int log_descriptor_ = -1;
  int log_error_ = 0;  // errno of the first line that could not be written
  bool printed_ = false;

  mutable std::mutex mutex_;
  std::vector<Step*> steps_;  // innermost last
  bool bar_drawn_ = false;
  double last_draw_ = 0;
  bool ended_ = false;
  std::condition_variable wake_;
  std::thread heart_;
};

}  // namespace assay::cli
