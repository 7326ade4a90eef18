#include "cc/comm/relay/channel_relay.h"

#include <algorithm>
#include <utility>

namespace jax_cxl::comm {

using cuda::CallWord;
using cuda::kCallWords;

ChannelRelay::ChannelRelay(const pool::Doorbells& doorbells, bool write_back,
                           std::vector<cuda::DeviceControl*> in_pool,
                           std::vector<cuda::MirrorWords*> mirror, int self)
    : doorbells_(doorbells),
      write_back_(write_back),
      in_pool_(std::move(in_pool)),
      mirror_(std::move(mirror)),
      self_(self),
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
    call_.reset();
    left_.store(0, std::memory_order_release);
    return false;
  }
  if (!call_ && !Begin()) return false;
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
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) return false;
    call_ = std::move(queue_.front());
    queue_.pop_front();
  }
  next_publication_ = 0;
  next_release_ = 0;
  const bool more_words = call_->num_words > num_words_;
  num_words_ = call_->num_words;
  for (int member = 0; member < static_cast<int>(peers_.size()); ++member) {
    if (member == self_) continue;
    peers_[member].next_arrival = 0;
    peers_[member].in_call = false;
    if (more_words) RingReleased(member);
  }
  // Peers read this word when they see the first publication.
  doorbells_.coherence().StoreFlag(
      &in_pool_[self_]->send[0].calls[call_->call % kCallWords],
      CallWord(call_->call, call_->hash));
  return true;
}

// Writes back the lines that the device has written, before it rings in the
// pool.
bool ChannelRelay::AdvancePublications(LineWorkers& workers) {
  const auto& publications = call_->plan->publications;
  bool moved = false;
  for (; next_publication_ < publications.size(); ++next_publication_) {
    const RelayPlan::Publication& next = publications[next_publication_];
    if (!HasPublished(next.round)) break;
    std::vector<pool::Part> lines;
    if (write_back_) lines = Lines(next.written, self_);
    writing_back_.push_back({call_->base_round + next.round + 1,
                             workers.Start(std::move(lines), /*drop=*/false)});
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
  const auto& arrivals = call_->plan->arrivals[member];
  Peer& peer = peers_[member];
  cuda::SendLine& theirs = in_pool_[member]->send[0];
  bool moved = false;
  if (peer.next_arrival < arrivals.size() &&
      peer.published <
          call_->base_round + arrivals[peer.next_arrival].round + 1)
    peer.published = doorbells_.Read(&theirs.published);
  for (; peer.next_arrival < arrivals.size(); ++peer.next_arrival) {
    const RelayPlan::Arrival& next = arrivals[peer.next_arrival];
    const uint64_t rounds = call_->base_round + next.round + 1;
    if (peer.published < rounds) break;
    peer.dropping.push_back(
        {rounds, workers.Start(Lines(next.read, member), /*drop=*/true)});
    moved = true;
  }
  while (!peer.dropping.empty() && peer.dropping.front().work->done()) {
    const uint64_t rounds = peer.dropping.front().rounds;
    peer.dropping.pop_front();
    moved = true;
    const uint64_t at = call_->call % kCallWords;
    const uint64_t word =
        peer.in_call ? 0 : doorbells_.coherence().LoadFlag(&theirs.calls[at]);
    for (uint32_t index = 0; index < call_->num_words; ++index) {
      cuda::SendLine& line = mirror_[member]->send[index];
      if (!peer.in_call)
        __atomic_store_n(&line.calls[at], word, __ATOMIC_RELEASE);
      RingInMirror(&line.published, rounds);
    }
    peer.in_call = true;
  }
  return moved;
}

// Relays the peer's releases of this member's slots, while the device may wait
// for them.
bool ChannelRelay::PassOnReleased(int member) {
  Peer& peer = peers_[member];
  bool moved = false;
  const uint64_t last = call_->base_round + call_->plan->last_written;
  const uint64_t needed =
      call_->plan->last_written > 0 && last > call_->num_slots
          ? last - call_->num_slots
          : 0;
  if (peer.released < needed) {
    const uint64_t seen = doorbells_.Read(&in_pool_[member]->released[0].word);
    if (seen > peer.released) {
      peer.released = seen;
      RingReleased(member);
      moved = true;
    }
  }
  if (call_->awaits_end && peer.ended < call_->base_round) {
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
  const auto& releases = call_->plan->releases;
  const size_t before = next_release_;
  while (next_release_ < releases.size() &&
         HasReleased(releases[next_release_]))
    ++next_release_;
  if (next_release_ == before) return false;
  doorbells_.Ring(&in_pool_[self_]->released[0].word,
                  call_->base_round + releases[next_release_ - 1] + 1);
  return true;
}

bool ChannelRelay::Finish() {
  const RelayPlan& relay_plan = *call_->plan;
  const uint64_t end = call_->base_round + relay_plan.rounds;
  if (next_publication_ < relay_plan.publications.size() ||
      next_release_ < relay_plan.releases.size() || !writing_back_.empty() ||
      Rung(mirror_[self_]->ended.word) < end)
    return false;
  // The device needs nothing more from the peers. But a doorbell that the
  // device only waited for may still be on its way.
  for (int member = 0; member < static_cast<int>(peers_.size()); ++member)
    if (peers_[member].next_arrival < relay_plan.arrivals[member].size() ||
        !peers_[member].dropping.empty())
      return false;
  doorbells_.Ring(&in_pool_[self_]->ended.word, end);
  call_.reset();
  left_.fetch_sub(1, std::memory_order_release);
  return true;
}

std::vector<pool::Part> ChannelRelay::Lines(
    const std::vector<SlotRange>& ranges, int member) const {
  const cuda::MemberView& view = call_->members[member];
  std::vector<pool::Part> lines;
  for (const SlotRange& range : ranges) {
    const uint64_t round = call_->base_round + range.round;
    if (call_->slot_step == 0) {
      lines.push_back(
          {view.slots[round % call_->num_slots] + range.offset, range.bytes});
      continue;
    }
    // The stripes of each block lie in another slot.
    const uint64_t end = range.offset + range.bytes;
    for (uint64_t at = range.offset; at < end;) {
      const uint64_t unit = at / call_->unit_bytes;
      const uint64_t next = std::min(end, (unit + 1) * call_->unit_bytes);
      const uint64_t slot = plan::SlotOfBlock(
          round, unit % call_->blocks, call_->slot_step, call_->num_slots);
      lines.push_back({view.slots[slot] + at, next - at});
      at = next;
    }
  }
  return lines;
}

bool ChannelRelay::HasPublished(uint64_t round) const {
  const cuda::MirrorWords& words = *mirror_[self_];
  const uint64_t rounds = call_->base_round + round + 1;
  if (call_->words_take_turns)
    return Rung(words.send[WordOf(round)].published) >= rounds;
  for (uint32_t index = 0; index < call_->num_words; ++index)
    if (Rung(words.send[index].published) < rounds) return false;
  return true;
}

bool ChannelRelay::HasReleased(uint64_t round) const {
  const cuda::MirrorWords& words = *mirror_[self_];
  const uint64_t rounds = call_->base_round + round + 1;
  if (!call_->words_take_turns) {
    for (uint32_t index = 0; index < call_->num_words; ++index)
      if (Rung(words.released[index].word) < rounds) return false;
    return true;
  }
  // These rounds include the last one of each slot.
  for (uint64_t back = 0; back < call_->num_slots && back <= round; ++back)
    if (Rung(words.released[WordOf(round - back)].word) < rounds - back)
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
