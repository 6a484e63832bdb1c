#pragma once

#include <cstdint>

namespace assay {

/// Bytes per second that all worker threads together read from host memory: the best of several
/// passes over a buffer of `bytes` (several times the last-level cache), each thread its own share.
/// The bound that `bench` measures decoding against. Takes about a second.
double host_read_bandwidth(uint64_t bytes = uint64_t{256} << 20);

}  // namespace assay
