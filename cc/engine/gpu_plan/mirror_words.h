#ifndef JAX_CXL_ENGINE_GPU_PLAN_MIRROR_WORDS_H_
#define JAX_CXL_ENGINE_GPU_PLAN_MIRROR_WORDS_H_

#include "cc/engine/gpu_plan/channel_words.h"

namespace jax_cxl::cuda {

// A copy of one member's words, for a pool without coherence. It is in memory
// that a device and its host keep coherent. Devices wait for these words and
// ring them, instead of the words in the pool. A host thread relays values
// between the two (cc/gpu/relay/channel_relay.h). The device writes the words
// of its own member, and the host writes those of all other members.
struct MirrorWords {
  SendLine send[kMaxBlocks];
  pool::Doorbell released[kMaxBlocks];
  pool::Doorbell ended;
};

// Returns the addresses that a device uses for a member: the words are those of
// `mirror`, but the slots and the ring for short messages are in the pool.
inline MemberView Mirrored(const MemberView& in_pool, MirrorWords* mirror) {
  MemberView view = in_pool;
  view.send = mirror->send;
  view.released = mirror->released;
  view.ended = &mirror->ended.word;
  return view;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_MIRROR_WORDS_H_
