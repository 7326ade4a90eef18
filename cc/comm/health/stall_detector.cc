#include "cc/comm/health/stall_detector.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "cc/base/text.h"
#include "cc/comm/health/wait_monitor.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::comm {
namespace {

// Time without progress before a rank looks for a cycle of waits.
constexpr auto kStallTime = std::chrono::milliseconds(100);
// A rank beats each time it finds that all ranks of the cycle have stalled. A
// stall is certain once each of the others has beaten this many times since
// this rank saw the cycle. One beat is not enough, because the other rank may
// have made its checks for that beat before this rank saw the cycle.
constexpr uint64_t kBeatsAfter = 2;

constexpr std::string_view kInLaunch = ", in launch ";

// Describes the call with every detail on which two ranks may disagree.
std::string FullText(const UnmatchedCall& unmatched) {
  std::ostringstream text;
  text << DescribeText(*unmatched.call) << " among ranks";
  for (int32_t rank : *unmatched.members) text << " " << rank;
  if (const auto& sources = unmatched.call->request.sources; !sources.empty()) {
    text << ", which receive from members";
    for (int32_t source : sources)
      text << " " << (source < 0 ? "-" : std::to_string(source));
  }
  if (const comm::Call& call = *unmatched.call; call.program != nullptr) {
    text << kInLaunch << call.launch << " of " << *call.program;
    if (call.execution > 1) text << ", execution " << call.execution;
  }
  return text.str();
}

// The end of a FullText that names program, launch and execution.
std::string_view LaunchIn(std::string_view text) {
  return text.substr(std::min(text.find(kInLaunch), text.size()));
}

const UnmatchedCall& Oldest(const std::vector<UnmatchedCall>& calls) {
  return *std::ranges::min_element(calls, {}, [](const UnmatchedCall& each) {
    return each.call->submitted;
  });
}

}  // namespace

StallDetector::StallDetector(pool::Pool* pool, Peers* peers, int rank)
    : pool_(pool), peers_(peers), rank_(rank), doorbells_(pool->doorbells()) {}

void StallDetector::NoteProgress() {
  progressed_ = true;
  Retract();
}

void StallDetector::Retract() {
  if (version_ % 2 == 0) return;
  doorbells_.Ring(&pool_->rank_page(rank_)->stall.version, ++version_);
  seen_.clear();
}

Result<const Call*> StallDetector::Check(
    Clock::time_point now, const std::vector<UnmatchedCall>& calls,
    uint64_t started) {
  if (std::exchange(progressed_, false)) last_progress_ = now;
  if (now - last_progress_ < kStallTime || calls.empty()) return nullptr;
  for (const UnmatchedCall& entry : calls)
    if (entry.call == nullptr) return nullptr;
  if (peers_->ProgramFails(rank_) != fails_) Retract();
  if (version_ % 2 == 0) Publish(calls, started);

  std::vector<StalledRank> cycle = FindWaitCycle();
  if (cycle.size() < 2) {
    seen_.clear();
    return nullptr;
  }
  if (seen_.empty()) idle_.Start();
  const auto stall = [](const StalledRank& stalled) {
    return std::pair(stalled.rank, stalled.version);
  };
  if (!std::ranges::equal(cycle, seen_, {}, stall, stall)) {
    seen_ = std::move(cycle);
    return nullptr;
  }
  if (!idle_.Check()) {
    // The process has done something since idle_.Start. Even if its threads are
    // idle at this moment, this proves nothing, because a computation may have
    // ended just now. So measure again.
    idle_.Start();
    return nullptr;
  }
  doorbells_.Ring(&pool_->rank_page(rank_)->stall_beats.word, ++beats_);
  for (size_t i = 1; i < cycle.size(); ++i)
    if (cycle[i].beats < seen_[i].beats + kBeatsAfter) return nullptr;
  if (cycle[0].stall.failed != 0) return Oldest(calls).call;
  // The others may continue once these ranks have ended their calls.
  for (const StalledRank& stalled : cycle)
    if (stalled.stall.failed != 0) return nullptr;
  return Report(cycle);
}

void StallDetector::Publish(const std::vector<UnmatchedCall>& calls,
                            uint64_t started) {
  pool::RankStall& shared = pool_->rank_page(rank_)->stall;
  pool::RankStall entry = {};
  entry.version = doorbells_.Word(version_);
  const UnmatchedCall& oldest = Oldest(calls);
  for (const UnmatchedCall& unmatched : calls) {
    for (int32_t member : *unmatched.members)
      entry.waits_for[member / 64] |= uint64_t{1} << member % 64;
    entry.needs_pool_bytes =
        std::max(entry.needs_pool_bytes, unmatched.needed_pool_bytes);
  }
  entry.started = started;
  std::snprintf(entry.call, sizeof(entry.call), "%s", FullText(oldest).c_str());
  fails_ = peers_->ProgramFails(rank_);
  // A call in levels has other ranks of the process to wait for, which would
  // not learn that it has ended.
  entry.failed =
      fails_ && oldest.call->program_hash != 0 && !oldest.call->in_levels;
  pool::StoreWords(&shared, entry);
  pool_->coherence().PublishPayload(&shared, sizeof(shared));
  doorbells_.Ring(&shared.version, ++version_);
}

std::vector<StallDetector::StalledRank> StallDetector::FindWaitCycle() const {
  std::vector<StalledRank> cycle;
  std::vector<bool> known(pool_->world_size());
  std::vector<int> open = {rank_};
  known[rank_] = true;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    pool::RankPage* page = pool_->rank_page(rank);
    const uint64_t version = doorbells_.Read(&page->stall.version);
    if (version % 2 == 0) return {};
    const auto stall = pool_->coherence().AcquireWords(page->stall);
    if (doorbells_.Read(&page->stall.version) != version) return {};
    cycle.push_back(
        {rank, version, doorbells_.Read(&page->stall_beats.word), stall});
    for (int other = 0; other < pool_->world_size(); ++other) {
      if ((stall.waits_for[other / 64] >> other % 64 & 1) == 0 || known[other])
        continue;
      known[other] = true;
      open.push_back(other);
    }
  }
  return cycle;
}

Status StallDetector::Report(const std::vector<StalledRank>& cycle) const {
  const StalledRank& lacking =
      *std::ranges::max_element(cycle, {}, [](const StalledRank& stalled) {
        return stalled.stall.needs_pool_bytes;
      });
  if (lacking.stall.needs_pool_bytes > 0)
    return Error(Code::kResourceExhausted, peers_->Name(lacking.rank),
                 " waits for ", LacksMemory(lacking.stall.needs_pool_bytes),
                 ". The ranks wait for each other, so that none of these "
                 "groups can give its memory back")
        .With(peers_->Identity(lacking.rank));
  const auto call_of = [](const StalledRank& stalled) {
    return PrintableText(stalled.stall.call);
  };
  const std::string mine = call_of(cycle[0]);
  // As the other side, name a rank that is in a different call, if there is
  // one.
  auto other = std::ranges::find_if(
      cycle, [&](const StalledRank& each) { return call_of(each) != mine; });
  if (other == cycle.end()) other = cycle.begin() + 1;
  const std::string theirs = call_of(*other);
  std::ostringstream rest;
  for (auto third = cycle.begin() + 1; third != cycle.end(); ++third)
    if (third != other)
      rest << "; " << peers_->Name(third->rank) << " in " << call_of(*third);
  std::string why = kSamePrograms;
  if (mine == theirs)
    why +=
        ": they may be in different executions of one program, such as "
        "loops of different length, or have more programs under way than "
        "XLA runs at once (call block_until_ready every few steps)";
  else if (LaunchIn(mine) != LaunchIn(theirs))
    why +=
        ". If more threads launch programs than this machine has cores, set "
        "NPROC to their number: XLA then runs as many programs at once";
  return Error(Code::kMismatch,
               "the ranks wait for each other in different collectives: ",
               peers_->Name(rank_), " in ", mine, " (its collective number ",
               cycle[0].stall.started, "); ", peers_->Name(other->rank), " in ",
               theirs, " (its collective number ", other->stall.started, ")",
               rest.str(), ". None of them can continue. ", why)
      .With("rank_0", rank_)
      .With("call_0", mine)
      .With("rank_1", other->rank)
      .With("call_1", theirs);
}

}  // namespace jax_cxl::comm
