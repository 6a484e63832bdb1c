#include "runtime/host_memory.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "convert/core/error.h"

namespace assay {
namespace {

/// Value of the line that begins with `key` ("MemAvailable:"), in the unit of the file.
std::optional<uint64_t> read_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t value = 0;
    if (word == key && file >> value) return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> read_number(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // "max", or no such file
}

/// What control group v2 leaves; file pages in use can be dropped and do not count.
std::optional<uint64_t> control_group_rest() {
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return std::nullopt;
  const uint64_t droppable = read_field("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0) +
                             read_field("/sys/fs/cgroup/memory.stat", "active_file").value_or(0);
  const uint64_t held = *used > droppable ? *used - droppable : 0;
  return *limit > held ? *limit - held : 0;
}

}  // namespace

std::optional<uint64_t> available_host_memory() {
  const auto kib = read_field("/proc/meminfo", "MemAvailable:");
  const auto rest = control_group_rest();
  if (!kib) return rest;
  const uint64_t system = *kib * 1024;
  return rest ? std::min(system, *rest) : system;
}

void require_memory(const std::vector<LedgerItem>& items, uint64_t available,
                    const std::string& what) {
  uint64_t total = 0;
  for (const LedgerItem& item : items) total = checked_add(total, item.bytes, "memory estimate");
  if (total <= available) return;
  std::vector<LedgerItem> largest = items;
  std::stable_sort(largest.begin(), largest.end(),
                   [](const LedgerItem& a, const LedgerItem& b) { return a.bytes > b.bytes; });
  std::string parts;
  for (size_t i = 0; i < std::min<size_t>(3, largest.size()); ++i) {
    parts += (i == 0 ? "" : ", ") + largest[i].name + " " + bytes_text(largest[i].bytes);
  }
  const bool cache = largest.front().name == "kv cache";
  throw ResourceError(
      fmt::format("{}: needs {}, {} are available; largest: {}; try {}", what, bytes_text(total),
                  bytes_text(available), parts,
                  cache ? "a smaller --context or --kv-type f16" : "a model in a smaller format"));
}

void return_freed_blocks() { ::mallopt(M_MMAP_THRESHOLD, 1 << 20); }

}  // namespace assay
