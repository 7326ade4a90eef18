#ifndef JAX_CXL_ENGINE_CUDA_DEVICE_MEMORY_CUH_
#define JAX_CXL_ENGINE_CUDA_DEVICE_MEMORY_CUH_

#include <cstddef>
#include <cstdint>

// The device's loads, stores and fences for the protocol.
namespace jax_cxl::cuda {

// Loads and stores of doorbells. The whole system sees the stores, and the
// loads see the stores of the whole system.
__device__ __forceinline__ uint64_t LoadWord(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(word)
               : "memory");
  return value;
}

// Loads a doorbell. All that the word's writer did before it stored the word is
// visible to this thread afterwards.
__device__ __forceinline__ uint64_t AcquireWord(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(word)
               : "memory");
  return value;
}

__device__ __forceinline__ void StoreWord(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value)
               : "memory");
}

__device__ __forceinline__ void FenceSystem() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// Loads payload from a slot, and never from this device's first-level cache,
// which does not notice writes of peers. `address` is a multiple of 16.
__device__ __forceinline__ uint4 LoadSlot(const std::byte* address) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// Stores 16 bytes with a single store, which the compiler does not delay.
__device__ __forceinline__ void StoreVolatile(std::byte* address, uint4 v) {
  asm volatile(
      "st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

__device__ __forceinline__ void StoreSlot(std::byte* address, uint4 v) {
  *reinterpret_cast<uint4*>(address) = v;
}

// The rare cases of LoadLocal and StoreLocal. They are inlined, because a
// function call would save the registers that receive the loads of the common
// case. Saving them would wait for these loads.
__device__ __forceinline__ uint4 LoadUnaligned(const std::byte* address,
                                               uint32_t valid) {
  uint64_t low = 0, high = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < 16 && i < valid; ++i) {
    const auto byte = static_cast<uint64_t>(address[i]);
    if (i < 8)
      low |= byte << (8 * i);
    else
      high |= byte << (8 * (i - 8));
  }
  return make_uint4(
      static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
      static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32));
}

__device__ __forceinline__ void StoreUnaligned(std::byte* address, uint4 v,
                                               uint32_t valid) {
  const uint64_t low = uint64_t{v.y} << 32 | v.x;
  const uint64_t high = uint64_t{v.w} << 32 | v.z;
#pragma unroll 1
  for (uint32_t i = 0; i < 16 && i < valid; ++i)
    address[i] =
        static_cast<std::byte>(i < 8 ? low >> (8 * i) : high >> (8 * (i - 8)));
}

// Loads 16 bytes of the device's own memory, of which only the first `valid`
// bytes matter. The address may have any alignment.
__device__ __forceinline__ uint4 LoadLocal(const std::byte* address,
                                           uint64_t valid) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (valid >= 16 && at % 16 == 0)
    return *reinterpret_cast<const uint4*>(address);
  if (valid >= 16 && at % 4 == 0) {
    const auto* words = reinterpret_cast<const uint32_t*>(address);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  return LoadUnaligned(address, valid < 16 ? static_cast<uint32_t>(valid) : 16);
}

__device__ __forceinline__ void StoreLocal(std::byte* address, uint4 v,
                                           uint64_t valid) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (valid >= 16 && at % 16 == 0) {
    *reinterpret_cast<uint4*>(address) = v;
  } else if (valid >= 16 && at % 4 == 0) {
    auto* words = reinterpret_cast<uint32_t*>(address);
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
  } else {
    StoreUnaligned(address, v, valid < 16 ? static_cast<uint32_t>(valid) : 16);
  }
}

// Words in shared memory by which the warps of a block synchronize. A warp that
// has loaded a value sees all that the storing warp did before. The functions
// use atomic operations, so that race detectors recognize them.
__device__ __forceinline__ void StoreReleaseBlock(uint32_t* word,
                                                  uint32_t value) {
  __threadfence_block();
  atomicExch(word, value);
}

__device__ __forceinline__ uint32_t LoadAcquireBlock(uint32_t* word) {
  const uint32_t value = atomicOr(word, 0);
  __threadfence_block();
  return value;
}

__device__ __forceinline__ uint64_t NowNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_DEVICE_MEMORY_CUH_
