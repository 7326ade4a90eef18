#ifndef JAX_CXL_COMM_CALL_DEVICE_OPTIONS_H_
#define JAX_CXL_COMM_CALL_DEVICE_OPTIONS_H_

#include <cstdint>

#include "cc/comm/call/tuning.h"
#include "cc/engine/gpu_plan/shape.h"
#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::comm {

// Settings of a job between GPUs. They must be the same in all of its
// processes. Benchmarks set all of them. Jobs set only some.
struct DeviceOptions : WaitTimes {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  cuda::Shape shape;
  // From this size of the larger buffer on, calls use the copy engines if they
  // run aside or if ChoosePath (gpu_path.h) selects them. In a pool of several
  // devices, only calls that run aside use the copy engines.
  uint64_t copy_engine_bytes = uint64_t{64} << 20;
  uint64_t copy_engine_bytes_aside = uint64_t{1} << 20;
  // In a pool of one device: the smallest chunk that is worth a round of the
  // copy engines, and the number of their pipelines (0: follows from the call).
  uint64_t copy_min_chunk_bytes = uint64_t{2} << 20;
  int copy_pipelines = 0;
  // The part of a slot that kernels use (0: follows from the number of
  // members), and, in a pool of one device, the smallest chunk that is worth a
  // round.
  uint64_t kernel_slot_bytes = 0;
  uint64_t kernel_min_chunk_bytes = uint64_t{512} << 10;
  // The bytes of data in a slot for short messages (see plan::FlaggedGeometry),
  // if memory allows. 0: no flags at all.
  uint64_t flagged_slot_bytes = plan::kMostFlaggedBytes;
  // Tests begin shortly before the round in which flags start again at 0.
  uint64_t first_flagged_round = 0;
  // Tells channels of the same members apart.
  uint64_t channel_salt = 0;
  // For pools without coherence: the number of threads per device that relay
  // doorbells and write back and drop lines (0: DefaultFlushThreads), the bytes
  // that a thread takes at a time, and whether device writes reach the memory
  // without a write-back.
  int flush_threads = 0;
  uint64_t flush_piece_bytes = Tuning().flush_piece_bytes;
  bool gpu_writes_memory = false;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_DEVICE_OPTIONS_H_
