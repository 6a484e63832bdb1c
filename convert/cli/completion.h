#pragma once

#include <span>
#include <string>
#include <vector>

#include "convert/cli/command.h"

namespace assay::cli {

struct Candidate {
  std::string word;
  std::string description;  // one line, may be empty
};

/// What the last word, typed in part, may become. `words` follow the program's name. No candidates
/// means that the shell should offer files. Never throws for what a user may have typed.
std::vector<Candidate> complete(const std::vector<std::string>& words,
                                std::span<const Command* const> commands);

/// The function that a shell needs; it asks `assay __complete` for candidates. `shell` is bash, zsh
/// or fish.
std::string completion_script(std::string_view shell);

}  // namespace assay::cli
