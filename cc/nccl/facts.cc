#include "cc/nccl/facts.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string_view>

namespace jax_cxl::nccl {

Result<int> LeastMultiprocessors(std::span<const Facts> ranks) {
  int least = ranks[0].multiprocessors;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Facts& facts = ranks[rank];
    const std::string_view problem(
        facts.problem, strnlen(facts.problem, sizeof(facts.problem)));
    if (!problem.empty())
      return Error(Code::kUnimplemented, "the GPU of rank ", rank,
                   " cannot use the pool: ", problem,
                   ". To use NCCL itself, leave JAX_CXL_NCCL_HOSTS and "
                   "JAX_CXL_NCCL_POOL out");
    if (facts.rank_bytes != ranks[0].rank_bytes ||
        facts.coherence != ranks[0].coherence ||
        facts.gpu_writes_memory != ranks[0].gpu_writes_memory)
      return Error(Code::kInvalidArgument, "ranks 0 and ", rank,
                   " have different settings of the pool; give all processes "
                   "the same JAX_CXL_NCCL_RANK_BYTES, coherence= and "
                   "gpu_writes=");
    // A comparison is a call of NVIDIA's library, which waits for all ranks.
    if (facts.compare != ranks[0].compare)
      return Error(Code::kInvalidArgument, "JAX_CXL_NCCL_COMPARE is ",
                   ranks[0].compare, " on rank 0, but ", facts.compare,
                   " on rank ", rank,
                   " (0: not set); give it the same value "
                   "in all processes");
    for (size_t other = 0; other < rank; ++other)
      if (std::ranges::equal(ranks[other].gpu, facts.gpu))
        return Error(Code::kFailedPrecondition, "ranks ", other, " and ", rank,
                     " have the same GPU. Give each rank its own GPU: call "
                     "cudaSetDevice (in PyTorch torch.cuda.set_device) with "
                     "the rank's number on this machine, or set "
                     "CUDA_VISIBLE_DEVICES");
    least = std::min(least, facts.multiprocessors);
  }
  return least;
}

// A link that rests is slower, so the speed that both ends can have counts.
uint32_t LinkOf(const std::string& folder) {
  constexpr double kMeasuredLanes = 32.0 * 16;  // GT/s of all lanes
  double speed = 0, lanes = 0, port = 0;        // "32.0 GT/s PCIe", "16"
  std::ifstream(folder + "/max_link_speed") >> speed;
  std::ifstream(folder + "/current_link_width") >> lanes;
  if (std::ifstream(folder + "/../max_link_speed") >> port)
    speed = std::min(speed, port);
  const double known = std::min(speed * lanes / kMeasuredLanes, 1.0);
  return known > 0 ? static_cast<uint32_t>(known * kMeasuredLink)
                   : kMeasuredLink;
}

}  // namespace jax_cxl::nccl
