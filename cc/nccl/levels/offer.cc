#include "cc/nccl/levels/offer.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {
namespace {

std::string TextOf(uint64_t least_bytes) {
  return least_bytes == kNoLevels ? "never" : std::to_string(least_bytes);
}

}  // namespace

void LevelsOffer::SetProblem(const Status& status) {
  status.message().copy(problem, sizeof(problem) - 1);
}

Status CheckSettings(std::span<const LevelsOffer> ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].least_bytes != ranks[0].least_bytes)
      return Error(Code::kInvalidArgument, "JAX_CXL_NCCL_LEVELS is ",
                   TextOf(ranks[0].least_bytes), " on rank 0, and ",
                   TextOf(ranks[rank].least_bytes), " on rank ", rank,
                   ": set it to the same value in all processes");
  return OkStatus();
}

Status ProblemOf(std::span<const LevelsOffer> ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const char* problem = ranks[rank].problem;
    const std::string_view text(problem,
                                strnlen(problem, sizeof(LevelsOffer::problem)));
    if (!text.empty())
      return Error(Code::kFailedPrecondition, "rank ", rank, ": ", text);
  }
  return OkStatus();
}

}  // namespace jax_cxl::nccl
