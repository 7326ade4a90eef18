#include "cc/nccl/levels/places.h"

#include <algorithm>

namespace jax_cxl::nccl {

std::optional<Places> PlacesOf(std::span<const int> process_of, int rank) {
  const int size = static_cast<int>(process_of.size());
  const int per_process =
      static_cast<int>(std::ranges::count(process_of, process_of[0]));
  if (per_process < 2 || per_process == size || size % per_process != 0)
    return std::nullopt;
  for (int each = 0; each < size; ++each)
    if (process_of[each] != each / per_process) return std::nullopt;
  return Places{size / per_process, per_process, rank / per_process,
                rank % per_process};
}

std::vector<int32_t> RanksOfPlace(const Places& places) {
  std::vector<int32_t> ranks;
  for (int process = 0; process < places.processes; ++process)
    ranks.push_back(process * places.per_process + places.place);
  return ranks;
}

}  // namespace jax_cxl::nccl
