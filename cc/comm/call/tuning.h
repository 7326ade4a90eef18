#ifndef JAX_CXL_COMM_CALL_TUNING_H_
#define JAX_CXL_COMM_CALL_TUNING_H_

#include <cstdint>

#include "cc/base/status.h"

namespace jax_cxl::comm {

// What the speed of the CPU engine depends on, and no result does. Equal on all
// ranks of a job: plans and the layout of channels follow from it.
//
// The values here were measured on two cores with 1 MiB of second-level cache
// each (cc/bench/engine_benchmark.cc, docs/benchmarking.md). `python -m jax_cxl
// tune` finds those of another machine.
struct Tuning {
  // Slots are no larger, and no fewer, unless Options says so. A rank copies a
  // slotful from its input, publishes it and copies it again to its output:
  // input and slot should stay in the second-level cache together. Four slots
  // overlap publication, retrieval and a peer's lateness.
  uint64_t slot_bytes = uint64_t{512} << 10;
  int num_slots = 4;
  // What a submission carries: copying more costs more than it saves.
  uint64_t inline_bytes = uint64_t{4} << 10;
  // Up to here all-reduce reads all peers at once (plan::Geometry).
  uint64_t all_read_bytes = uint64_t{16} << 10;
  // So many bytes are copied to an output past the caches. Programs read
  // smaller outputs from there, often at once; reductions, which wait for more
  // than their stores, gained nothing.
  uint64_t past_caches_bytes = uint64_t{8} << 20;
};

// Errors: kInvalidArgument with the field that is out of range.
Status CheckTuning(const Tuning& tuning);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_TUNING_H_
