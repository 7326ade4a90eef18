#ifndef JAX_CXL_GPU_RELAY_CHANNEL_RELAY_H_
#define JAX_CXL_GPU_RELAY_CHANNEL_RELAY_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/gpu/relay/device_journal.h"
#include "cc/gpu/relay/flagged_relay.h"
#include "cc/gpu/relay/line_workers.h"
#include "cc/gpu/relay/relay_plan.h"
#include "cc/pool/coherence/doorbell.h"

namespace jax_cxl::comm {

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
// In the pool, the relay uses only the first of the words for publications, and
// only the first of the words for releases. Calls of a series overlap, as they
// do on the device: rounds of the next call are published while the device
// still reads the last rounds of the previous call. Every other call begins
// once the previous call has ended. A short call with flags has no doorbells
// (FlaggedRelay).
//
// Any thread may call Enqueue and Stop. Only one thread may call Advance.
class ChannelRelay {
 public:
  // `write_back` is true if writes of devices may stay in this host's cache.
  ChannelRelay(const pool::Doorbells& doorbells, bool write_back,
               std::vector<cuda::DeviceControl*> in_pool,
               std::vector<cuda::MirrorWords*> mirror, FlaggedRings rings,
               int self);

  // From now on, takes the calls from the device's journal, which must outlive
  // this object. Nobody calls Enqueue then.
  void Follow(DeviceJournal* journal) { journal_ = journal; }

  // Adds a call. The relay handles calls in the order in which they are
  // enqueued.
  void Enqueue(RelayedCall call);

  // Does as much as possible without waiting. Returns true if it did anything.
  bool Advance(LineWorkers& workers);

  // Returns true if no calls are left. A relay that follows a journal is only
  // idle after Stop, because the device may begin a call at any time.
  bool idle() const {
    return left_.load(std::memory_order_acquire) == 0 &&
           (journal_ == nullptr || stopped());
  }
  uint64_t ended() const { return ended_.load(std::memory_order_acquire); }

  void Stop() { stopped_.store(true, std::memory_order_release); }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  // A step of the relay in a call. It publishes rounds of this member, passes
  // on rounds that a peer has published, or releases rounds of the peers.
  struct Step {
    const RelayedCall* call = nullptr;
    uint64_t rounds = 0;  // value to ring
    bool first = false;   // the first of its kind in the call
    const std::vector<SlotRange>* ranges = nullptr;
    std::shared_ptr<LineWork> work = nullptr;  // once begun
  };
  using Steps = std::deque<Step>;

  struct Peer {
    int member = 0;
    cuda::DeviceControl* in_pool = nullptr;
    cuda::MirrorWords* mirror = nullptr;
    uint64_t published = 0;  // in the pool, as last seen
    uint64_t released = 0;
    uint64_t ended = 0;
    Steps arrivals = {};
    Steps dropping = {};  // arrivals whose lines are being dropped
  };

  bool Begin();
  void BeginRounds(const RelayedCall& call);
  bool AdvancePublications(LineWorkers& workers);
  bool AdvanceArrivals(LineWorkers& workers, Peer& peer);
  void RingArrival(const Step& arrival, const Peer& peer) const;
  bool PassOnReleased(Peer& peer);
  bool AdvanceReleases();
  bool Finish();

  static std::vector<pool::Part> Lines(const Step& step, int member);
  // Return whether the device has rung the doorbells for this step in this
  // member's words of the mirror.
  bool HasPublished(const Step& step) const;
  bool HasReleased(const Step& step) const;
  uint64_t Rung(const uint64_t& word) const;
  // Reads a peer's word in the pool into `known`, unless `known` is already at
  // least `enough`. Returns true if `known` has grown.
  bool Grew(const uint64_t* word, uint64_t enough, uint64_t* known) const;
  void RingInMirror(uint64_t* word, uint64_t value) const;
  void RingReleased(const Peer& peer) const;

  const pool::Doorbells doorbells_;
  const bool write_back_;
  const int self_;
  cuda::DeviceControl& in_pool_;  // of this member
  cuda::MirrorWords& mirror_;
  DeviceJournal* journal_ = nullptr;

  std::mutex mutex_;
  std::deque<RelayedCall> queue_;
  std::atomic<uint64_t> left_{0};
  std::atomic<uint64_t> ended_{0};
  std::atomic<bool> stopped_{false};

  // Only Advance uses the following members.
  FlaggedRelay flagged_;
  std::deque<RelayedCall> calls_;  // under way
  // The remaining steps of the calls in `calls_`.
  Steps publications_;
  Steps writing_back_;  // publications whose lines are being written back
  Steps releases_;
  std::vector<Peer> peers_;
  uint32_t num_words_ = 0;  // these words of the mirror match `peers_`
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_CHANNEL_RELAY_H_
