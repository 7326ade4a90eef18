#ifndef JAX_CXL_NCCL_LEVELS_STEPS_H_
#define JAX_CXL_NCCL_LEVELS_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"
#include "cc/nccl/levels/inner.h"
#include "cc/nccl/levels/places.h"

namespace jax_cxl::nccl {

// How one rank of a communicator runs collectives in levels.
struct Levels {
  Places places;
  // Collectives run in levels if the larger of their buffers has at least this
  // many bytes. The limit is the same on all ranks.
  uint64_t least_bytes = 0;
  // Memory of the device for data that one step leaves for the next. Its size
  // is the same on all ranks.
  std::byte* scratch = nullptr;
  uint64_t scratch_bytes = 0;
  Inner* inner = nullptr;
};

// A step of a collective. All ranks of a host have the same kinds of steps
// in the same order, and all ranks of a place have the same collectives.
struct LevelStep {
  enum class Kind : uint8_t {
    kAll,      // `collective` of all ranks
    kInside,   // `operations` of the ranks of the host, which start together
    kBetween,  // `collective` of the ranks with the same place
  };
  Kind kind = Kind::kAll;
  Collective collective;
  std::vector<Operation> operations;
};

// Returns true if the operation runs in levels. `request` describes the
// operation. All ranks get the same result.
bool RunsInLevels(const Operation& operation, const plan::Request& request,
                  const Levels& levels);

// Returns the steps of an operation that runs in levels:
//
//   all_reduce      reduce-scatter inside, all-reduce of a part between, and
//                   all-gather inside, in the output
//   broadcast       broadcast in the host of the root, broadcast of a part
//                   between, and all-gather inside the other hosts
//   reduce_scatter  reductions inside into the scratch, and reduce-scatter
//                   between
//   all_gather      all-gather between into the scratch, and all-gathers inside
//
// Parts are equal and aligned. If elements remain, all ranks handle them
// together in one more step. Fails as MakeCollective does.
Result<std::vector<LevelStep>> LevelSteps(const Operation& operation,
                                          const plan::Request& request,
                                          const Levels& levels);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LEVELS_STEPS_H_
