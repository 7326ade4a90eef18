#include "cc/gpu/relay/flagged_rings.h"

#include <cstddef>
#include <cstring>

#include "cc/comm/call/backoff.h"

namespace jax_cxl::comm {

void FlaggedRings::DropPeers() const {
  for (int member = 0; member < num_members(); ++member)
    if (member != self_)
      doorbells_.coherence().AcquirePayload(
          rings_[member],
          offsetof(cuda::FlaggedControl, vectors) + vectors_bytes_);
}

bool FlaggedRings::BeginAnew(uint64_t round,
                             const std::function<bool()>& go_on) const {
  // Waits until all peers have released the first `rounds` rounds. Returns
  // false if `go_on` returns false.
  const auto await = [&](uint64_t rounds) {
    Backoff backoff;
    for (int member = 0; member < num_members(); ++member) {
      while (member != self_ &&
             doorbells_.Read(&rings_[member]->released) < rounds) {
        if (!go_on()) return false;
        backoff.Pause();
      }
    }
    return true;
  };
  if (!await(round)) return false;
  cuda::FlaggedControl& mine = ring(self_);
  std::byte* vectors = mine.vectors[0];
  std::memset(vectors, 0, vectors_bytes_);
  doorbells_.coherence().PublishPayload(vectors, vectors_bytes_);
  doorbells_.Ring(&mine.released, round + 1);
  if (!await(round + 1)) return false;
  DropPeers();
  return true;
}

}  // namespace jax_cxl::comm
