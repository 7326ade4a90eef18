#ifndef JAX_CXL_ENGINE_GPU_PLAN_MIRROR_WORDS_H_
#define JAX_CXL_ENGINE_GPU_PLAN_MIRROR_WORDS_H_

#include "cc/engine/gpu_plan/channel_words.h"

namespace jax_cxl::cuda {

// One member's words in memory that a device and its host keep coherent, for a
// pool without coherence. Devices wait for these words and ring them, in place
// of the words in the pool. A host thread relays them
// (cc/comm/relay/channel_relay.h). The device writes the words of its own
// member. The host writes the words of all other members.
struct MirrorWords {
  SendLine send[kMaxBlocks];
  pool::Doorbell released[kMaxBlocks];
  pool::Doorbell ended;
};

// Returns a member's part as a device uses it: the words of the mirror, and the
// slots and the ring for short messages in the pool.
inline MemberView Mirrored(const MemberView& in_pool, MirrorWords* mirror) {
  MemberView view = in_pool;
  view.send = mirror->send;
  view.released = mirror->released;
  view.ended = &mirror->ended.word;
  return view;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_MIRROR_WORDS_H_
