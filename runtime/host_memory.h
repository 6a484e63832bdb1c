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

}  // namespace assay
