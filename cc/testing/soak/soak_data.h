#ifndef JAX_CXL_TESTING_SOAK_SOAK_DATA_H_
#define JAX_CXL_TESTING_SOAK_SOAK_DATA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/plan/plan.h"

// The data of random collectives: buffers, their elements, and tables of
// slices.
namespace jax_cxl::comm::soak {

using Random = std::mt19937_64;

// Returns a uniform number in [low, high].
inline int64_t Pick(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % (high - low + 1));
}

// A buffer whose bytes begin at a chosen offset, for any alignment. They lie
// between two guards, which must not change.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset)
      : offset_(kGuard + offset),
        bytes_(bytes),
        storage_(offset_ + bytes + kGuard, kFill) {}

  std::byte* data() { return storage_.data() + offset_; }
  const std::byte* data() const { return storage_.data() + offset_; }
  size_t bytes() const { return bytes_; }
  bool GuardsIntact() const {
    const std::span all(storage_);
    auto untouched = [](std::byte b) { return b == kFill; };
    return std::ranges::all_of(all.first(offset_), untouched) &&
           std::ranges::all_of(all.last(kGuard), untouched);
  }

  static constexpr std::byte kFill{0xa5};

 private:
  static constexpr size_t kGuard = 64;
  size_t offset_;
  size_t bytes_;
  std::vector<std::byte> storage_;
};

template <typename T>
void FillModerate(Random& random, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random();
    const T value = static_cast<T>(static_cast<int32_t>(bits)) /
                    static_cast<T>(1u << (bits >> 60));
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

// Fills the range with elements of random bits. In the wide float types, random
// bits give numbers of very different magnitudes, and the sum of such numbers
// is often equal to the largest one. So for these types, three of four calls
// fill the range with numbers of similar magnitude instead.
inline void Fill(Random& random, DType dtype, std::byte* to, size_t bytes) {
  if (random() % 4 != 0) {
    if (dtype == DType::kFloat32 || dtype == DType::kComplex64)
      return FillModerate<float>(random, to, bytes / sizeof(float));
    if (dtype == DType::kFloat64 || dtype == DType::kComplex128)
      return FillModerate<double>(random, to, bytes / sizeof(double));
  }
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t bits = random();
    if (dtype == DType::kBool) bits &= 0x0101010101010101u;
    std::memcpy(to + i, &bits, std::min(sizeof(bits), bytes - i));
  }
}

// Returns `pieces` random lengths, each in [0, total], with a sum of at most
// `total`.
inline std::vector<int64_t> Lengths(Random& random, size_t pieces,
                                    int64_t total) {
  std::vector<int64_t> lengths(pieces);
  for (int64_t& length : lengths) {
    length =
        Pick(random, 0, std::max<int64_t>(2 * total / (pieces + 1), 1)) / 2;
    if (random() % 4 == 0) length = 0;
  }
  return lengths;
}

// Returns random offsets for slices of the given lengths, so that the slices
// lie in [0, total) and do not overlap.
inline std::vector<int64_t> Offsets(Random& random,
                                    const std::vector<int64_t>& lengths,
                                    int64_t total) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  int64_t spare =
      total - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  int64_t at = 0;
  std::vector<int64_t> offsets(lengths.size());
  for (size_t k : order) {
    const int64_t gap = Pick(random, 0, spare);
    spare -= gap;
    offsets[k] = at + gap;
    at = offsets[k] + lengths[k];
  }
  return offsets;
}

// Returns the tables of slices of all ranks of a ragged_all_to_all.
inline std::vector<int64_t> RandomSlices(Random& random, int ranks,
                                         const plan::Rows& rows) {
  const size_t slices = rows.slices, entries = ranks * slices;
  std::vector<int64_t> tables(ranks * 4 * entries);
  auto at = [&](size_t rank, int column, size_t k) -> int64_t& {
    return tables[(rank * 4 + column) * entries + k];
  };
  for (int sender = 0; sender < ranks; ++sender) {
    const std::vector<int64_t> sizes = Lengths(random, entries, rows.table);
    std::vector<int64_t> from = Offsets(random, sizes, rows.table);
    for (size_t k = 0; k < entries; ++k) {
      // Sometimes let the slice overlap other slices of the sender, so that
      // some rows are sent to several places.
      if (random() % 8 == 0) from[k] = Pick(random, 0, rows.table - sizes[k]);
      at(sender, 0, k) = from[k];
      at(sender, 1, k) = sizes[k];
      at(k / slices, 3, sender * slices + k % slices) = sizes[k];
    }
  }
  for (int receiver = 0; receiver < ranks; ++receiver) {
    const int64_t* column = &at(receiver, 3, 0);
    std::vector<int64_t> sizes(column, column + entries);
    // Cut the sizes so that all slices together fit into the output.
    int64_t room = rows.taken;
    for (size_t k = 0; k < entries; ++k) {
      const size_t sender = k / slices, there = receiver * slices + k % slices;
      sizes[k] = std::min(sizes[k], room);
      room -= sizes[k];
      at(receiver, 3, k) = at(sender, 1, there) = sizes[k];
    }
    const std::vector<int64_t> to = Offsets(random, sizes, rows.taken);
    for (size_t k = 0; k < entries; ++k)
      at(k / slices, 2, receiver * slices + k % slices) = to[k];
  }
  return tables;
}

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_SOAK_SOAK_DATA_H_
