#pragma once

#include <functional>
#include <stdexcept>
#include <string_view>

#include "convert/cli/parse.h"

namespace assay::cli {

/// The reader of our stdout went away (`assay inspect … | head`): the program ends without a
/// message and with 141, as if SIGPIPE had ended it, but after unwinding.
struct BrokenPipe : std::runtime_error {
  BrokenPipe() : std::runtime_error("stdout was closed by its reader") {}
};

/// All that the command line sees of the world outside; tests put in their own.
struct Surroundings {
  EnvironmentMap environment;
  bool stdout_is_tty = false;
  bool stderr_is_tty = false;
  /// Width to write help and progress for.
  std::function<int()> columns;
  /// Writes everything or throws FileError, ResourceError (no space) or BrokenPipe.
  std::function<void(std::string_view)> write_out;
  /// Never throws: there is nowhere left to complain.
  std::function<void(std::string_view)> write_error;
  /// Seconds on a clock that never goes back.
  std::function<double()> now;

  /// The value of a variable, empty if unset.
  std::string variable(std::string_view name) const;
};

/// The real ones of this process.
Surroundings process_surroundings();

/// Gives the standard descriptors that are closed (`2>&-`) a file that refuses to be read (0) or
/// written (1), or that swallows everything (2). Without it the next file that is opened would get
/// such a number, and messages would go into it.
void occupy_standard_descriptors();

/// Writes all bytes; false with errno set if that fails.
bool write_all(int file_descriptor, std::string_view text);

}  // namespace assay::cli
