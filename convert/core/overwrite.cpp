#include "convert/core/overwrite.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "convert/core/error.h"
#include "convert/core/file.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// Absolute, links followed as far as the path exists, without a slash at its end.
fs::path real_path(const std::string& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) real = fs::path(path).lexically_normal();
  return real.has_filename() ? real : real.parent_path();
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != ".." && *relative.begin() != ".";
}

void compare(const OutputPath& output, const std::string& input) {
  std::error_code error;
  if (!fs::exists(input, error)) return;
  const fs::path to = real_path(output.path), from = real_path(input);
  const std::string begin = output.option + " " + output.path + ": ";
  if (to == from) {
    throw UsageError(begin + "is an input of this command and would be lost; choose another name");
  }
  if (lies_in(from, to)) {
    throw UsageError(begin + "holds the input " + input +
                     ", which would be lost; choose another name");
  }
  if (!lies_in(to, from)) return;
  if (!output.replaceable.empty() && to.string().ends_with(output.replaceable)) return;
  throw UsageError(begin + "lies in the input folder " + input +
                   ", which stays as it is; choose a place outside of it");
}

[[noreturn]] void exists_already(const std::string& path) {
  throw UsageError(path + ": exists already; choose another name or replace it with --force");
}

}  // namespace

void refuse_to_overwrite(std::span<const OutputPath> outputs,
                         const std::vector<std::string>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const std::string& input : inputs) compare(outputs[i], input);
    for (size_t other = 0; other < i; ++other) {
      const fs::path to = real_path(outputs[i].path);
      std::error_code error;
      const bool holds_nothing = fs::exists(to, error) && fs::is_other(to, error);  // /dev/null
      if (holds_nothing || to != real_path(outputs[other].path)) continue;
      throw UsageError(outputs[other].option + " and " + outputs[i].option + " are both " +
                       outputs[i].path + "; give each a name of its own");
    }
  }
}

void require_free_file_name(const std::string& path, bool force) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) {
    throw UsageError(path + ": is a folder; expected the name of a file to write");
  }
  if (!force && file_exists(path) && !fs::is_other(status)) exists_already(path);
  file_exists(path + ".partial");
}

void require_free_folder_name(const std::string& path, bool force, std::string_view what,
                              std::initializer_list<std::string_view> marks) {
  file_exists(path + ".partial");
  if (!file_exists(path)) return;
  if (!force) exists_already(path);
  std::error_code error;
  if (!fs::exists(path, error)) return;  // a link to what is not there
  const bool is_one =
      fs::is_directory(path) &&
      (fs::is_empty(path) || std::any_of(marks.begin(), marks.end(), [&](std::string_view name) {
         return file_exists(path + "/" + std::string(name));
       }));
  if (is_one) return;
  throw UsageError(path + ": is no " + std::string(what) +
                   ", and would be lost as a whole; choose another name");
}

}  // namespace assay
