#pragma once

#include <gtest/gtest.h>

#include <string>

#include "convert/core/isa.h"

namespace assay::test {

/// Runs `body` once with each instruction set that this machine has.
template <typename Body>
void with_every_isa(Body body) {
  const Isa before = active_isa();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    SCOPED_TRACE(std::string(isa_name(isa)));
    force_isa(isa);
    body();
  }
  force_isa(before);
}

}  // namespace assay::test
