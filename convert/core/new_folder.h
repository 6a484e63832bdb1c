#pragma once

#include <string>

namespace assay {

/// A folder that is filled under `<path>.partial` and then gets its name; a folder that has the
/// name already is replaced. What an ended run left under the temporary name is removed first; what
/// this one leaves there stays where an exception ends it, for whoever wants to look, and is
/// removed by the next.
class NewFolder {
 public:
  /// FileError or ResourceError if the folder cannot be made.
  explicit NewFolder(const std::string& path);
  /// Where to write.
  const std::string& partial() const { return partial_; }
  /// Makes the folder durable and gives it its name.
  void publish();

 private:
  std::string path_, partial_;
};

}  // namespace assay
