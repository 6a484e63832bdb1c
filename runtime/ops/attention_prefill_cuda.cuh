#pragma once

#include <algorithm>

#include "runtime/device/cuda_support.h"
#include "runtime/ops/attention_cuda.cuh"

// Attention of many queries at a time, for heads of 64 and 128 dimensions. A thread keeps a tile of
// 4 × 8 scores in registers, and one of 8 × 4 outputs: what it reads from shared memory serves
// several of them. Lane sums are folded in the thread that computes them: as the lanes of a score
// lie in the order of the folds, few of them are open at a time.

namespace assay::cuda {

inline constexpr int kTileThreads = 128;
inline constexpr int kTileWarps = kTileThreads / 32;
inline constexpr int kChunkKeys = kSegmentKeys / 2;  // rows in shared memory at a time
inline constexpr int kTilePass = 32;                 // queries whose scores are under way

__host__ __device__ constexpr int reversed_4_bits(int x) {
  return (x & 1) << 3 | (x & 2) << 1 | (x & 4) >> 1 | (x & 8) >> 3;
}

/// Where the elements of a lane lie in a row of queries or keys. The lanes of one parity, those
/// that meet in the last fold, belong to one thread (its side); among them, lane l comes at leaf s
/// = the bits of l / 2 reversed, so that leaves 2i and 2i + 1 meet in the first fold, 4i … 4i + 3
/// after the second. 16-byte units of both sides alternate.
template <int kHeadDim>
struct FoldOrder {
  static constexpr int kPerLane = kHeadDim / 32;
  static constexpr int kUnitLeaves = 4 / kPerLane;
  static_assert(kPerLane == 2 || kPerLane == 4);

  static __host__ __device__ constexpr int position(int lane) {
    const int leaf = reversed_4_bits(lane / 2), side = lane & 1;
    return (leaf / kUnitLeaves * 2 + side) * 4 + leaf % kUnitLeaves * kPerLane;
  }
};

template <CacheType kType, int kHeadDim>
struct alignas(16) TileMemory {
  using T = typename Element<kType>::Type;
  static constexpr int kQueries = kHeadDim == 64 ? 64 : 32;
  static constexpr int kRow = kHeadDim + 8;  // of threads side by side in different banks
  static constexpr int kScoreRow = kSegmentKeys + 16;
  static constexpr int kRowUnits = kHeadDim * static_cast<int>(sizeof(T)) / 16;

  float queries[kQueries * kRow];      // rotated, in fold order
  float rows[kChunkKeys * kRow];       // keys in fold order, or values
  float scores[kQueries * kScoreRow];  // then exp(score − m)
  uint4 raw[kChunkKeys * kRowUnits];   // the next rows as they lie in the cache
  float4 merge[kQueries];              // factors of the sums so far and of the segment; way
  float maxima[kQueries], sums[kQueries];
  float segment_maxima[kQueries], segment_sums[kQueries];
  int positions[kQueries];
};

enum class MergeWay : int { kSkip, kFirst, kAdd };

/// Starts the copy of `n_rows` rows of the cache, at most kChunkKeys.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void fetch_rows(TileMemory<kType, kHeadDim>& memory,
                                           const typename Element<kType>::Type* from, int n_rows) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(memory.raw));
  const int n_units = min(n_rows, kChunkKeys) * TileMemory<kType, kHeadDim>::kRowUnits;
  for (int i = static_cast<int>(threadIdx.x); i < n_units; i += kTileThreads)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * 16),
                 "l"(reinterpret_cast<const uint4*>(from) + i)
                 : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Widens the rows that came to memory.rows, rows from n_rows on as zeros: keys in fold order,
/// values as they are. Waits for the copy, and for all threads before and after.
template <bool kKeys, CacheType kType, int kHeadDim>
__device__ __forceinline__ void place_rows(TileMemory<kType, kHeadDim>& memory, int n_rows) {
  using E = Element<kType>;
  using Memory = TileMemory<kType, kHeadDim>;
  using Order = FoldOrder<kHeadDim>;
  constexpr int kElements = 16 / static_cast<int>(sizeof(typename E::Type)),
                kUnits = Memory::kRowUnits;
  constexpr int kWidth = kKeys ? Order::kPerLane : 4, kParts = kElements / kWidth;
  // Threads side by side take units whose leaves are neighbours: other banks.
  const int x = static_cast<int>(threadIdx.x) % kUnits;
  const int unit = !kKeys         ? x
                   : kUnits == 8  ? reversed_4_bits(x) / 2
                   : kUnits == 16 ? reversed_4_bits(x)
                                  : reversed_4_bits(x / 2) * 2 + x % 2;
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kChunkKeys * kUnits / kTileThreads; ++k) {
    const int row = static_cast<int>(threadIdx.x) / kUnits + k * (kTileThreads / kUnits);
    uint4 words = make_uint4(0, 0, 0, 0);
    if (row < n_rows) words = memory.raw[row * kUnits + unit];
    typename E::Type elements[kElements];
    memcpy(elements, &words, 16);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float* to = memory.rows + row * Memory::kRow +
                  (kKeys ? Order::position(unit * kParts + part) : unit * kElements + part * 4);
      const auto value = [&](int i) { return E::widen(elements[part * kWidth + i]); };
      if constexpr (kWidth == 4)
        *reinterpret_cast<float4*>(to) = make_float4(value(0), value(1), value(2), value(3));
      else
        *reinterpret_cast<float2*>(to) = make_float2(value(0), value(1));
    }
  }
  __syncthreads();
}

/// Folded sums of 2^kLevel leaves, from leaf kFirst on, for 4 queries by 8 keys.
template <int kLevel, int kFirst, int kHeadDim, int kRow>
__device__ __forceinline__ void fold_leaves(const float* q, const float* k, float (&sums)[4][8]) {
  using Order = FoldOrder<kHeadDim>;
  if constexpr (kLevel > 0 && (1 << kLevel) > Order::kUnitLeaves) {
    constexpr int kHalf = 1 << (kLevel - 1);
    float others[4][8];
    fold_leaves<kLevel - 1, kFirst, kHeadDim, kRow>(q, k, sums);
    fold_leaves<kLevel - 1, kFirst + kHalf, kHeadDim, kRow>(q, k, others);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = __fadd_rn(sums[i][j], others[i][j]);
  } else {
    static_assert((1 << kLevel) == Order::kUnitLeaves);
    constexpr int kAt = kFirst / Order::kUnitLeaves * 8;
    float4 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(q + i * 8 * kRow + kAt);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 b = *reinterpret_cast<const float4*>(k + j * 8 * kRow + kAt);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = __fmaf_rn(a[i].y, b.y, __fmaf_rn(a[i].x, b.x, 0.0f));
        if constexpr (Order::kUnitLeaves == 1)
          sum = __fmaf_rn(a[i].w, b.w, __fmaf_rn(a[i].z, b.z, sum));
        else
          sum = __fadd_rn(sum, __fmaf_rn(a[i].w, b.w, __fmaf_rn(a[i].z, b.z, 0.0f)));
        sums[i][j] = sum;
      }
    }
  }
}

/// Scores of the chunk's keys for all queries. Two threads share a tile of 4 queries by 8 keys, one
/// for each side of the lanes; both then hold half of it. `base` is the position of the chunk's
/// first key; `all_visible`: to all queries.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void tile_scores(const AttentionArguments& a,
                                            TileMemory<kType, kHeadDim>& memory, int chunk,
                                            int base, bool all_visible) {
  using Memory = TileMemory<kType, kHeadDim>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int key = (lane & 1) | ((lane >> 2) & 6), side = lane >> 2 & 1;
  const int query = (lane >> 1 & 1) | warp << 1;
  const float* k = memory.rows + key * Memory::kRow + side * 4;
#pragma unroll 1
  for (int pass = 0; pass < Memory::kQueries; pass += kTilePass) {
    const float* q = memory.queries + (pass + query) * Memory::kRow + side * 4;
    float sums[4][8];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      float part[4][8];
      const int at = half * kHeadDim / 2;
      fold_leaves<3, 0, kHeadDim, Memory::kRow>(q + at, k + at, part);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          sums[i][j] = half == 0 ? part[i][j] : __fadd_rn(sums[i][j], part[i][j]);
    }
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = pass + query + 8 * i;
      const int position = all_visible ? 0 : memory.positions[own];
      const int first = a.window > 0 ? max(0, position - a.window + 1) : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float keep = side == 0 ? sums[i][2 * j] : sums[i][2 * j + 1];
        const float send = side == 0 ? sums[i][2 * j + 1] : sums[i][2 * j];
        const float dot = __fadd_rn(keep, __shfl_xor_sync(0xffffffffu, send, 4));
        float score = __fmul_rn(dot, a.scale);
        const int own_key = key + 8 * (2 * j + side), at = base + own_key;
        if (all_visible || (at >= first && at <= position))
          largest = max(largest, __float_as_uint(score) & 0x7fffffffu);
        else
          score = __uint_as_float(0xff800000u);
        memory.scores[own * Memory::kScoreRow + chunk * kChunkKeys + own_key] = score;
      }
    }
    if (largest >= 0x7f800000u)
      report_fault(a.fault, a.fault_op, base + key, __uint_as_float(largest));
  }
}

/// Scores to exp(score − m), m and l of the segment, and how they join those before: a warp for the
/// same queries each time. Scores are there for `n_keys` keys.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void tile_softmax(TileMemory<kType, kHeadDim>& memory, int n_keys) {
  using Memory = TileMemory<kType, kHeadDim>;
  constexpr int kOwn = Memory::kQueries / kTileWarps, kBatch = 4;
  const float kNone = __uint_as_float(0xff800000u);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int first = warp * kOwn; first < (warp + 1) * kOwn; first += kBatch) {
    float* scores = memory.scores + first * Memory::kScoreRow + lane;
    float p[kBatch][4], m[kBatch], l[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int block = 0; block < 4; ++block)
        p[i][block] = block * 32 < n_keys ? scores[i * Memory::kScoreRow + block * 32] : kNone;
      m[i] = fmaxf(fmaxf(p[i][0], p[i][1]), fmaxf(p[i][2], p[i][3]));
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1)
#pragma unroll
      for (int i = 0; i < kBatch; ++i) m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], mask));
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      l[i] = 0.0f;
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        p[i][block] = exp_canonical(__fsub_rn(p[i][block], m[i]));
        l[i] = __fadd_rn(l[i], p[i][block]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
#pragma unroll
      for (int block = 0; block < 4; ++block)
        if (block * 32 < n_keys) scores[i * Memory::kScoreRow + block * 32] = p[i][block];
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1)
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        l[i] = __fadd_rn(l[i], __shfl_xor_sync(0xffffffffu, l[i], mask));
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        memory.segment_maxima[first + i] = m[i];
        memory.segment_sums[first + i] = l[i];
      }
    }
  }
  __syncwarp();
  if (lane >= kOwn) return;
  const int query = warp * kOwn + lane;
  const float m_segment = memory.segment_maxima[query], l_segment = memory.segment_sums[query];
  const float m = memory.maxima[query], l = memory.sums[query];
  float x = 0.0f, y = 0.0f;
  MergeWay way = MergeWay::kSkip;  // no key is visible
  if (m_segment != kNone) {
    way = m == kNone ? MergeWay::kFirst : MergeWay::kAdd;
    const float top = fmaxf(m, m_segment);
    x = exp_canonical(__fsub_rn(m, top));
    y = exp_canonical(__fsub_rn(m_segment, top));
    memory.maxima[query] = top;
    memory.sums[query] =
        way == MergeWay::kFirst ? l_segment : __fadd_rn(__fmul_rn(l, x), __fmul_rn(l_segment, y));
  }
  memory.merge[query] = make_float4(x, y, __int_as_float(static_cast<int>(way)), 0.0f);
}

/// The outputs of one thread: 8 queries by 4 dimensions.
template <int kHeadDim>
struct OutputTile {
  static constexpr int kQueryGroups = kTileThreads * 4 / kHeadDim;

  int query, dim;  // first of both; the queries are kQueryGroups apart

  __device__ OutputTile() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kWarpGroups = kQueryGroups / 2;  // warps side by side in queries
    query = (lane & 1) + warp % kWarpGroups * 2;
    dim = (lane / 2 + warp / kWarpGroups * 16) * 4;
  }
};

/// Adds p·v of keys [first, last), multiples of 4, of the chunk to the segment's outputs: a chain
/// over ascending keys each. kChecked: a key counts only up to the query's position.
template <bool kChecked, CacheType kType, int kHeadDim>
__device__ __forceinline__ void add_values(const TileMemory<kType, kHeadDim>& memory,
                                           const OutputTile<kHeadDim>& tile, int chunk, int base,
                                           int first, int last, float (&o)[8][4]) {
  using Memory = TileMemory<kType, kHeadDim>;
  constexpr int kStep = OutputTile<kHeadDim>::kQueryGroups * Memory::kScoreRow;
  const float* p = memory.scores + tile.query * Memory::kScoreRow + chunk * kChunkKeys;
  const float* v = memory.rows + tile.dim;
#pragma unroll 1
  for (int key = first; key < last; key += 4) {
    float4 weights[8], values[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      values[j] = *reinterpret_cast<const float4*>(v + (key + j) * Memory::kRow);
#pragma unroll
    for (int i = 0; i < 8; ++i) weights[i] = *reinterpret_cast<const float4*>(p + i * kStep + key);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4& w = weights[i];
        const float weight = j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w;
        if (kChecked &&
            base + key + j > memory.positions[tile.query + i * OutputTile<kHeadDim>::kQueryGroups])
          continue;
        o[i][0] = __fmaf_rn(weight, values[j].x, o[i][0]);
        o[i][1] = __fmaf_rn(weight, values[j].y, o[i][1]);
        o[i][2] = __fmaf_rn(weight, values[j].z, o[i][2]);
        o[i][3] = __fmaf_rn(weight, values[j].w, o[i][3]);
      }
  }
}

/// How the queries of a batch are dealt to thread blocks: tokens of a tile and heads of one KV
/// head.
struct TileShape {
  int tokens;       // at most, of one tile
  int heads;        // at most, of one thread block
  int head_blocks;  // thread blocks that share a KV head
};

/// What one thread block has of it: tokens [begin, end), heads [first_head, first_head + n_heads).
struct BlockTile {
  int begin, end, kv_head, first_head, n_heads;

  __device__ BlockTile(const AttentionArguments& a, const TileShape& shape) {
    const int per_kv = a.n_heads / a.n_kv_heads, columns = a.n_kv_heads * shape.head_blocks;
    const int n_tiles = static_cast<int>(gridDim.x) / columns;
    const int column = static_cast<int>(blockIdx.x) % columns;
    kv_head = column / shape.head_blocks;
    const int own = column % shape.head_blocks * shape.heads;
    first_head = kv_head * per_kv + own;
    n_heads = min(shape.heads, per_kv - own);
    // The last tokens see most keys: they begin first.
    begin = (n_tiles - 1 - static_cast<int>(blockIdx.x) / columns) * shape.tokens;
    end = min(begin + shape.tokens, a.tokens);
  }
};

/// End of the run of consecutive positions of one sequence that starts at token `begin`: the tokens
/// of a tile may belong to several.
__device__ __forceinline__ int run_end(const AttentionArguments& a, int begin, int tile_end) {
  int end = begin + 1;
  while (end < tile_end && a.sequences[end] == a.sequences[begin] &&
         a.positions[end] == a.positions[end - 1] + 1)
    ++end;
  return end;
}

/// Consecutive tokens of one sequence, [begin, end), of a tile. Query i is token begin + i /
/// n_heads, head first_head + i % n_heads.
template <CacheType kType, int kHeadDim>
__device__ __forceinline__ void attend_tile(const AttentionArguments& a,
                                            TileMemory<kType, kHeadDim>& memory,
                                            const BlockTile& block, int begin, int end) {
  using Memory = TileMemory<kType, kHeadDim>;
  using T = typename Element<kType>::Type;
  constexpr int kQueryGroups = OutputTile<kHeadDim>::kQueryGroups;
  const int n_heads = block.n_heads, n_queries = (end - begin) * n_heads;
  const int first_position = a.positions[begin], last_position = a.positions[end - 1];
  const int first_key = a.window > 0 ? max(0, first_position - a.window + 1) : 0;
  const size_t cache = (static_cast<size_t>(a.sequences[begin]) * a.n_kv_heads + block.kv_head) *
                       static_cast<size_t>(a.capacity) * kHeadDim;
  const T* keys = static_cast<const T*>(a.keys) + cache;
  const T* values = static_cast<const T*>(a.values) + cache;
  const int first_segment = first_key / kSegmentKeys, last_segment = last_position / kSegmentKeys;
  const auto rows_of = [&](int segment) {
    return min(kSegmentKeys, last_position - segment * kSegmentKeys + 1);
  };

  __syncthreads();  // the tile before is done
  const size_t start = static_cast<size_t>(first_segment) * kSegmentKeys * kHeadDim;
  fetch_rows(memory, keys + start, rows_of(first_segment));
  for (int i = static_cast<int>(threadIdx.x); i < Memory::kQueries * kHeadDim; i += kTileThreads) {
    const int query = i / kHeadDim, dim = i % kHeadDim;
    const int token = begin + query / n_heads, head = block.first_head + query % n_heads;
    memory.queries[query * Memory::kRow + FoldOrder<kHeadDim>::position(dim % 32) + dim / 32] =
        query < n_queries
            ? rotated(a, a.qkv + static_cast<size_t>(token) * a.qkv_stride + head * kHeadDim, dim,
                      a.positions[token])
            : 0.0f;
  }
  for (int i = static_cast<int>(threadIdx.x); i < Memory::kQueries; i += kTileThreads) {
    memory.positions[i] = first_position + min(i, n_queries - 1) / n_heads;
    memory.maxima[i] = __uint_as_float(0xff800000u);
    memory.sums[i] = 0.0f;
  }

  const OutputTile<kHeadDim> tile;
  float o[8][4] = {};
#pragma unroll 1
  for (int segment = first_segment; segment <= last_segment; ++segment) {
    const int base = segment * kSegmentKeys, n_rows = rows_of(segment);
    const int n_chunks = (n_rows + kChunkKeys - 1) / kChunkKeys;
    const size_t at = static_cast<size_t>(base) * kHeadDim;
    constexpr int kChunk = kChunkKeys * kHeadDim;
    const bool all_visible = base + kSegmentKeys - 1 <= first_position &&
                             (a.window == 0 || base > last_position - a.window);
#pragma unroll 1
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      place_rows<true>(memory, n_rows - chunk * kChunkKeys);
      if (chunk + 1 < n_chunks)
        fetch_rows(memory, keys + at + kChunk, n_rows - kChunkKeys);
      else
        fetch_rows(memory, values + at, n_rows);
      tile_scores(a, memory, chunk, base + chunk * kChunkKeys, all_visible);
    }
    __syncthreads();
    tile_softmax(memory, n_chunks * kChunkKeys);

    float segment_o[8][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const int n_here = min(kChunkKeys, n_rows - chunk * kChunkKeys);
      const int chunk_base = base + chunk * kChunkKeys;
      place_rows<false>(memory, n_here);
      if (chunk + 1 < n_chunks)
        fetch_rows(memory, values + at + kChunk, n_rows - kChunkKeys);
      else if (segment < last_segment)
        fetch_rows(memory, keys + at + 2 * kChunk, rows_of(segment + 1));
      // Keys that all queries see; beyond them +0·v could change the sign of a zero.
      const int common = min(n_here, max(0, first_position - chunk_base + 1)) / 4 * 4;
      add_values<false>(memory, tile, chunk, chunk_base, 0, common, segment_o);
      add_values<true>(memory, tile, chunk, chunk_base, common, n_here, segment_o);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 merge = memory.merge[tile.query + i * kQueryGroups];
      const auto way = static_cast<MergeWay>(__float_as_int(merge.z));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (way == MergeWay::kFirst)
          o[i][k] = segment_o[i][k];
        else if (way == MergeWay::kAdd)
          o[i][k] = __fadd_rn(__fmul_rn(o[i][k], merge.x), __fmul_rn(segment_o[i][k], merge.y));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int query = tile.query + i * kQueryGroups;
    if (query >= n_queries) continue;
    const int token = begin + query / n_heads, head = block.first_head + query % n_heads;
    const float l = memory.sums[query];
    *reinterpret_cast<float4*>(a.out + (static_cast<size_t>(token) * a.n_heads + head) * kHeadDim +
                               tile.dim) =
        make_float4(__fdiv_rn(o[i][0], l), __fdiv_rn(o[i][1], l), __fdiv_rn(o[i][2], l),
                    __fdiv_rn(o[i][3], l));
  }
}

template <CacheType kType, int kHeadDim>
__global__ __launch_bounds__(kTileThreads,
                             2) void tile_kernel(const __grid_constant__ AttentionArguments a,
                                                 TileShape shape) {
  extern __shared__ uint4 shared_words[];
  auto& memory = *reinterpret_cast<TileMemory<kType, kHeadDim>*>(shared_words);
  const BlockTile tile(a, shape);
  for (int begin = tile.begin; begin < tile.end;) {
    const int end = run_end(a, begin, tile.end);
    attend_tile(a, memory, tile, begin, end);
    begin = end;
  }
}

/// Tiles of at most `most_queries` queries; smaller ones if the card would not be full otherwise.
inline TileShape tile_shape(const AttentionArguments& a, int most_queries) {
  const int per_kv = a.n_heads / a.n_kv_heads;
  TileShape shape{};
  shape.heads = std::min(per_kv, most_queries);
  shape.head_blocks = (per_kv + shape.heads - 1) / shape.heads;
  const int full = 2 * current_limits().multiprocessors;
  const int share = (a.tokens * a.n_kv_heads * shape.head_blocks + full - 1) / full;
  shape.tokens = std::clamp(share, 1, most_queries / shape.heads);
  return shape;
}

inline unsigned tile_grid(const AttentionArguments& a, const TileShape& shape) {
  return static_cast<unsigned>(a.n_kv_heads * shape.head_blocks *
                               ((a.tokens + shape.tokens - 1) / shape.tokens));
}

template <CacheType kType, int kHeadDim>
bool launch_tiles(const AttentionArguments& a, cudaStream_t stream) {
  using Memory = TileMemory<kType, kHeadDim>;
  constexpr int kBytes = static_cast<int>(sizeof(Memory));
  if (kBytes > current_limits().block_shared) return false;
  allow_shared(reinterpret_cast<const void*>(tile_kernel<kType, kHeadDim>), kBytes,
               "attention of a prompt");
  const TileShape shape = tile_shape(a, Memory::kQueries);
  tile_kernel<kType, kHeadDim>
      <<<tile_grid(a, shape), kTileThreads, static_cast<size_t>(kBytes), stream>>>(a, shape);
  ASSAY_CUDA(cudaGetLastError());
  return true;
}

/// Attention of a batch whose keys and values lie in the cache; false if the tiles do not have this
/// head size, or the device has too little shared memory for them. One file for each cache type.
template <CacheType kType>
bool run_tiles(const AttentionArguments& a, cudaStream_t stream) {
  switch (a.head_dim) {
    case 64:
      return launch_tiles<kType, 64>(a, stream);
    case 128:
      return launch_tiles<kType, 128>(a, stream);
    default:
      return false;
  }
}

extern template bool run_tiles<CacheType::kF16>(const AttentionArguments&, cudaStream_t);
extern template bool run_tiles<CacheType::kBF16>(const AttentionArguments&, cudaStream_t);
extern template bool run_tiles<CacheType::kF32>(const AttentionArguments&, cudaStream_t);

}  // namespace assay::cuda
