#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// A file or folder that a command is about to write.
struct OutputPath {
  std::string option;  // for messages: "--out"
  std::string path;
  /// Ending of files that it may write inside an input folder, such as ".html" for a report beside
  /// its figures; empty: none, since a folder that is read stays as it is.
  std::string replaceable = {};
};

/// Throws UsageError if writing `outputs` would destroy what the same command reads: an output that
/// is an input, or a folder around it, or lies inside an input folder; and if two outputs are one
/// path. Links are followed. Inputs that do not exist are left to their readers.
void refuse_to_overwrite(std::span<const OutputPath> outputs,
                         const std::vector<std::string>& inputs);

/// For a file that is about to be written: throws UsageError if a folder has its name, or, unless
/// `force`, a file: "<path>: exists already; …"; and FileError if the name is too long for the file
/// that is made first (AtomicFile). Devices are left to the writer.
void require_free_file_name(const std::string& path, bool force);

/// For a folder that is about to be written: throws FileError if the name is too long for the
/// folder that it is made in (NewFolder), and UsageError if something has its name, unless
/// `force`. Even then only a folder may go, since it goes as a whole, that is empty or holds a file
/// with one of the names `marks`; `what` it is then, for the message: "model folder".
void require_free_folder_name(const std::string& path, bool force, std::string_view what,
                              std::initializer_list<std::string_view> marks);

}  // namespace assay
