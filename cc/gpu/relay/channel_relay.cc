#include "cc/gpu/relay/channel_relay.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace jax_cxl::comm {

using cuda::CallWord;
using cuda::kCallWords;

namespace {

// Number of calls of a series that can overlap. While the last rounds of one
// call are read, the first rounds of the next call are written. The ring has no
// slots left for a third call.
constexpr size_t kMostUnderWay = 2;

// Rounds use the words of the mirror in turn. Returns the index of the word
// that the last of `rounds` rounds uses.
uint32_t WordOf(const RelayedCall& call, uint64_t rounds) {
  return static_cast<uint32_t>((rounds - 1) % call.num_slots % call.num_words);
}

}  // namespace

ChannelRelay::ChannelRelay(const pool::Doorbells& doorbells, bool write_back,
                           std::vector<cuda::DeviceControl*> in_pool,
                           std::vector<cuda::MirrorWords*> mirror,
                           FlaggedRings rings, int self)
    : doorbells_(doorbells),
      write_back_(write_back),
      self_(self),
      in_pool_(*in_pool[self]),
      mirror_(*mirror[self]),
      flagged_(write_back, std::move(rings)) {
  for (int member = 0; member < static_cast<int>(mirror.size()); ++member) {
    if (member != self)
      peers_.push_back({member, in_pool[member], mirror[member]});
    // Streams compare words as numbers that wrap around, so the words need a
    // start value: see DeviceConnection::Open.
    cuda::MirrorWords& words = *mirror[member];
    for (int index = 0; index < cuda::kMaxBlocks; ++index) {
      RingInMirror(&words.send[index].published, 0);
      RingInMirror(&words.released[index].word, 0);
    }
    RingInMirror(&words.ended.word, 0);
  }
}

void ChannelRelay::Enqueue(RelayedCall call) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(call));
  left_.fetch_add(1, std::memory_order_release);
}

bool ChannelRelay::Advance(LineWorkers& workers) {
  if (stopped()) {
    std::lock_guard lock(mutex_);
    queue_.clear();
    calls_.clear();
    left_.store(0, std::memory_order_release);
    return false;
  }
  while (journal_ != nullptr) {
    std::optional<RelayedCall> begun = journal_->Next();
    if (!begun) break;
    Enqueue(*std::move(begun));
  }
  while (Begin()) {
  }
  if (calls_.empty()) return false;
  if (!calls_.front().flagged) {
    bool moved = AdvancePublications(workers);
    for (Peer& peer : peers_) {
      moved |= AdvanceArrivals(workers, peer);
      moved |= PassOnReleased(peer);
    }
    moved |= AdvanceReleases();
    if (!Finish()) return moved;
  } else if (!flagged_.Advance()) {
    return false;
  }
  calls_.pop_front();
  left_.fetch_sub(1, std::memory_order_release);
  ended_.fetch_add(1, std::memory_order_release);
  return true;
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
  const auto add = [&](const std::vector<RelayPlan::Step>& from, Steps& to) {
    for (const RelayPlan::Step& step : from)
      to.push_back({&call, call.base_round + step.round + 1,
                    &step == &from.front(), &step.ranges});
  };
  add(call.plan->publications, publications_);
  add(call.plan->releases, releases_);
  const bool more = call.num_words > num_words_;
  num_words_ = call.num_words;
  for (Peer& peer : peers_) {
    add(call.plan->arrivals[peer.member], peer.arrivals);
    if (more) RingReleased(peer);
  }
}

// Publishes the rounds that the device has published in the mirror: writes back
// the lines that the device has written, and then rings the doorbell in the
// pool.
bool ChannelRelay::AdvancePublications(LineWorkers& workers) {
  bool moved = false;
  while (!publications_.empty() && HasPublished(publications_.front())) {
    Step& next = publications_.front();
    // This word identifies the call. Peers read it when they see the first
    // publication of the call. The word replaces an older call's word. The
    // device has waited for a free slot, so the peers no longer need the older
    // word.
    if (next.first)
      doorbells_.coherence().StoreFlag(
          &in_pool_.send[0].calls[next.call->call % kCallWords],
          CallWord(next.call->call, next.call->hash));
    std::vector<pool::Part> lines;
    if (write_back_) lines = Lines(next, self_);
    next.work = workers.Start(lines, /*drop=*/false);
    writing_back_.push_back(std::move(next));
    publications_.pop_front();
    moved = true;
  }
  while (!writing_back_.empty() && writing_back_.front().work->done()) {
    doorbells_.Ring(&in_pool_.send[0].published, writing_back_.front().rounds);
    writing_back_.pop_front();
    moved = true;
  }
  return moved;
}

// Passes on the rounds that the peer has published in the pool: drops the lines
// that the device will read, and then rings the doorbell in the mirror.
bool ChannelRelay::AdvanceArrivals(LineWorkers& workers, Peer& peer) {
  if (!peer.arrivals.empty())
    Grew(&peer.in_pool->send[0].published, peer.arrivals.back().rounds,
         &peer.published);
  bool moved = false;
  while (!peer.arrivals.empty() &&
         peer.arrivals.front().rounds <= peer.published) {
    Step& next = peer.arrivals.front();
    next.work = workers.Start(Lines(next, peer.member), /*drop=*/true);
    peer.dropping.push_back(std::move(next));
    peer.arrivals.pop_front();
    moved = true;
  }
  while (!peer.dropping.empty() && peer.dropping.front().work->done()) {
    RingArrival(peer.dropping.front(), peer);
    peer.dropping.pop_front();
    moved = true;
  }
  return moved;
}

void ChannelRelay::RingArrival(const Step& arrival, const Peer& peer) const {
  const uint64_t at = arrival.call->call % kCallWords;
  const uint64_t word =
      arrival.first
          ? doorbells_.coherence().LoadFlag(&peer.in_pool->send[0].calls[at])
          : 0;
  for (uint32_t index = 0; index < num_words_; ++index) {
    cuda::SendLine& line = peer.mirror->send[index];
    if (arrival.first)
      __atomic_store_n(&line.calls[at], word, __ATOMIC_RELEASE);
    RingInMirror(&line.published, arrival.rounds);
  }
}

// Passes on how far the peer has released this member's slots, and how far the
// peer has ended its calls, as long as the device may wait for that.
bool ChannelRelay::PassOnReleased(Peer& peer) {
  uint64_t needed = 0;
  for (const RelayedCall& call : calls_) {
    const uint64_t last = call.base_round + call.plan->last_written;
    if (call.plan->last_written > 0 && last > call.num_slots)
      needed = last - call.num_slots;
  }
  const bool released =
      Grew(&peer.in_pool->released[0].word, needed, &peer.released);
  if (released) RingReleased(peer);
  const bool ended =
      Grew(&peer.in_pool->ended.word, calls_.back().awaited_end, &peer.ended);
  if (ended) RingInMirror(&peer.mirror->ended.word, peer.ended);
  return released || ended;
}

bool ChannelRelay::AdvanceReleases() {
  uint64_t rounds = 0;
  for (; !releases_.empty() && HasReleased(releases_.front());
       releases_.pop_front())
    rounds = releases_.front().rounds;
  if (rounds == 0) return false;
  doorbells_.Ring(&in_pool_.released[0].word, rounds);
  return true;
}

// If no work of the first call is left, tells the peers that this member has
// ended the call, and returns true.
bool ChannelRelay::Finish() {
  const RelayedCall& call = calls_.front();
  const uint64_t end = call.base_round + call.plan->rounds;
  const auto left = [&call](const Steps& steps) {
    return !steps.empty() && steps.front().call == &call;
  };
  // Once the device has ended the call, it needs nothing more from the peers.
  // But the relay may still have to pass on doorbells, so no step of the call
  // may be left.
  if (left(publications_) || left(writing_back_) || left(releases_) ||
      Rung(mirror_.ended.word) < end ||
      std::ranges::any_of(peers_, [&left](const Peer& peer) {
        return left(peer.arrivals) || left(peer.dropping);
      }))
    return false;
  doorbells_.Ring(&in_pool_.ended.word, end);
  return true;
}

std::vector<pool::Part> ChannelRelay::Lines(const Step& step, int member) {
  const RelayedCall& call = *step.call;
  const cuda::MemberView& view = call.members[member];
  std::vector<pool::Part> lines;
  for (const SlotRange& range : *step.ranges) {
    const uint64_t round = call.base_round + range.round;
    if (call.slot_step == 0) {
      lines.push_back(
          {view.slots[round % call.num_slots] + range.offset, range.bytes});
      continue;
    }
    // The stripes of different thread blocks lie in different slots. So add the
    // range unit by unit: each unit lies in the stripe of one block.
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

bool ChannelRelay::HasPublished(const Step& step) const {
  const RelayedCall& call = *step.call;
  if (call.words_take_turns)
    return Rung(mirror_.send[WordOf(call, step.rounds)].published) >=
           step.rounds;
  for (uint32_t index = 0; index < call.num_words; ++index)
    if (Rung(mirror_.send[index].published) < step.rounds) return false;
  return true;
}

bool ChannelRelay::HasReleased(const Step& step) const {
  const RelayedCall& call = *step.call;
  if (!call.words_take_turns) {
    for (uint32_t index = 0; index < call.num_words; ++index)
      if (Rung(mirror_.released[index].word) < step.rounds) return false;
    return true;
  }
  // Each word counts its own rounds. The last `num_slots` rounds include the
  // last round of each slot, and so of each word.
  uint64_t rounds = step.rounds;
  for (uint32_t slot = 0; slot < call.num_slots && rounds > call.base_round;
       ++slot, --rounds)
    if (Rung(mirror_.released[WordOf(call, rounds)].word) < rounds)
      return false;
  return true;
}

uint64_t ChannelRelay::Rung(const uint64_t& word) const {
  return doorbells_.Value(__atomic_load_n(&word, __ATOMIC_ACQUIRE));
}

bool ChannelRelay::Grew(const uint64_t* word, uint64_t enough,
                        uint64_t* known) const {
  if (*known >= enough) return false;
  const uint64_t seen = doorbells_.Read(word);
  return std::exchange(*known, std::max(*known, seen)) < seen;
}

void ChannelRelay::RingInMirror(uint64_t* word, uint64_t value) const {
  __atomic_store_n(word, doorbells_.Word(value), __ATOMIC_RELEASE);
}

void ChannelRelay::RingReleased(const Peer& peer) const {
  for (uint32_t index = 0; index < num_words_; ++index)
    RingInMirror(&peer.mirror->released[index].word, peer.released);
}

}  // namespace jax_cxl::comm
