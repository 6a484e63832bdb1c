#pragma once

#include <span>
#include <string>
#include <string_view>

namespace assay::test {

/// A new empty folder under $TMPDIR that is removed with all that lies in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// `<path>/<name>`.
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  /// Writes the bytes to `<path>/<name>` and returns that path.
  std::string write(std::string_view name, std::string_view content) const;

 private:
  std::string path_;
};

}  // namespace assay::test
