#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace assay {

/// Exit codes of the program (README, "Exit codes").
enum class ExitCode : int {
  kDone = 0,
  kDifference = 1,
  kUsage = 2,
  kInput = 3,
  kNumeric = 4,
  kDevice = 5,
  kResources = 6,
  kUnsupported = 7,
  kInternal = 70,  // our own mistake: an exception that nobody expected
  kStopped = 75,   // stopped at a point from which --resume goes on
};

/// Base of everything that Assay throws. A message says where, what was found, what was expected,
/// and what to try. Libraries throw; only *_main.cpp prints and exits.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// A wrong option, value or combination of options.
struct UsageError : Error {
  explicit UsageError(const std::string& m) : Error(ExitCode::kUsage, m) {}
};

/// A file that does not hold what its format or its partner files promise. The message begins with
/// the file and, where known, the tensor and the byte offset.
struct FormatError : Error {
  explicit FormatError(const std::string& m) : Error(ExitCode::kInput, m) {}
};

/// A file that cannot be opened, read, written, renamed (errno text is part of the message).
struct FileError : Error {
  explicit FileError(const std::string& m) : Error(ExitCode::kInput, m) {}
};

/// Shapes that do not fit together.
struct ShapeError : Error {
  explicit ShapeError(const std::string& m) : Error(ExitCode::kInput, m) {}
};

/// Valid input that Assay does not implement: architecture, dtype, rope type, tokenizer part.
struct UnsupportedError : Error {
  explicit UnsupportedError(const std::string& m) : Error(ExitCode::kUnsupported, m) {}
};

/// NaN, infinity or a failed factorisation; names op, layer, position and value.
struct NumericError : Error {
  explicit NumericError(const std::string& m) : Error(ExitCode::kNumeric, m) {}
};

/// A failed device call: call, status name, place.
struct DeviceError : Error {
  explicit DeviceError(const std::string& m) : Error(ExitCode::kDevice, m) {}
};

/// Too little memory or disk, estimated or real; names the largest items and a smaller setting.
struct ResourceError : Error {
  explicit ResourceError(const std::string& m) : Error(ExitCode::kResources, m) {}
};

/// The run stopped where the user asked, in a state from which it can be resumed.
struct StoppedError : Error {
  explicit StoppedError(const std::string& m) : Error(ExitCode::kStopped, m) {}
};

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

/// Ends a failed system call: "<what>: <text of errno>; <advice>". A full disk or quota, or a file
/// size limit, is a ResourceError, anything else a FileError.
[[noreturn]] void throw_system_error(const std::string& what, int error,
                                     const std::string& advice = {});

}  // namespace assay

/// For our own mistakes only; never reachable from input.
#define ASSAY_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::assay::check_failed(#condition, __FILE__, __LINE__))
