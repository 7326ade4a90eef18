#ifndef JAX_CXL_TESTING_VERIFY_EXTENTS_H_
#define JAX_CXL_TESTING_VERIFY_EXTENTS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

// Symbolic memory of the verifier. Internal to cc/plan.
namespace jax_cxl::plan {

// The symbolic content of a byte. It is either zero or a left fold in rank
// order: the fold combines byte `offset` of the inputs of ranks [first, last).
// A fold over one rank is a byte of that rank's input.
struct Value {
  bool zero = false;
  int first = 0;
  int last = 0;
  uint64_t offset = 0;

  static Value Zero() { return {.zero = true}; }
  static Value Input(int rank, uint64_t offset) {
    return {.first = rank, .last = rank + 1, .offset = offset};
  }
  static Value Fold(int first, int last, uint64_t offset) {
    return {.first = first, .last = last, .offset = offset};
  }

  Value Plus(uint64_t bytes) const {
    Value value = *this;
    if (!zero) value.offset += bytes;
    return value;
  }
  bool operator==(const Value&) const = default;
};

// Bytes [begin, end) of a buffer. Byte begin + i has the content value.Plus(i).
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  Value value;

  bool operator==(const Extent&) const = default;
};

// A buffer as an ordered list of extents. Neighboring extents are merged if the
// second one continues the values of the first one. So two buffers are equal if
// and only if their extents are equal. No extent covers bytes that were never
// written.
class Extents {
 public:
  // Returns false, and writes nothing, if one of the bytes was written before.
  bool Write(uint64_t begin, uint64_t end, const Value& value) {
    if (begin == end) return true;
    auto next = After(begin);
    if (next != extents_.end() && next->begin < end) return false;
    if (next != extents_.begin() && std::prev(next)->end > begin) return false;
    const bool joins_next = next != extents_.end() && next->begin == end &&
                            value.Plus(end - begin) == next->value;
    if (next != extents_.begin()) {
      const auto last = std::prev(next);
      if (last->end == begin &&
          last->value.Plus(begin - last->begin) == value) {
        last->end = joins_next ? next->end : end;
        if (joins_next) extents_.erase(next);
        return true;
      }
    }
    if (joins_next) {
      *next = {begin, next->end, value};
    } else {
      extents_.insert(next, {begin, end, value});
    }
    return true;
  }

  // Returns the longest extent that starts at `begin` and ends at most at
  // `end`, or nothing if byte `begin` was never written.
  std::optional<Extent> At(uint64_t begin, uint64_t end) const {
    const auto next = const_cast<Extents*>(this)->After(begin);
    if (next == extents_.begin()) return std::nullopt;
    const Extent& extent = *std::prev(next);
    if (extent.end <= begin) return std::nullopt;
    return Extent{begin, std::min(extent.end, end),
                  extent.value.Plus(begin - extent.begin)};
  }

  void Clear() { extents_.clear(); }
  const std::vector<Extent>& extents() const { return extents_; }

 private:
  // Returns the first extent that begins after byte `begin`.
  std::vector<Extent>::iterator After(uint64_t begin) {
    return std::upper_bound(
        extents_.begin(), extents_.end(), begin,
        [](uint64_t at, const Extent& extent) { return at < extent.begin; });
  }

  std::vector<Extent> extents_;
};

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_TESTING_VERIFY_EXTENTS_H_
