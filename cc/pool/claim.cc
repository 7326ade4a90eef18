#include "cc/pool/claim.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "cc/base/idle.h"
#include "cc/base/process_identity.h"
#include "cc/pool/layout/header.h"

namespace jax_cxl::pool {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBeat(100);
// How long a creator waits between storing its token and checking it. This is
// much longer than the time between another creator's last check and its store
// of a token.
constexpr milliseconds kSettle(100);

}  // namespace

Result<std::unique_ptr<Claim>> Claim::Take(std::vector<HeaderPage*> pages,
                                           const Coherence& coherence,
                                           const MappingGuard& guard,
                                           uint64_t token,
                                           const std::string& path) {
  for (HeaderPage* page : pages) {
    PoolKeeper& keeper = page->keeper;
    coherence.StoreFlag(&keeper.claim, 0);
    BeginKeeper(keeper);
    keeper.released = 0;
    keeper.process = ThisProcess();
    coherence.PublishPayload(&keeper, sizeof(keeper));
    coherence.StoreFlag(&keeper.claim, token);
  }
  std::unique_ptr<Claim> claim(
      new Claim(std::move(pages), coherence, guard, token));
  std::this_thread::sleep_for(kSettle);
  for (HeaderPage* page : claim->pages_) {
    const PoolKeeper keeper = coherence.AcquireCopy(page->keeper);
    if (keeper.claim != token)
      return Error(Code::kAlreadyExists, path,
                   " was taken at the same moment by another job, of ",
                   DescribeProcess(keeper.process),
                   "; give this job a pool of its own");
  }
  return claim;
}

Claim::Claim(std::vector<HeaderPage*> pages, const Coherence& coherence,
             const MappingGuard& guard, uint64_t token)
    : pages_(std::move(pages)),
      coherence_(coherence),
      guard_(guard),
      token_(token),
      beats_([this](const std::stop_token& stop) {
        const OwnThread own;
        Beat(stop);
      }) {}

Claim::~Claim() {
  beats_.request_stop();
  beats_.join();
  for (HeaderPage* page : pages_) {
    PoolKeeper& keeper = page->keeper;
    if (guard_.intact() && coherence_.LoadFlag(&keeper.claim) == token_)
      coherence_.StoreFlag(&keeper.released, token_);
  }
}

void Claim::Beat(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  for (uint64_t beat = 1; !stop.stop_requested(); ++beat) {
    for (HeaderPage* page : pages_) {
      // If another job has taken the extent, leave the counter there alone,
      // because it belongs to that job.
      if (guard_.intact() && coherence_.LoadFlag(&page->keeper.claim) == token_)
        coherence_.StoreFlag(&page->keeper_beat.word, beat);
    }
    stopped.wait_for(lock, stop, kBeat, [] { return false; });
  }
}

}  // namespace jax_cxl::pool
