#ifndef JAX_CXL_COMM_CALL_TUNING_H_
#define JAX_CXL_COMM_CALL_TUNING_H_

#include <array>
#include <cstdint>
#include <string>

#include "cc/base/status.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::comm {

// Settings that change the speed. They do not change results, except that sums
// in levels (cc/comm/level_calls.h) are added in a different order. They must
// be the same on all ranks of a job, because plans and the layout of channels
// depend on them.
//
// The defaults were measured on two cores with 1 MiB of second-level cache each
// (cc/bench/engine_benchmark.cc, docs/benchmarking.md). `python -m jax_cxl
// tune` finds values for another machine. Of the fields that begin with nccl_
// those of rank 0 count.
struct Tuning {
  // The largest size of a slot, and the smallest number of slots, unless
  // Options sets them. A rank copies data from its input to a slot, and later
  // from slots to its output. So the second-level cache should have space for
  // the data of a slot twice: in the input or output, and in the slot. Four
  // slots are enough to publish and retrieve at the same time, even if a peer
  // is late.
  uint64_t slot_bytes = uint64_t{512} << 10;
  uint64_t num_slots = 4;
  // The largest payload of a submission. A rank that reads a submission may
  // have to copy its payload. For larger payloads, this copy costs more time
  // than the call saves by not using slots.
  uint64_t inline_bytes = uint64_t{4} << 10;
  // In an all-reduce or a reduce of up to this many bytes, each rank that needs
  // the result reads the inputs of all peers and reduces them itself
  // (plan::Geometry).
  uint64_t all_read_bytes = uint64_t{16} << 10;
  // Copies to outputs of at least this many bytes bypass the caches. Smaller
  // outputs stay in the caches, because programs often read them soon
  // afterwards. Reductions never bypass the caches, because that did not make
  // them faster: stores are only part of what reductions wait for.
  uint64_t past_caches_bytes = uint64_t{8} << 20;
  // Collectives of groups that have several CPU devices in each process run in
  // levels (cc/comm/level_calls.h) if the larger buffer of a rank has at least
  // this many bytes. With kNever, they run in levels only if the program asks
  // for it.
  static constexpr uint64_t kNever = uint64_t{1} << 62;
  uint64_t levels_all_reduce_bytes = uint64_t{4} << 20;
  uint64_t levels_reduce_scatter_bytes = uint64_t{4} << 20;
  uint64_t levels_all_gather_bytes = kNever;
  uint64_t levels_all_to_all_bytes = uint64_t{4} << 20;
  uint64_t levels_broadcast_bytes = kNever;
  // The next two fields are for GPUs in pools without hardware coherence
  // (cc/gpu/relay). `flush_threads` is the number of threads of each GPU that
  // pass doorbells on, and that write back and drop cache lines. If it is 0,
  // the GPUs of a process share a quarter of the process's cores, with at most
  // 4 threads for each GPU. `flush_piece_bytes` is how many bytes one of these
  // threads takes at a time. Writing back 128 KiB takes about 6 us, several
  // times as long as handing a piece to a thread.
  uint64_t flush_threads = 0;
  uint64_t flush_piece_bytes = uint64_t{128} << 10;
  // The next fields are for the library with NCCL's interface. If they are 0,
  // it chooses (CudaDevice::Choose). They are the number of thread blocks of a
  // collective, the bytes for each peer up to which data carry flags
  // (plan::FlaggedGeometry), and the smallest chunk that is worth a round. The
  // last two fields are for sends.
  uint64_t nccl_blocks = 0;
  uint64_t nccl_flagged_bytes = 0;
  uint64_t nccl_chunk_bytes = 0;
  uint64_t nccl_send_flagged_bytes = 0;
  uint64_t nccl_send_chunk_bytes = 0;
};

// A field of Tuning. Its value must be a multiple of `unit` from `least` to
// `most`.
struct TuningField {
  const char* name;
  uint64_t Tuning::* member;
  uint64_t least = 0;
  uint64_t most = UINT64_MAX >> 1;
  uint64_t unit = 1;
};

inline constexpr uint64_t kMaxSlotBytes = uint64_t{64} << 20;
inline constexpr std::array kTuningFields = {
#define FIELD(name, ...) \
  TuningField { #name, &Tuning::name, __VA_ARGS__ }
    FIELD(slot_bytes, 4096, kMaxSlotBytes, plan::kSlotAlignment),
    FIELD(num_slots, 2, pool::kMaxSlots),
    FIELD(inline_bytes, plan::kSlotAlignment, uint64_t{32} << 10,
          plan::kSlotAlignment),
    FIELD(all_read_bytes),
    FIELD(past_caches_bytes),
    FIELD(levels_all_reduce_bytes),
    FIELD(levels_reduce_scatter_bytes),
    FIELD(levels_all_gather_bytes),
    FIELD(levels_all_to_all_bytes),
    FIELD(levels_broadcast_bytes),
    FIELD(flush_threads, 0, 16),
    FIELD(flush_piece_bytes, 4096, kMaxSlotBytes, plan::kSlotAlignment),
    FIELD(nccl_blocks, 0, plan::kGpuBlocks),
    FIELD(nccl_flagged_bytes, 0, uint64_t{1} << 20, 4096),
    FIELD(nccl_chunk_bytes, 0, kMaxSlotBytes),
    FIELD(nccl_send_flagged_bytes, 0, uint64_t{1} << 20, 4096),
    FIELD(nccl_send_chunk_bytes, 0, kMaxSlotBytes),
#undef FIELD
};

// Checks that all fields are within their ranges. Otherwise fails with
// kInvalidArgument, and the error names the first field that is out of range.
Status CheckTuning(const Tuning& tuning);

// Reads the text of a file that `python -m jax_cxl tune` or `nccl tune` wrote.
Result<Tuning> ParseTuning(const std::string& text);

// How long a rank waits for others before it warns, and before it gives up.
struct WaitTimes {
  double warn_after_s = 10;
  double timeout_s = 300;
};

// Settings of a job. They must be the same in all of its processes.
struct Options : WaitTimes {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  Tuning tuning;
  double heartbeat_timeout_s = 5;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_TUNING_H_
