#ifndef JAX_CXL_NCCL_LEVELS_PLACES_H_
#define JAX_CXL_NCCL_LEVELS_PLACES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace jax_cxl::nccl {

// Where one rank of a communicator lies, if several hosts have the same
// number of consecutive ranks each: rank = host * per_host + place.
struct Places {
  int hosts = 0;
  int per_host = 0;
  int host = 0;
  int place = 0;

  int size() const { return hosts * per_host; }
};

// Returns the place of `rank`. Returns nothing if the ranks lie in another way,
// if one host has all ranks, or if each host has one. `host_of` has a
// number for the host of each rank. Hosts are numbered in the order of
// their first ranks.
std::optional<Places> PlacesOf(std::span<const int> host_of, int rank);

// Returns the ranks that have the same place in their hosts.
std::vector<int32_t> RanksOfPlace(const Places& places);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LEVELS_PLACES_H_
