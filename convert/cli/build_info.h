#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"

namespace assay::cli {

struct LibraryInfo {
  std::string name;
  std::string version;  // of the running library where it can say so, else of the headers
  std::string licence;  // SPDX expression
  std::string use;      // what Assay takes it for
};

/// Every library in the program, sorted by name.
std::vector<LibraryInfo> linked_libraries();

/// "GCC 12.2.0", "Clang 14.0.6".
std::string compiler_name();

/// Highest x86-64 level of this machine: "x86-64-v1" … "x86-64-v4".
std::string cpu_level();
/// "AMD EPYC 7B13", from /proc/cpuinfo; "unknown" if it does not say.
std::string cpu_name();
/// Cores that this process may use.
int n_usable_cores();

/// The commit that the program was built from, "unknown" outside a checkout. run_program sets it.
std::string_view git_id();
void set_git_id(std::string_view id);

}  // namespace assay::cli
