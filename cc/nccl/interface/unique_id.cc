#include "cc/nccl/interface/unique_id.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace jax_cxl::nccl {
namespace {

struct Tail {
  uint64_t magic;
  PoolToken token;
};
constexpr uint64_t kTailMagic = 0x6469756c78635f78;
constexpr size_t kTailAt = kUniqueIdBytes - sizeof(Tail);

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

}  // namespace

Result<PoolToken> RandomPoolToken() {
  PoolToken token;
  while (token.low == 0) {
    uint64_t numbers[2] = {};
    const ssize_t got = getrandom(numbers, sizeof(numbers), 0);
    if (got != sizeof(numbers) && errno != EINTR)
      return Error(Code::kInternal, "getrandom failed: ",
                   std::generic_category().message(errno));
    token = {numbers[0], numbers[1], {}};
  }
  return token;
}

PoolToken DeriveToken(const PoolToken& parent, std::span<const int> survivors,
                      uint64_t count) {
  PoolToken token = {Mix(parent.high, count + 1), Mix(parent.low, ~count), {}};
  for (int rank : survivors) {
    token.high = Mix(token.high, static_cast<uint64_t>(rank) + 1);
    token.low = Mix(token.low, static_cast<uint64_t>(rank) + 1);
  }
  token.low |= 1;
  return token;
}

SplitPart PartOf(const std::vector<SplitChoice>& choices, int rank) {
  std::vector<int> ranks;
  for (int each = 0; each < static_cast<int>(choices.size()); ++each)
    if (choices[each].color == choices[rank].color) ranks.push_back(each);
  std::ranges::stable_sort(ranks, {},
                           [&](int each) { return choices[each].key; });
  const auto place = std::ranges::find(ranks, rank) - ranks.begin();
  return {choices[ranks.front()].token, static_cast<int>(place),
          static_cast<int>(ranks.size())};
}

std::string PoolName(const PoolToken& token) {
  char name[48];
  std::snprintf(name, sizeof(name), "nccl.%016llx%016llx",
                static_cast<unsigned long long>(token.high),
                static_cast<unsigned long long>(token.low));
  return name;
}

void PutToken(const PoolToken& token, NcclUniqueId* id) {
  const Tail tail = {kTailMagic, token};
  std::memcpy(id->internal + kTailAt, &tail, sizeof(tail));
}

std::optional<PoolToken> TokenOf(const NcclUniqueId& id) {
  Tail tail;
  std::memcpy(&tail, id.internal + kTailAt, sizeof(tail));
  if (tail.magic != kTailMagic || tail.token.low == 0) return std::nullopt;
  return tail.token;
}

}  // namespace jax_cxl::nccl
