// The ring of the step kernel by itself, for compute-sanitizer: a producer fills slots in shared
// memory with bulk copies, a consumer warp reads them, and two barriers in shared memory per slot
// (mbarrier) keep the order. Checks every sum.
//
//   compute-sanitizer --tool racecheck racecheck_probe_cuda [--all-arrive | --unordered]
//
// As in the step kernel, one lane tells the producer that its warp has read a slot, after
// __syncwarp. --all-arrive: every lane does. --unordered leaves out the wait for the copy: a real
// hazard, for comparison.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kSlots = 3;
constexpr int kSlotBytes = 4096;
constexpr int kPieces = 64;

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

__device__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}

__global__ void ring_kernel(const uint4* from, uint32_t* sums, bool ordered, int arrivals) {
  __shared__ __align__(128) uint8_t slots[kSlots][kSlotBytes];
  __shared__ uint64_t full[kSlots], empty[kSlots];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0)
    for (int i = 0; i < kSlots; ++i) {
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + i)) : "memory");
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(empty + i)),
                   "r"(arrivals)
                   : "memory");
    }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (warp == 1) {
    if (lane != 0) return;
    for (int piece = 0; piece < kPieces; ++piece) {
      const int slot = piece % kSlots, lap = piece / kSlots;
      if (lap > 0) wait(shared_address(empty + slot), (lap - 1) & 1);
      asm volatile(
          "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(full + slot)),
          "r"(kSlotBytes)
          : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(shared_address(slots[slot])),
          "l"(from + piece * (kSlotBytes / 16)), "r"(kSlotBytes), "r"(shared_address(full + slot))
          : "memory");
    }
    return;
  }
  for (int piece = 0; piece < kPieces; ++piece) {
    const int slot = piece % kSlots, lap = piece / kSlots;
    if (ordered) wait(shared_address(full + slot), lap & 1);
    uint32_t sum = 0;
    for (int i = lane; i < kSlotBytes / 16; i += 32) {
      const uint4 v = reinterpret_cast<const uint4*>(slots[slot])[i];
      sum += v.x + v.y + v.z + v.w;
    }
    sums[piece * 32 + lane] = sum;
    __syncwarp();
    if (lane < arrivals)
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(empty + slot))
                   : "memory");
  }
  // The last copies must not outlive the thread block.
  if (!ordered)
    for (int piece = kPieces - kSlots; piece < kPieces; ++piece)
      wait(shared_address(full + piece % kSlots), piece / kSlots & 1);
}

#else

__global__ void ring_kernel(const uint4*, uint32_t*, bool, int) {}

#endif

bool succeeded(cudaError_t status) {
  if (status != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  return status == cudaSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc < 2 ? "" : argv[1];
  const bool ordered = way != "--unordered";
  const int arrivals = way == "--all-arrive" ? 32 : 1;
  std::vector<uint32_t> words(kPieces * kSlotBytes / 4), sums(kPieces * 32);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(i) * 2654435761u;
  uint4* from = nullptr;
  uint32_t* device_sums = nullptr;
  if (!succeeded(cudaMalloc(&from, words.size() * 4)) ||
      !succeeded(cudaMalloc(&device_sums, sums.size() * 4)) ||
      !succeeded(cudaMemcpy(from, words.data(), words.size() * 4, cudaMemcpyHostToDevice)))
    return 5;
  ring_kernel<<<1, 64>>>(from, device_sums, ordered, arrivals);
  if (!succeeded(cudaGetLastError()) ||
      !succeeded(cudaMemcpy(sums.data(), device_sums, sums.size() * 4, cudaMemcpyDeviceToHost)))
    return 5;
  int n_wrong = 0;
  for (int piece = 0; piece < kPieces; ++piece)
    for (int lane = 0; lane < 32; ++lane) {
      uint32_t sum = 0;
      for (int i = lane; i < kSlotBytes / 16; i += 32)
        for (int k = 0; k < 4; ++k)
          sum += words[static_cast<size_t>(piece * (kSlotBytes / 4) + i * 4 + k)];
      n_wrong += sums[static_cast<size_t>(piece * 32 + lane)] == sum ? 0 : 1;
    }
  std::printf("%d of %d sums differ\n", n_wrong, kPieces * 32);
  return ordered && n_wrong != 0 ? 1 : 0;
}
