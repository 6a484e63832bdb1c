#pragma once

#include <span>
#include <string>
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

}  // namespace assay
