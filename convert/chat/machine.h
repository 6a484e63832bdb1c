#pragma once

#include <cstdint>
#include <string_view>

#include "convert/chat/lexer.h"

namespace assay::chat {

/// What a running template may still use, and where it is. Templates come from model files: every
/// loop and every copy is paid for, so that time and memory are bounded.
class Machine {
 public:
  /// `n_input_bytes`: the size of messages and tools, for which a template may need more.
  Machine(const Source& source, uint64_t n_input_bytes)
      : source_(source),
        steps_left_(kSteps + n_input_bytes),
        bytes_left_(kBytes + kBytesPerInputByte * n_input_bytes) {}

  /// `n` operations, each of at most some hundred nanoseconds.
  void step(uint64_t n = 1) {
    if (n > steps_left_) unsupported("the template takes too many steps");
    steps_left_ -= n;
  }
  /// Reading `n` bytes.
  void scan(uint64_t n) { step(1 + n / 256); }
  /// Making a value of `n` bytes.
  void make(uint64_t n) {
    scan(n);
    if (n > bytes_left_) unsupported("the template makes too much text");
    bytes_left_ -= n;
  }

  int line() const { return line_; }
  void set_line(int line) { line_ = line; }
  /// The messages do not fit the template, or the template is wrong: FormatError.
  [[noreturn]] void malformed(std::string_view what) const { source_.malformed(line_, what); }
  [[noreturn]] void unsupported(std::string_view what) const { source_.unsupported(line_, what); }

  /// One level of recursion.
  class Level {
   public:
    explicit Level(Machine& machine) : machine_(machine) {
      if (++machine_.depth_ > kDepth) machine_.unsupported("the template recurses too deep");
    }
    ~Level() { --machine_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Machine& machine_;
  };

 private:
  static constexpr uint64_t kSteps = 2'000'000;
  static constexpr uint64_t kBytes = uint64_t{24} << 20;
  static constexpr uint64_t kBytesPerInputByte = 64;
  static constexpr int kDepth = 600;

  const Source& source_;
  uint64_t steps_left_, bytes_left_;
  int line_ = 0;
  int depth_ = 0;
};

}  // namespace assay::chat
