#ifndef JAX_CXL_TESTING_VERIFY_VERIFY_H_
#define JAX_CXL_TESTING_VERIFY_VERIFY_H_

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/plan.h"
#include "cc/simulator/bounds.h"

namespace jax_cxl::plan {

// Assumptions of Verify about the group.
struct Setting {
  uint64_t start_round = 0;  // rounds of the group's earlier calls
  // Slot s of rank r lies on device (r * num_devices / num_ranks + s) %
  // num_devices.
  int num_devices = 1;
};

// Numbers of bytes that the plans of a group write to the pool and read from
// it.
struct Traffic {
  std::vector<PoolBytes> by_rank;
  std::vector<PoolBytes> by_device;
};

// Makes the plans of all ranks. Ignores `request.rank`.
Result<std::vector<Plan>> MakePlans(Request request, const Geometry& geometry);

// Proves that `plans`, one for each rank, do what `request` asks under every
// interleaving, whatever the slots contained before:
//  - Each byte of each output is written once, and gets exactly what the
//    request demands: the right input byte, the left fold of the right input
//    bytes in rank order, or zero. Bytes for which the request demands nothing
//    stay untouched.
//  - No rank writes a slot before all peers have released its old contents, or
//    after it has published the round. No rank reads a byte of a slot unless
//    the owner has put it in that round and published it. No rank reads a round
//    that it has released.
//  - No step leaves a slot, the input or the output.
//  - The plans end, and all ranks have released all rounds, so that the next
//    call starts from the same state.
// Returns the numbers of bytes moved. Fails with kInternal, and names the rank
// and the step, if a plan is wrong.
Result<Traffic> Verify(const Request& request, const Geometry& geometry,
                       const std::vector<Plan>& plans,
                       const Setting& setting = {});

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_TESTING_VERIFY_VERIFY_H_
