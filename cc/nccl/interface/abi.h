#ifndef JAX_CXL_NCCL_INTERFACE_ABI_H_
#define JAX_CXL_NCCL_INTERFACE_ABI_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

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

// A copy of a program's ncclConfig_t. In a group, the program may free the
// original before the communicator is made.
class Config {
 public:
  // `given` may be null.
  explicit Config(const NcclConfig* given) : given_(given != nullptr) {
    if (!given_) return;
    // Without the magic, the size is not known.
    const size_t size =
        given->magic == kConfigMagic ? given->size : sizeof(NcclConfig);
    std::memcpy(bytes_.data(), given, std::min(size, bytes_.size()));
  }

  // Returns null if the program gave none.
  const NcclConfig* get() const {
    return given_ ? reinterpret_cast<const NcclConfig*>(bytes_.data())
                  : nullptr;
  }
  // Returns false if the program asks for a communicator that never blocks.
  bool blocking() const {
    return !given_ || get()->magic != kConfigMagic || get()->blocking != 0;
  }
  // Makes the config ask for a blocking communicator, whatever the program asks
  // for.
  void MakeBlocking() {
    if (!blocking()) reinterpret_cast<NcclConfig*>(bytes_.data())->blocking = 1;
  }

 private:
  bool given_;
  // Larger than the structure of any version.
  alignas(NcclConfig) std::array<std::byte, 1024> bytes_ = {};
};

// The first word of a communicator of this library. NCCL's own communicators
// begin with another one.
inline constexpr uint64_t kCommunicatorMagic = 0x6a61785f63786c31;

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_ABI_H_
