#include "cc/store/checksum/xxh3_lanes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace jax_cxl::xxh3 {
namespace {

Pair PairAt(const std::vector<uint64_t>& words, uint64_t byte) {
  return {words[byte / 8], words[byte / 8 + 1]};
}

// Computes the checksum as a kernel does, but with one lane after another.
uint64_t Checksum(const std::vector<uint64_t>& words) {
  const std::array<LaneKeys, kLanes> keys = AllLaneKeys();
  const uint64_t bytes = words.size() * 8;
  std::array<Pair, kPairs> pairs;
  for (int i = 0; i < kPairs; ++i) pairs[i] = keys[i].start;
  for (uint64_t step = 0; step < bytes; step += kStepBytes) {
    const bool last = step + kStepBytes == bytes;
    for (int lane = 0; lane < kLanes; ++lane) {
      Pair sum;
      Mix(PairAt(words, step + 16 * lane), keys[lane].lower, sum);
      Mix(PairAt(words, step + 512 + 16 * lane),
          last ? keys[lane].upper_last : keys[lane].upper, sum);
      pairs[lane % kPairs].first += sum.first;
      pairs[lane % kPairs].second += sum.second;
    }
    for (int i = 0; i < kPairs && !last; ++i)
      Scramble(keys[i].scramble, pairs[i]);
  }
  uint64_t sum = 0;
  for (int i = 0; i < kPairs; ++i) sum += Fold(keys[i].fold, pairs[i]);
  return Finish(sum, bytes);
}

std::vector<uint64_t> Words(uint64_t bytes) {
  std::vector<uint64_t> words(bytes / 8);
  uint64_t word = 1;
  for (uint64_t& next : words)
    next = word = word * 6364136223846793005 + 1442695040888963407;
  return words;
}

// The expected values are those of the library xxhash (xxh3_64_intdigest).
TEST(Xxh3LanesTest, TheChecksumsAreThoseOfTheLibrary) {
  EXPECT_EQ(Checksum(Words(1 << 10)), 0xC181512CF36EEF70);
  EXPECT_EQ(Checksum(Words(2 << 10)), 0x3F590A0375A8EA9C);
  EXPECT_EQ(Checksum(Words(5 << 10)), 0x4EFD2318E5CD4133);
  EXPECT_EQ(Checksum(Words(1 << 20)), 0x9BF205827DD39F0D);
  EXPECT_EQ(Checksum(std::vector<uint64_t>(1 << 17)), 0x918780B90550BF34);
}

TEST(Xxh3LanesTest, EveryWordChangesTheChecksum) {
  const std::vector<uint64_t> words = Words(2 << 10);
  for (size_t i = 0; i < words.size(); ++i) {
    std::vector<uint64_t> changed = words;
    changed[i] ^= uint64_t{1} << (i % 64);
    EXPECT_NE(Checksum(changed), Checksum(words)) << i;
  }
}

}  // namespace
}  // namespace jax_cxl::xxh3
