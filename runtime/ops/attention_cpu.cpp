#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "convert/core/dtype.h"
#include "runtime/math.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

/// Reads one row of a cache, widened exactly.
void read_row(const void* rows, KvType type, int64_t position, int head_dim, float* out) {
  const auto offset = static_cast<size_t>(position * head_dim);
  if (type == KvType::kF32) {
    std::memcpy(out, static_cast<const float*>(rows) + offset,
                static_cast<size_t>(head_dim) * sizeof(float));
    return;
  }
  const uint16_t* bits = static_cast<const uint16_t*>(rows) + offset;
  for (int i = 0; i < head_dim; ++i) {
    out[i] = type == KvType::kF16 ? f16_to_f32(bits[i]) : bf16_to_f32(bits[i]);
  }
}

/// Running or finished softmax sums: maximum m, sum l of exp(score − m), o = Σ exp(score − m)·v.
struct Partial {
  float m = 0.0f;
  float l = 0.0f;
  std::vector<float> o;  // (head_dim)
};

/// One segment: positions [first, last], at most 128 and within one segment. False if a score is
/// not finite.
bool attend_segment(const float* q, const void* keys, const void* values, KvType type,
                    int64_t first, int64_t last, int head_dim, float scale, Partial& out) {
  std::vector<float> row(static_cast<size_t>(head_dim));
  std::array<float, kAttentionSegment> p = {};  // scores, then weights, by position mod 128
  for (int64_t j = first; j <= last; ++j) {
    read_row(keys, type, j, head_dim, row.data());
    const float score = lane_dot_reference(q, row.data(), head_dim) * scale;
    if (is_not_finite(score)) return false;
    p[j % kAttentionSegment] = score;
    out.m = j == first ? score : std::max(out.m, score);
  }
  // Weights of positions that are not visible are +0: adding +0 to a lane changes no bit of it,
  // since lanes start at +0 and only get weights ≥ +0.
  std::array<float, kAttentionSegment> visible = {};
  out.o.assign(static_cast<size_t>(head_dim), 0.0f);
  for (int64_t j = first; j <= last; ++j) {
    const float weight = exp_canonical(p[j % kAttentionSegment] - out.m);
    visible[j % kAttentionSegment] = weight;
    read_row(values, type, j, head_dim, row.data());
    for (int i = 0; i < head_dim; ++i) out.o[i] = fused(weight, row[i], out.o[i]);
  }
  out.l = lane_sum_reference(visible.data(), kAttentionSegment);
  return true;
}

/// Merges a later segment into the running sums.
void merge(const Partial& segment, Partial& total) {
  const float m = std::max(total.m, segment.m);
  const float a = exp_canonical(total.m - m);
  const float b = exp_canonical(segment.m - m);
  total.m = m;
  total.l = total.l * a + segment.l * b;
  for (size_t i = 0; i < total.o.size(); ++i) total.o[i] = total.o[i] * a + segment.o[i] * b;
}

}  // namespace

bool attend_reference(const float* q, const void* keys, const void* values, KvType type,
                      int64_t first, int64_t last, int head_dim, float scale, float* out) {
  Partial total;
  for (int64_t begin = first; begin <= last;) {
    const int64_t segment_end = (begin / kAttentionSegment + 1) * kAttentionSegment;
    const int64_t end = std::min(last + 1, segment_end);
    Partial segment;
    if (!attend_segment(q, keys, values, type, begin, end - 1, head_dim, scale, segment)) {
      return false;
    }
    if (begin == first) {
      total = std::move(segment);
    } else {
      merge(segment, total);
    }
    begin = end;
  }
  bool finite = true;
  for (int i = 0; i < head_dim; ++i) {
    out[i] = total.o[i] / total.l;
    finite = finite && !is_not_finite(out[i]);
  }
  return finite;
}

int64_t attend_many(std::span<const AttentionQuery> queries, const void* keys, const void* values,
                    KvType type, int head_dim, float scale, int64_t ring) {
  if (queries.empty()) return -1;
  // Kept from call to call: fresh memory costs page faults.
  struct Space {
    std::vector<const float*> q;
    std::vector<float*> out;
    std::vector<int64_t> first, last;
    std::vector<float> workspace;
  };
  thread_local Space space;
  space.q.clear();
  space.out.clear();
  space.first.clear();
  space.last.clear();
  for (const AttentionQuery& query : queries) {
    space.q.push_back(query.q);
    space.out.push_back(query.out);
    space.first.push_back(query.first);
    space.last.push_back(query.last);
  }
  AttendCall call;
  call.q = space.q.data();
  call.out = space.out.data();
  call.first = space.first.data();
  call.last = space.last.data();
  call.n_queries = static_cast<int64_t>(queries.size());
  call.keys = keys;
  call.values = values;
  call.type = type;
  call.head_dim = head_dim;
  call.scale = scale;
  call.ring = ring;
  constexpr size_t kAlignment = 16;  // floats
  const auto size = static_cast<size_t>(attend_workspace_floats(head_dim, call.n_queries));
  if (space.workspace.size() < size + kAlignment) space.workspace.resize(size + kAlignment);
  const size_t misplaced = reinterpret_cast<uintptr_t>(space.workspace.data()) / 4 % kAlignment;
  call.workspace = space.workspace.data() + (kAlignment - misplaced) % kAlignment;
  return vector_kernels().attend(call);
}

bool attend(const float* q, const void* keys, const void* values, KvType type, int64_t first,
            int64_t last, int head_dim, float scale, float* out) {
  const AttentionQuery query{q, out, first, last};
  return attend_many(std::span(&query, 1), keys, values, type, head_dim, scale) < 0;
}

}  // namespace assay
