#include "cc/nccl/interface/split.h"

#include <algorithm>

namespace jax_cxl::nccl {

SplitPart PartOf(const std::vector<SplitChoice>& choices, int rank) {
  std::vector<int> ranks;
  for (int each = 0; each < static_cast<int>(choices.size()); ++each)
    if (choices[each].color == choices[rank].color) ranks.push_back(each);
  std::ranges::stable_sort(ranks, {},
                           [&](int each) { return choices[each].key; });
  const auto place = std::ranges::find(ranks, rank) - ranks.begin();
  return {choices[ranks.front()].token, static_cast<int>(place),
          static_cast<int>(ranks.size())};
}

}  // namespace jax_cxl::nccl
