#include "convert/core/mapping_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "convert/core/error.h"

namespace assay {

/// A mapped file. Nodes are never freed and their `next` never changes, so that the signal handler
/// can go through them without a lock; those of unmapped files are used again.
struct GuardedMapping {
  std::atomic<uintptr_t> begin = 0;  // 0: free
  std::atomic<size_t> size = 0;
  std::string path;
  GuardedMapping* next = nullptr;
};

namespace {

using Mapping = GuardedMapping;

std::atomic<Mapping*> g_mappings = nullptr;
std::mutex g_mutex;  // of those who change the list, and of the next

std::vector<Mapping*>& free_mappings() {
  static auto* const list = new std::vector<Mapping*>;  // used until the process ends
  return *list;
}

// The first loss.
std::atomic<const Mapping*> g_lost = nullptr;
std::atomic<uint64_t> g_lost_offset = 0;
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // used in a signal handler

extern "C" void handle_bus_error(int signal_number, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping* mapping = g_mappings.load(); mapping != nullptr; mapping = mapping->next) {
    const uintptr_t begin = mapping->begin.load(), end = begin + mapping->size.load();
    if (begin == 0 || at < begin || at >= end) continue;
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    void* const first = static_cast<std::byte*>(info->si_addr) - at % page;
    if (::mmap(first, end - (at - at % page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0) != first) {
      break;
    }
    const Mapping* none = nullptr;
    if (g_lost.load() == nullptr) g_lost_offset.store(at - begin);
    g_lost.compare_exchange_strong(none, mapping);
    return;
  }
  std::signal(signal_number, SIG_DFL);  // not ours: the same instruction ends the process
}

}  // namespace

void install_mapping_guard() {
  struct sigaction action {};
  action.sa_sigaction = handle_bus_error;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void require_whole_mappings() {
  const Mapping* const lost = g_lost.load();
  if (lost == nullptr) return;
  throw FileError(lost->path + ": the bytes from " + std::to_string(g_lost_offset.load()) +
                  " on are gone: the file became shorter while it was read, or its disk failed; "
                  "run again when it stays as it is");
}

Mapping* guard_mapping(std::span<const std::byte> bytes, const std::string& path) {
  const std::lock_guard lock(g_mutex);
  Mapping* mapping = nullptr;
  if (!free_mappings().empty()) {
    mapping = free_mappings().back();
    free_mappings().pop_back();
  } else {
    mapping = new Mapping;
    mapping->next = g_mappings.load();
    g_mappings.store(mapping);
  }
  mapping->path = path;
  mapping->size.store(bytes.size());
  mapping->begin.store(reinterpret_cast<uintptr_t>(bytes.data()));
  return mapping;
}

void forget_mapping(Mapping* mapping) {
  const std::lock_guard lock(g_mutex);
  mapping->begin.store(0);
  if (mapping != g_lost.load()) free_mappings().push_back(mapping);  // the lost one keeps its path
}

}  // namespace assay
