#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/units.h"
#include "runtime/executor.h"

namespace assay {

/// Memory that this process could still take: MemAvailable of the system, or what its control group
/// (container) leaves if that is less. Empty if the system does not say.
std::optional<uint64_t> available_host_memory();

/// Throws ResourceError with the largest items and a smaller setting if they sum to more than
/// `available` (case B75). `what`: "model.gguf on cpu".
void require_memory(const std::vector<LedgerItem>& items, uint64_t available,
                    const std::string& what);

/// Makes freed blocks of a mebibyte or more go back to the system at once, for the whole process.
/// By default the allocator raises that limit with each one that is freed, up to 32 MiB, and keeps
/// what lies between blocks that are still in use: up to a third of the peak of a run whose
/// activations go to disk and back. Costs up to a tenth of such a run's time.
void return_freed_blocks();

}  // namespace assay
