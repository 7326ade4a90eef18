#include "cc/comm/health/regroup.h"

#include <cstdio>
#include <cstring>

#include "cc/base/text.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::comm {

void JoinAttempt(pool::Pool* pool, int rank, uint64_t attempt) {
  pool->doorbells().Ring(&pool->rank_page(rank)->regroup.joined, attempt);
}

bool JoinedAttempt(const pool::Pool& pool, int rank, uint64_t attempt) {
  return pool.doorbells().Read(&pool.rank_page(rank)->regroup.joined) >=
         attempt;
}

Status DecideAttempt(pool::Pool* pool, int rank, uint64_t attempt,
                     const Decision& decision) {
  pool::RankRegroup& entry = pool->rank_page(rank)->regroup;
  if (decision.place.size() >= sizeof(entry.place))
    return Error(Code::kResourceExhausted,
                 "the description of the new pool has ", decision.place.size(),
                 " characters, but at most ", sizeof(entry.place) - 1,
                 " fit; use shorter or fewer paths: ", decision.place);
  std::memset(entry.members, 0, sizeof(entry.members));
  for (int member : decision.members)
    entry.members[member / 64] |= uint64_t{1} << member % 64;
  std::snprintf(entry.place, sizeof(entry.place), "%s", decision.place.c_str());
  pool->coherence().PublishPayload(&entry, sizeof(entry));
  pool->doorbells().Ring(&entry.decided, attempt);
  return OkStatus();
}

std::optional<Decision> DecidedAttempt(const pool::Pool& pool, int rank,
                                       uint64_t attempt) {
  const pool::RankRegroup& entry = pool.rank_page(rank)->regroup;
  if (pool.doorbells().Read(&entry.decided) != attempt) return std::nullopt;
  const pool::RankRegroup copy = pool.coherence().AcquireCopy(entry);
  Decision decision;
  for (int member = 0; member < pool.world_size(); ++member)
    if (copy.members[member / 64] >> member % 64 & 1)
      decision.members.push_back(member);
  decision.place = PrintableText(copy.place);
  return decision;
}

bool Registered(const pool::Pool& pool, int rank) {
  return pool.doorbells().Read(&pool.rank_page(rank)->info.ready) != 0;
}

std::string BootIdOf(const pool::Pool& pool, int rank) {
  const pool::RankInfo info =
      pool.coherence().AcquireCopy(pool.rank_page(rank)->info);
  return PrintableText(info.process.boot_id);
}

}  // namespace jax_cxl::comm
