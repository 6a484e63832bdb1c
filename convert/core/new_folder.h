#pragma once

#include <string>

namespace assay {

/// A folder that is filled under `<path>.partial` and then gets its name; a folder that has the
/// name already is replaced, and where the path is a link, what it names. Without publish() the
/// temporary folder is removed. What a killed run left there is removed first. Two writers of one
/// path exclude each other: the second gets a FileError.
class NewFolder {
 public:
  /// FileError or ResourceError if the folder cannot be made.
  explicit NewFolder(const std::string& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  /// Where to write.
  const std::string& partial() const { return partial_; }
  /// Makes the folder durable and gives it its name.
  void publish();

 private:
  void make_partial();
  std::string path_, partial_;
  int lock_ = -1;  // descriptor of the temporary folder; the lock ends with the process
};

}  // namespace assay
