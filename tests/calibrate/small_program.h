#pragma once

#include <cstdint>

#include "runtime/cpu_executor.h"
#include "runtime/program.h"

namespace assay::test {

/// A Llama of a few columns with random weights, all in memory: what a walk needs but the
/// embedding.
struct SmallModel {
  Program program;
  CpuWeights weights;  // bf16 weights of every linear
};

/// hidden 64, 2 heads of 32 over 1 key head, intermediate 96, `n_layers` layers.
SmallModel make_small_model(int n_layers, uint64_t seed);

}  // namespace assay::test
