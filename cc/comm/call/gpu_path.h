#ifndef JAX_CXL_COMM_CALL_GPU_PATH_H_
#define JAX_CXL_COMM_CALL_GPU_PATH_H_

#include <array>
#include <cstdint>

#include "cc/comm/call/device_options.h"
#include "cc/engine/gpu_plan/shape.h"
#include "cc/plan/plan.h"

// Chooses whether kernels or copy engines execute a call between GPUs. All
// ranks of a call must make the same choice. So these are pure functions of
// values that are the same on all ranks. They need no CUDA.
namespace jax_cxl::comm {

// How a call uses the slots of the ring. The different uses overlap in memory,
// so a call starts only after every call with another use has finished.
enum class SlotUse : uint8_t {
  kKernels,  // the beginning of each slot
  kCopies,   // whole slots
};
inline constexpr int kNumSlotUses = 2;

struct GpuPath {
  int copy_pipelines = 0;  // pipelines of the copy engines; 0: kernels

  bool copies() const { return copy_pipelines > 0; }
  SlotUse slots() const {
    return copies() ? SlotUse::kCopies : SlotUse::kKernels;
  }
  bool operator==(const GpuPath&) const = default;
};

// The facts about a call on which the choice depends.
struct GpuCallFacts {
  plan::Op op = plan::Op::kBarrier;
  uint64_t bytes = 0;  // of the larger buffer
  int members = 0;
  int world_size = 0;
  // True if the call runs *aside*: on a stream of jax_cxl's own, so that XLA's
  // stream can compute at the same time. These are the calls that a program
  // starts, and ends later with `done`. Work that XLA enqueues after such a
  // call must not delay the next call.
  bool aside = false;
  bool striped = false;  // the pool has several devices
  bool relayed = false;  // the pool is without coherence (cc/gpu/relay)
  // Consecutive calls of the copy engines form a series. This is the number of
  // short calls at the end of the current series, or -1 if a kernel executed
  // the previous call.
  int short_calls = -1;
};

GpuPath ChoosePath(const GpuCallFacts& call, const DeviceOptions& options);

// Returns true if a call is so short that, when it runs aside, it uses the copy
// engines only to continue a series of calls.
bool IsShort(const GpuCallFacts& call, const DeviceOptions& options);

// Returns the numbers of blocks and threads of the kernel that executes a call.
cuda::Shape ChooseShape(const GpuCallFacts& call, const DeviceOptions& options);

// Returns cuda::DeviceCall::rounds_ahead of a call of `rounds` rounds that
// publishes `bytes_published` bytes.
std::array<uint32_t, 2> RoundsAhead(const plan::Request& request,
                                    uint64_t rounds, uint64_t bytes_published);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_GPU_PATH_H_
