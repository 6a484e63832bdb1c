#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace assay {

/// Incremental SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits; the object must not be used afterwards.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Two lower-case hexadecimal digits for each byte.
std::string hex_of(std::span<const std::byte> bytes);
std::string sha256_hex(std::span<const std::byte> bytes);
/// Hash of token ids: each id as a little-endian 64-bit integer, in order, nothing between.
std::string sha256_of_token_ids(std::span<const int32_t> token_ids);
/// Hash of a whole file, read in pieces; `progress` is called before each, and what it throws ends
/// the work.
std::string sha256_of_file(const std::string& path, const std::function<void()>& progress = {});

}  // namespace assay
