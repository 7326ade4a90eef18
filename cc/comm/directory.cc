#include "cc/comm/directory.h"

#include <mutex>

namespace jax_cxl::comm {

Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         int rank, const pool::ChannelPlace& place) {
  // One for all ranks of the process: channels are opened once in a job.
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  pool::ChannelEntry* channels = pool->rank_page(rank)->channels;
  for (int i = 0; i < pool::kMaxChannels; ++i) {
    pool::ChannelEntry& entry = channels[i];
    if (doorbells.Read(&entry.ready) != 0) continue;
    entry.place = place;
    pool->coherence().PublishPayload(&entry.place, sizeof(place));
    doorbells.Ring(&entry.ready, 1);
    return i;
  }
  return Error(Code::kResourceExhausted, "a rank can be a member of at most ",
               pool::kMaxChannels, " different groups");
}

std::optional<pool::ChannelPlace> FindChannel(const pool::Pool& pool,
                                              const pool::Doorbells& doorbells,
                                              int rank, uint64_t group) {
  for (const pool::ChannelEntry& entry : pool.rank_page(rank)->channels) {
    if (doorbells.Read(&entry.ready) == 0) break;
    const pool::ChannelPlace place = pool.coherence().AcquireCopy(entry.place);
    if (place.group == group) return place;
  }
  return std::nullopt;
}

}  // namespace jax_cxl::comm
