#include "cc/nccl/levels/places.h"

#include <algorithm>

namespace jax_cxl::nccl {

std::optional<Places> PlacesOf(std::span<const int> host_of, int rank) {
  const int size = static_cast<int>(host_of.size());
  const int per_host =
      static_cast<int>(std::ranges::count(host_of, host_of[0]));
  if (per_host < 2 || per_host == size || size % per_host != 0)
    return std::nullopt;
  for (int each = 0; each < size; ++each)
    if (host_of[each] != each / per_host) return std::nullopt;
  return Places{size / per_host, per_host, rank / per_host, rank % per_host};
}

std::vector<int32_t> RanksOfPlace(const Places& places) {
  std::vector<int32_t> ranks;
  for (int host = 0; host < places.hosts; ++host)
    ranks.push_back(host * places.per_host + places.place);
  return ranks;
}

}  // namespace jax_cxl::nccl
