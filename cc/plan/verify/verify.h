#ifndef JAX_CXL_PLAN_VERIFY_VERIFY_H_
#define JAX_CXL_PLAN_VERIFY_VERIFY_H_

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/bounds.h"
#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// What Verify assumes about the group.
struct Setting {
  uint64_t start_round = 0;  // rounds that the group has been through before
  // Slot s of rank r lies on device (r * num_devices / num_ranks + s) %
  // num_devices.
  int num_devices = 1;
};

// Bytes that the plans of a group move.
struct Traffic {
  std::vector<PoolBytes> by_rank;
  std::vector<PoolBytes> by_device;
};

// The plans of all ranks; `request.rank` is ignored.
Result<std::vector<Plan>> MakePlans(Request request, const Geometry& geometry);

// Proves that `plans`, one for each rank, do what `request` asks for under
// every interleaving, whatever the slots held before:
//  - each byte of each output ends up with exactly what its rank asked for:
//    the right input bytes, the left fold of the right ones in rank order, or
//    zero, and is written once; bytes that are not defined stay untouched;
//  - no slot is written before all peers released what it held, or after it was
//    published; no byte of a slot is read unless its owner put it in that round
//    and published it; no rank reads what it has released;
//  - nothing leaves a slot, the input or the output;
//  - the plans come to an end, with all rounds released by all ranks, so that
//    the next call starts from the same state.
// Returns the bytes moved, or kInternal with the rank and step that is wrong.
Result<Traffic> Verify(const Request& request, const Geometry& geometry,
                       const std::vector<Plan>& plans,
                       const Setting& setting = {});

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_VERIFY_VERIFY_H_
