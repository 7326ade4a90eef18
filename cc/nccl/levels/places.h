#ifndef JAX_CXL_NCCL_LEVELS_PLACES_H_
#define JAX_CXL_NCCL_LEVELS_PLACES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace jax_cxl::nccl {

// Where one rank of a communicator lies, if several processes have the same
// number of consecutive ranks each: rank = process * per_process + place.
struct Places {
  int processes = 0;
  int per_process = 0;
  int process = 0;
  int place = 0;

  int size() const { return processes * per_process; }
};

// Returns the place of `rank`. Returns nothing if the ranks lie in another way,
// if one process has all ranks, or if each process has one. `process_of` has a
// number for the process of each rank. Processes are numbered in the order of
// their first ranks.
std::optional<Places> PlacesOf(std::span<const int> process_of, int rank);

// Returns the ranks that have the same place in their processes.
std::vector<int32_t> RanksOfPlace(const Places& places);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LEVELS_PLACES_H_
