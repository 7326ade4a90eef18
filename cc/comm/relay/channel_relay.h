#ifndef JAX_CXL_COMM_RELAY_CHANNEL_RELAY_H_
#define JAX_CXL_COMM_RELAY_CHANNEL_RELAY_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cc/comm/relay/line_workers.h"
#include "cc/comm/relay/relay_plan.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/mirror_words.h"
#include "cc/pool/coherence/doorbell.h"

namespace jax_cxl::comm {

// A call whose data a device moves, and whose doorbells its host relays.
struct RelayedCall {
  std::shared_ptr<const RelayPlan> plan;
  // The slots that the call uses, by member. They must outlive the call.
  const cuda::MemberView* members = nullptr;
  // How many words of the mirror the device uses: one per block of a kernel, or
  // one per pipeline of the copy engines.
  uint32_t num_words = 1;
  // True if each round uses only the word of its slot (copy engines). False if
  // it uses all words.
  bool words_take_turns = false;
  uint32_t num_slots = 0;
  // The blocks' places in slots: see plan::Stripes. If slot_step is 0, a round
  // lies in one slot.
  uint32_t unit_bytes = 0;
  uint32_t blocks = 1;
  uint32_t slot_step = 0;
  uint64_t base_round = 0;  // rounds of all earlier calls
  uint64_t call = 0;        // number of this call in the channel
  uint64_t hash = 0;
  bool awaits_end = false;  // the device waits for the end of all earlier calls
};

// Relays the doorbells of one channel between a pool without coherence and the
// mirror, which is memory that the device and its host share. The device moves
// the data:
//
//   device fills a slot, rings in the mirror
//       -> host writes the slot's cache lines back, rings in the pool
//   host sees a peer's doorbell in the pool, drops the lines that the device
//   will read
//       -> host rings in the mirror, device reads
//   device has read, rings in the mirror -> host rings in the pool
//
// In the pool, the relay uses only the first word of each kind.
//
// Any thread may call Enqueue and Stop. Only one thread may call Advance.
class ChannelRelay {
 public:
  // `write_back` is true if writes of devices may stay in this host's cache.
  ChannelRelay(const pool::Doorbells& doorbells, bool write_back,
               std::vector<cuda::DeviceControl*> in_pool,
               std::vector<cuda::MirrorWords*> mirror, int self);

  // Adds a call. The relay handles calls in the order in which they are
  // enqueued.
  void Enqueue(RelayedCall call);

  // Does what is possible without waiting. Returns true if it did anything.
  bool Advance(LineWorkers& workers);

  // Returns true if no calls are left.
  bool idle() const { return left_.load(std::memory_order_acquire) == 0; }

  // Drops all calls, because they have failed.
  void Stop() { stopped_.store(true, std::memory_order_release); }

 private:
  struct UnderWay {
    uint64_t rounds = 0;  // value to ring once the work is done
    std::shared_ptr<LineWork> work;
  };
  // The state of another member.
  struct Peer {
    uint64_t published = 0;  // in the pool, as last seen
    uint64_t released = 0;
    uint64_t ended = 0;
    size_t next_arrival = 0;
    bool in_call = false;  // its word that names the call has been relayed
    std::deque<UnderWay> dropping;
  };

  bool Begin();
  bool AdvancePublications(LineWorkers& workers);
  bool AdvanceArrivals(LineWorkers& workers, int member);
  bool PassOnReleased(int member);
  bool AdvanceReleases();
  bool Finish();

  std::vector<pool::Part> Lines(const std::vector<SlotRange>& ranges,
                                int member) const;
  // Read the doorbells that the device has rung in its own words of the mirror.
  bool HasPublished(uint64_t round) const;
  bool HasReleased(uint64_t round) const;
  uint64_t Rung(const uint64_t& word) const;
  uint32_t WordOf(uint64_t round) const {
    return static_cast<uint32_t>((call_->base_round + round) %
                                 call_->num_slots % call_->num_words);
  }
  void RingInMirror(uint64_t* word, uint64_t value) const;
  void RingReleased(int member);

  const pool::Doorbells doorbells_;
  const bool write_back_;
  const std::vector<cuda::DeviceControl*> in_pool_;
  const std::vector<cuda::MirrorWords*> mirror_;
  const int self_;

  std::mutex mutex_;
  std::deque<RelayedCall> queue_;
  std::atomic<uint64_t> left_{0};
  std::atomic<bool> stopped_{false};

  // Only Advance uses the following members.
  std::optional<RelayedCall> call_;  // the current call
  size_t next_publication_ = 0;
  size_t next_release_ = 0;
  std::deque<UnderWay> writing_back_;
  std::vector<Peer> peers_;
  uint32_t num_words_ = 0;  // these words of the mirror match `peers_`
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RELAY_CHANNEL_RELAY_H_
