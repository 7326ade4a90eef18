#ifndef JAX_CXL_NCCL_INTERFACE_ABI_H_
#define JAX_CXL_NCCL_INTERFACE_ABI_H_

#include <cstddef>
#include <cstdint>

// The part of NCCL's binary interface that programs and this library share
// (NCCL 2.21 to 2.32). The values are those of nccl.h.
namespace jax_cxl::nccl {

enum NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum NcclOp : int { kSum, kProd, kMax, kMin, kAvg, kNumOps };
inline constexpr int kNoOp = 0x7fffffff;  // ncclMaxRedOp: no reduction has it

inline constexpr int kNumNcclTypes = 12;
inline constexpr int kScalarDevice = 0;
inline constexpr int kScalarHostImmediate = 1;
inline constexpr int kSplitNoColor = -1;
inline constexpr int kShrinkAbort = 1;

inline constexpr size_t kUniqueIdBytes = 128;
struct NcclUniqueId {
  unsigned char internal[kUniqueIdBytes];
};

// The first fields of ncclConfig_t, which have had these places since 2.14.
struct NcclConfig {
  size_t size;
  uint32_t magic;
  uint32_t version;
  int blocking;
};
inline constexpr uint32_t kConfigMagic = 0xcafebeef;

// The first word of a communicator of this library. NCCL's own communicators
// begin with another one.
inline constexpr uint64_t kCommunicatorMagic = 0x6a61785f63786c31;

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_ABI_H_
