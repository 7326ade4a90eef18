#include "cc/comm/health/standstill.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <utility>

#include "cc/base/text.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::comm {
namespace {

// How long nothing must have moved before a rank looks into it.
constexpr auto kStill = std::chrono::milliseconds(100);
// Two: the first may have begun before the others were seen.
constexpr uint64_t kBeatsAfter = 2;

// The call with all in which two ranks' versions of it may differ.
std::string FullText(const UnmatchedCall& unmatched) {
  std::ostringstream text;
  text << DescribeText(*unmatched.call) << " among ranks";
  for (int32_t rank : *unmatched.members) text << " " << rank;
  if (const auto& sources = unmatched.call->request.sources; !sources.empty()) {
    text << ", which receive from the";
    for (int32_t source : sources)
      text << " " << (source < 0 ? "-" : std::to_string(source) + ".");
  }
  return text.str();
}

}  // namespace

Standstill::Standstill(pool::Pool* pool, Peers* peers, int rank)
    : pool_(pool),
      peers_(peers),
      rank_(rank),
      doorbells_(pool->coherence(), pool->epoch()) {}

void Standstill::Move() {
  moved_ = true;
  if (version_ % 2 == 0) return;
  doorbells_.Ring(&pool_->rank_page(rank_)->standstill.version, ++version_);
  seen_.clear();
}

Status Standstill::Check(Clock::time_point now,
                         const std::vector<UnmatchedCall>& calls,
                         uint64_t started) {
  if (std::exchange(moved_, false)) since_ = now;
  if (now - since_ < kStill || calls.empty()) return OkStatus();
  for (const UnmatchedCall& entry : calls)
    if (entry.call == nullptr) return OkStatus();
  if (version_ % 2 == 0) Publish(calls, started);

  std::vector<Other> knot = Knot();
  if (knot.empty()) {
    seen_.clear();
    return OkStatus();
  }
  if (seen_.empty()) idle_.Start();
  const bool same =
      std::equal(knot.begin(), knot.end(), seen_.begin(), seen_.end(),
                 [](const Other& a, const Other& b) {
                   return a.rank == b.rank && a.version == b.version;
                 });
  if (!same) {
    seen_ = std::move(knot);
    return OkStatus();
  }
  if (!idle_.Check()) {
    // Not by idle threads alone: what was computed may be over by now.
    idle_.Start();
    return OkStatus();
  }
  doorbells_.Ring(&pool_->rank_page(rank_)->standstill_beats.word, ++beats_);
  for (size_t i = 0; i < knot.size(); ++i)
    if (knot[i].beats < seen_[i].beats + kBeatsAfter) return OkStatus();
  return Report(knot);
}

void Standstill::Publish(const std::vector<UnmatchedCall>& calls,
                         uint64_t started) {
  pool::RankStandstill& shared = pool_->rank_page(rank_)->standstill;
  pool::RankStandstill entry = {};
  entry.version = doorbells_.Word(version_);
  const UnmatchedCall* oldest = &calls[0];
  for (const UnmatchedCall& unmatched : calls) {
    for (int32_t member : *unmatched.members)
      entry.waits_for[member / 64] |= uint64_t{1} << member % 64;
    if (unmatched.call->submitted < oldest->call->submitted)
      oldest = &unmatched;
  }
  entry.started = started;
  std::snprintf(entry.call, sizeof(entry.call), "%s",
                FullText(*oldest).c_str());
  pool::StoreWords(&shared, entry);
  pool_->coherence().PublishPayload(&shared, sizeof(shared));
  doorbells_.Ring(&shared.version, ++version_);
}

std::vector<Standstill::Other> Standstill::Knot() const {
  std::vector<Other> knot;
  std::vector<bool> known(pool_->world_size());
  std::vector<int> open = {rank_};
  known[rank_] = true;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    pool::RankPage* page = pool_->rank_page(rank);
    const uint64_t version = doorbells_.Read(&page->standstill.version);
    if (version % 2 == 0) return {};
    const auto entry = pool_->coherence().AcquireWords(page->standstill);
    if (doorbells_.Read(&page->standstill.version) != version) return {};
    if (rank != rank_)
      knot.push_back(
          {rank, version, doorbells_.Read(&page->standstill_beats.word)});
    for (int other = 0; other < pool_->world_size(); ++other) {
      if ((entry.waits_for[other / 64] >> other % 64 & 1) == 0 || known[other])
        continue;
      known[other] = true;
      open.push_back(other);
    }
  }
  return knot;
}

Status Standstill::Report(const std::vector<Other>& knot) const {
  auto call_of = [&](int rank) {
    const auto entry =
        pool_->coherence().AcquireWords(pool_->rank_page(rank)->standstill);
    return std::pair(PrintableText(entry.call), entry.started);
  };
  const auto [mine, my_started] = call_of(rank_);
  // The other side: a rank in another call, if there is one.
  int other = knot.front().rank;
  for (const Other& candidate : knot) {
    if (call_of(candidate.rank).first == mine) continue;
    other = candidate.rank;
    break;
  }
  const auto [theirs, their_started] = call_of(other);
  std::ostringstream rest;
  for (const Other& third : knot)
    if (third.rank != other)
      rest << "; " << peers_->Name(third.rank) << " in "
           << call_of(third.rank).first;
  std::string why = kSamePrograms;
  if (mine == theirs)
    why +=
        ": they may be in different executions of one program, such as "
        "loops of different length, or have more programs under way than "
        "XLA runs at once (call block_until_ready every few steps)";
  return Error(Code::kMismatch,
               "the ranks wait for each other in different collectives: ",
               peers_->Name(rank_), " in ", mine, " (the ", my_started,
               ". that it started); ", peers_->Name(other), " in ", theirs,
               " (the ", their_started, ".)", rest.str(), ". None can go on. ",
               why)
      .With("rank_0", rank_)
      .With("call_0", mine)
      .With("rank_1", other)
      .With("call_1", theirs);
}

}  // namespace jax_cxl::comm
