#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace assay {

// A file that becomes shorter while it is mapped, or whose disk fails, ends a program that reads it
// by SIGBUS. With the guard installed, zeros take the place of the bytes that are gone, the reader
// goes on, and nothing is published: whoever gives a result its name calls
// require_whole_mappings() first.

/// Takes over SIGBUS; to be called once, by the program.
void install_mapping_guard();

/// Throws FileError that names the first mapped file of which bytes were lost, if there is one.
void require_whole_mappings();

struct GuardedMapping;

/// Called for every file that is mapped, and before it is unmapped.
GuardedMapping* guard_mapping(std::span<const std::byte> bytes, const std::string& path);
void forget_mapping(GuardedMapping* mapping);

}  // namespace assay
