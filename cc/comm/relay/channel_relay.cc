#include "cc/comm/relay/channel_relay.h"

#include <algorithm>
#include <utility>

namespace jax_cxl::comm {

using cuda::CallWord;
using cuda::kCallWords;

namespace {

// Number of calls of a series that can overlap. While the last rounds of one
// call are read, the first rounds of the next call are written. There are no
// slots for a third call.
constexpr size_t kMostUnderWay = 2;

// The word of a round, if rounds take turns.
uint32_t WordOf(const RelayedCall& call, uint64_t round) {
  return static_cast<uint32_t>((call.base_round + round) % call.num_slots %
                               call.num_words);
}

}  // namespace

ChannelRelay::ChannelRelay(const pool::Doorbells& doorbells, bool write_back,
                           std::vector<cuda::DeviceControl*> in_pool,
                           std::vector<cuda::MirrorWords*> mirror,
                           FlaggedRings rings, int self)
    : doorbells_(doorbells),
      write_back_(write_back),
      in_pool_(std::move(in_pool)),
      mirror_(std::move(mirror)),
      self_(self),
      flagged_(doorbells, write_back, std::move(rings), self),
      peers_(in_pool_.size()) {
  // Streams compare words as numbers that wrap around, so the words need a
  // start value: see DeviceConnection::InitializeWords.
  for (cuda::MirrorWords* words : mirror_) {
    for (int index = 0; index < cuda::kMaxBlocks; ++index) {
      RingInMirror(&words->send[index].published, 0);
      RingInMirror(&words->released[index].word, 0);
    }
    RingInMirror(&words->ended.word, 0);
  }
}

void ChannelRelay::Enqueue(RelayedCall call) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(call));
  left_.fetch_add(1, std::memory_order_release);
}

bool ChannelRelay::Advance(LineWorkers& workers) {
  if (stopped_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    queue_.clear();
    calls_.clear();
    left_.store(0, std::memory_order_release);
    return false;
  }
  while (Begin()) {
  }
  if (calls_.empty()) return false;
  if (calls_.front().flagged) return AdvanceFlagged();
  bool moved = AdvancePublications(workers);
  for (int member = 0; member < static_cast<int>(peers_.size()); ++member) {
    if (member == self_) continue;
    moved |= AdvanceArrivals(workers, member);
    moved |= PassOnReleased(member);
  }
  moved |= AdvanceReleases();
  return Finish() || moved;
}

bool ChannelRelay::Begin() {
  if (calls_.size() == kMostUnderWay ||
      calls_.size() == left_.load(std::memory_order_acquire))
    return false;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty() || !(calls_.empty() || queue_.front().follows_on))
      return false;
    calls_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  const RelayedCall& call = calls_.back();
  if (call.flagged)
    flagged_.Begin(*call.plan, call.base_round);
  else
    BeginRounds(call);
  return true;
}

void ChannelRelay::BeginRounds(const RelayedCall& call) {
  if (call.num_words == num_words_) return;
  const bool more = call.num_words > num_words_;
  num_words_ = call.num_words;
  for (int member = 0; more && member < static_cast<int>(peers_.size());
       ++member)
    if (member != self_) RingReleased(member);
}

template <typename List>
const RelayedCall* ChannelRelay::CallOf(Next& next, const List& list) const {
  for (; next.call < calls_.size(); next = {next.call + 1, 0})
    if (next.index < list(*calls_[next.call].plan).size())
      return &calls_[next.call];
  return nullptr;
}

// Writes back the lines that the device has written, before it rings in the
// pool.
bool ChannelRelay::AdvancePublications(LineWorkers& workers) {
  const auto list = [](const RelayPlan& plan) -> const auto& {
    return plan.publications;
  };
  bool moved = false;
  while (const RelayedCall* call = CallOf(publication_, list)) {
    const RelayPlan::Publication& next =
        call->plan->publications[publication_.index];
    if (!HasPublished(*call, next.round)) break;
    // Peers read this word when they see the first publication. The device has
    // waited for a free slot, so the peers need no older word at this place.
    if (publication_.index == 0)
      doorbells_.coherence().StoreFlag(
          &in_pool_[self_]->send[0].calls[call->call % kCallWords],
          CallWord(call->call, call->hash));
    std::vector<pool::Part> lines;
    if (write_back_) lines = Lines(*call, next.written, self_);
    writing_back_.push_back({call->base_round + next.round + 1,
                             workers.Start(std::move(lines), /*drop=*/false)});
    ++publication_.index;
    moved = true;
  }
  while (!writing_back_.empty() && writing_back_.front().work->done()) {
    doorbells_.Ring(&in_pool_[self_]->send[0].published,
                    writing_back_.front().rounds);
    writing_back_.pop_front();
    moved = true;
  }
  return moved;
}

// Drops the lines that the device will read, after the peer's doorbell and
// before it rings in the mirror.
bool ChannelRelay::AdvanceArrivals(LineWorkers& workers, int member) {
  const auto list = [member](const RelayPlan& plan) -> const auto& {
    return plan.arrivals[member];
  };
  Peer& peer = peers_[member];
  bool moved = false;
  for (bool seen = false;
       const RelayedCall* call = CallOf(peer.arrival, list);) {
    const RelayPlan::Arrival& next =
        call->plan->arrivals[member][peer.arrival.index];
    const uint64_t rounds = call->base_round + next.round + 1;
    if (peer.published < rounds && !seen) {
      peer.published = doorbells_.Read(&in_pool_[member]->send[0].published);
      seen = true;
    }
    if (peer.published < rounds) break;
    peer.dropping.push_back(
        {{rounds, workers.Start(Lines(*call, next.read, member),
                                /*drop=*/true)},
         call,
         peer.arrival.index == 0});
    ++peer.arrival.index;
    moved = true;
  }
  while (!peer.dropping.empty() && peer.dropping.front().work->done()) {
    RingArrival(peer.dropping.front(), member);
    peer.dropping.pop_front();
    moved = true;
  }
  return moved;
}

void ChannelRelay::RingArrival(const Dropping& arrival, int member) const {
  const uint64_t at = arrival.call->call % kCallWords;
  const uint64_t word = arrival.first
                            ? doorbells_.coherence().LoadFlag(
                                  &in_pool_[member]->send[0].calls[at])
                            : 0;
  for (uint32_t index = 0; index < num_words_; ++index) {
    cuda::SendLine& line = mirror_[member]->send[index];
    if (arrival.first)
      __atomic_store_n(&line.calls[at], word, __ATOMIC_RELEASE);
    RingInMirror(&line.published, arrival.rounds);
  }
}

// Relays the peer's releases of this member's slots, while the device may wait
// for them.
bool ChannelRelay::PassOnReleased(int member) {
  Peer& peer = peers_[member];
  bool moved = false;
  uint64_t needed = 0;
  for (const RelayedCall& call : calls_) {
    const uint64_t last = call.base_round + call.plan->last_written;
    if (call.plan->last_written > 0 && last > call.num_slots)
      needed = last - call.num_slots;
  }
  if (peer.released < needed) {
    const uint64_t seen = doorbells_.Read(&in_pool_[member]->released[0].word);
    if (seen > peer.released) {
      peer.released = seen;
      RingReleased(member);
      moved = true;
    }
  }
  if (peer.ended < calls_.back().awaited_end) {
    const uint64_t seen = doorbells_.Read(&in_pool_[member]->ended.word);
    if (seen > peer.ended) {
      peer.ended = seen;
      RingInMirror(&mirror_[member]->ended.word, seen);
      moved = true;
    }
  }
  return moved;
}

bool ChannelRelay::AdvanceReleases() {
  const auto list = [](const RelayPlan& plan) -> const auto& {
    return plan.releases;
  };
  uint64_t rounds = 0;
  while (const RelayedCall* call = CallOf(release_, list)) {
    const uint64_t next = call->plan->releases[release_.index];
    if (!HasReleased(*call, next)) break;
    rounds = call->base_round + next + 1;
    ++release_.index;
  }
  if (rounds == 0) return false;
  doorbells_.Ring(&in_pool_[self_]->released[0].word, rounds);
  return true;
}

bool ChannelRelay::AdvanceFlagged() {
  if (!flagged_.Advance()) return false;
  calls_.pop_front();
  left_.fetch_sub(1, std::memory_order_release);
  return true;
}

// Ends the first call under way if nothing of it is left.
bool ChannelRelay::Finish() {
  const uint64_t end = calls_.front().base_round + calls_.front().plan->rounds;
  const auto left = [end](const auto& under_way) {
    return !under_way.empty() && under_way.front().rounds <= end;
  };
  if (publication_.call == 0 || release_.call == 0 || left(writing_back_) ||
      Rung(mirror_[self_]->ended.word) < end)
    return false;
  // The device needs nothing more from the peers. But the relay may still have
  // to pass on a doorbell for which the device has waited.
  for (int member = 0; member < static_cast<int>(peers_.size()); ++member)
    if (member != self_ &&
        (peers_[member].arrival.call == 0 || left(peers_[member].dropping)))
      return false;
  doorbells_.Ring(&in_pool_[self_]->ended.word, end);
  calls_.pop_front();
  --publication_.call;
  --release_.call;
  for (int member = 0; member < static_cast<int>(peers_.size()); ++member)
    if (member != self_) --peers_[member].arrival.call;
  left_.fetch_sub(1, std::memory_order_release);
  return true;
}

std::vector<pool::Part> ChannelRelay::Lines(
    const RelayedCall& call, const std::vector<SlotRange>& ranges, int member) {
  const cuda::MemberView& view = call.members[member];
  std::vector<pool::Part> lines;
  for (const SlotRange& range : ranges) {
    const uint64_t round = call.base_round + range.round;
    if (call.slot_step == 0) {
      lines.push_back(
          {view.slots[round % call.num_slots] + range.offset, range.bytes});
      continue;
    }
    // The stripes of each block lie in another slot.
    const uint64_t end = range.offset + range.bytes;
    for (uint64_t at = range.offset; at < end;) {
      const uint64_t unit = at / call.unit_bytes;
      const uint64_t next = std::min(end, (unit + 1) * call.unit_bytes);
      const uint64_t slot = plan::SlotOfBlock(round, unit % call.blocks,
                                              call.slot_step, call.num_slots);
      lines.push_back({view.slots[slot] + at, next - at});
      at = next;
    }
  }
  return lines;
}

bool ChannelRelay::HasPublished(const RelayedCall& call, uint64_t round) const {
  const cuda::MirrorWords& words = *mirror_[self_];
  const uint64_t rounds = call.base_round + round + 1;
  if (call.words_take_turns)
    return Rung(words.send[WordOf(call, round)].published) >= rounds;
  for (uint32_t index = 0; index < call.num_words; ++index)
    if (Rung(words.send[index].published) < rounds) return false;
  return true;
}

bool ChannelRelay::HasReleased(const RelayedCall& call, uint64_t round) const {
  const cuda::MirrorWords& words = *mirror_[self_];
  const uint64_t rounds = call.base_round + round + 1;
  if (!call.words_take_turns) {
    for (uint32_t index = 0; index < call.num_words; ++index)
      if (Rung(words.released[index].word) < rounds) return false;
    return true;
  }
  // These rounds include the last one of each slot.
  for (uint64_t back = 0; back < call.num_slots && back <= round; ++back)
    if (Rung(words.released[WordOf(call, round - back)].word) < rounds - back)
      return false;
  return true;
}

uint64_t ChannelRelay::Rung(const uint64_t& word) const {
  return doorbells_.Value(__atomic_load_n(&word, __ATOMIC_ACQUIRE));
}

void ChannelRelay::RingInMirror(uint64_t* word, uint64_t value) const {
  __atomic_store_n(word, doorbells_.Word(value), __ATOMIC_RELEASE);
}

void ChannelRelay::RingReleased(int member) {
  for (uint32_t index = 0; index < num_words_; ++index)
    RingInMirror(&mirror_[member]->released[index].word,
                 peers_[member].released);
}

}  // namespace jax_cxl::comm
