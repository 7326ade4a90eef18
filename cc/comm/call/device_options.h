#ifndef JAX_CXL_COMM_CALL_DEVICE_OPTIONS_H_
#define JAX_CXL_COMM_CALL_DEVICE_OPTIONS_H_

#include <cstdint>

#include "cc/comm/call/tuning.h"
#include "cc/engine/gpu_plan/shape.h"
#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::comm {

// Settings of a job between GPUs. They must be the same in all processes of the
// job. Benchmarks can set all of them; in other jobs, users can set only some.
struct DeviceOptions : WaitTimes {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  cuda::Shape shape;
  // The least size of a call's larger buffer from which the call may use the
  // copy engines: the first limit is for calls that do not run aside, and the
  // second one for calls that do. ChoosePath (gpu_path.h) has the exact rules.
  // In a pool of several devices, only calls that run aside use the copy
  // engines.
  uint64_t copy_engine_bytes = uint64_t{64} << 20;
  uint64_t copy_engine_bytes_aside = uint64_t{1} << 20;
  // For the copy engines in a pool of one device: the smallest chunk that is
  // worth a round, and the number of pipelines (0: ChoosePath chooses).
  uint64_t copy_min_chunk_bytes = uint64_t{2} << 20;
  int copy_pipelines = 0;
  // For kernels: how many bytes of a slot they use (0: follows from the number
  // of members), and the smallest chunk that is worth a round. The smallest
  // chunk applies only in a pool of one device.
  uint64_t kernel_slot_bytes = 0;
  uint64_t kernel_min_chunk_bytes = uint64_t{512} << 10;
  // The bytes of data in a slot for short messages, which carry flags with
  // their data (plan::FlaggedGeometry). There are fewer if memory is short. 0:
  // no message carries flags.
  uint64_t flagged_slot_bytes = plan::kMostFlaggedBytes;
  // The number of the first round with flags. Flags contain the round's number
  // in 32 bits. Tests begin shortly before it overflows.
  uint64_t first_flagged_round = 0;
  // Part of the key of a channel, so that the same members can have several
  // channels.
  uint64_t channel_salt = 0;
  // For pools without coherence. For each device, flush_threads threads of the
  // host relay doorbells, write lines back and drop lines (0:
  // DefaultFlushThreads). Such a thread takes flush_piece_bytes at a time.
  // gpu_writes_memory is whether writes of a GPU reach the memory without a
  // write-back.
  int flush_threads = 0;
  uint64_t flush_piece_bytes = Tuning().flush_piece_bytes;
  bool gpu_writes_memory = false;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_DEVICE_OPTIONS_H_
