#pragma once

#include <cstdint>
#include <functional>

namespace assay {

/// Sets the number of worker threads of every later parallel_for; 0 = all cores that this process
/// may use. Results never depend on it.
void set_n_threads(int n_threads);
int n_threads();

/// Calls body(begin, end) for disjoint ranges that cover [0, n), each at most `grain` long. Ranges
/// may run in any order on any thread, so bodies write to disjoint places. The first exception
/// thrown by a body is rethrown here, after all others ended. Calls must not be nested.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

/// The same for code that bodies of parallel_for call, too: there the ranges run one after another
/// on the calling thread.
void parallel_for_anywhere(int64_t n, int64_t grain,
                           const std::function<void(int64_t, int64_t)>& body);

}  // namespace assay
