// Sanitizers: address

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cc/nccl/calls/operation.h"

namespace jax_cxl::nccl {
namespace {

std::byte from[1], to[1];

Transfer Make(int source, int destination, bool sends, uint64_t bytes = 8) {
  Transfer transfer;
  transfer.source = source;
  transfer.destination = destination;
  if (sends)
    transfer.input = from;
  else
    transfer.output = to;
  transfer.bytes = bytes;
  return transfer;
}

// Simulates ranks that execute their batches one after another. A batch ends
// when, for each of its transfers, the other rank has reached the batch that
// contains the transfer.
bool AllEnd(const std::vector<Batches>& ranks) {
  std::vector<size_t> at(ranks.size());
  const auto in = [&](int rank, int source, int destination, size_t k) {
    size_t found = 0;
    for (size_t batch = 0; batch <= at[rank]; ++batch) {
      if (batch == ranks[rank].size()) break;
      for (const Transfer& transfer : ranks[rank][batch])
        found +=
            transfer.source == source && transfer.destination == destination;
    }
    return found > k;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (at[rank] == ranks[rank].size()) continue;
      bool ends = true;
      for (const Transfer& t : ranks[rank][at[rank]]) {
        if (t.local()) continue;
        size_t k = 0;
        for (size_t batch = 0; batch < at[rank]; ++batch)
          for (const Transfer& before : ranks[rank][batch])
            k += before.source == t.source &&
                 before.destination == t.destination;
        const int other =
            static_cast<int>(rank) == t.source ? t.destination : t.source;
        ends &= in(other, t.source, t.destination, k);
      }
      if (!ends) continue;
      ++at[rank];
      moved = true;
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (at[rank] != ranks[rank].size()) return false;
  return true;
}

// Random sends, in a random order on each rank.
TEST(BatchesTest, NeverWaitInACircle) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    const int size = 2 + static_cast<int>(random() % 9);
    const int most = 2 * (1 + static_cast<int>(random() % 7));
    std::vector<std::vector<Transfer>> calls(size);
    const int count = static_cast<int>(random() % 60);
    for (int i = 0; i < count; ++i) {
      const int source = static_cast<int>(random() % size);
      const int destination = static_cast<int>(random() % size);
      calls[source].push_back(Make(source, destination, true));
      calls[destination].push_back(Make(source, destination, false));
    }
    std::vector<Batches> ranks;
    for (int rank = 0; rank < size; ++rank) {
      std::ranges::shuffle(calls[rank], random);
      auto made = MakeBatches(calls[rank], rank, size, most);
      ASSERT_TRUE(made.ok()) << made.status().message();
      size_t transfers = 0;
      for (const auto& batch : *made) {
        const size_t local = std::ranges::count_if(batch, &Transfer::local);
        EXPECT_TRUE(local == 0 || &batch == &made->front());
        transfers += batch.size() + local;
        EXPECT_LE(batch.size() - local, static_cast<size_t>(most));
        std::set<std::pair<int, int>> channels;
        for (const Transfer& transfer : batch)
          EXPECT_TRUE(
              transfer.local() ||
              channels.insert({transfer.source, transfer.destination}).second);
      }
      EXPECT_EQ(transfers, calls[rank].size());
      ranks.push_back(*std::move(made));
    }
    EXPECT_TRUE(AllEnd(ranks)) << size << " ranks, at most " << most;
  }
}

TEST(BatchesTest, MatchesSendsOfARankToItself) {
  auto made = MakeBatches({Make(1, 1, true), Make(1, 1, false)}, 1, 4, 2);
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->size(), 1);
  ASSERT_EQ((*made)[0].size(), 1);
  EXPECT_EQ((*made)[0][0].input, from);
  EXPECT_EQ((*made)[0][0].output, to);
  EXPECT_EQ(MakeBatches({Make(1, 1, true)}, 1, 4, 2).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(MakeBatches({Make(1, 1, true), Make(1, 1, false, 4)}, 1, 4, 2)
                .status()
                .code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace jax_cxl::nccl
