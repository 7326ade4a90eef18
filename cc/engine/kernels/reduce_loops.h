#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_LOOPS_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cc/engine/kernels/float_formats.h"
#include "cc/engine/kernels/reduce_operations.h"
#include "cc/engine/kernels/reduce_targets.h"

// The loops from which `kernels.cc` chooses. They never reorder a reduction:
// each source is folded into the result of the sources before it.
namespace jax_cxl::cpu {

// Loops work on tiles of a constant length, which compilers vectorize even at
// -O2. The elements after the last whole tile are handled one by one.
inline constexpr size_t kTile = 64;

template <typename T>
JAX_CXL_INLINE T LoadAt(const std::byte* base, size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
JAX_CXL_INLINE void StoreAt(std::byte* base, size_t index, T value) {
  std::memcpy(base + index * sizeof(T), &value, sizeof(T));
}

// Returns `value`, or always the same NaN if it is NaN. So the bits of a result
// are equal on all machines. Otherwise they could differ: which NaN an addition
// returns depends on the order of its operands, which compilers may swap, and
// the sign of the NaN inf - inf depends on the processor.
template <typename T>
JAX_CXL_INLINE T OneNan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value == value ? value : std::numeric_limits<T>::quiet_NaN();
  } else {
    return value;
  }
}

// --- formats: how elements are stored, and in which type they are folded ---

template <typename T>
struct Native {
  using Storage = T;
  JAX_CXL_INLINE static T Widen(T value) { return value; }
  JAX_CXL_INLINE static T Narrow(T value) { return OneNan(value); }
};

// Booleans of one byte. Any byte but 0 is true. Results are 0 or 1.
struct Bool {
  using Storage = uint8_t;
  JAX_CXL_INLINE static uint8_t Widen(uint8_t value) {
    return value < 1 ? value : 1;
  }
  JAX_CXL_INLINE static uint8_t Narrow(uint8_t value) { return value; }
};

// Two adjacent bfloat16 elements in a 32-bit word, folded in float32. Each half
// of the word is widened where it is, by a shift or a mask. If the elements
// were widened one by one, they would have to be shuffled to other places of a
// vector.
struct Bfloat16Pair {
  using Storage = uint32_t;

  struct Floats {
    float low;
    float high;
  };

  JAX_CXL_INLINE static Floats Widen(uint32_t word) {
    return {FromBits(word << 16), FromBits(word & 0xffff0000u)};
  }

  JAX_CXL_INLINE static uint32_t Narrow(Floats floats) {
    return Rounded(floats.low) >> 16 | (Rounded(floats.high) & 0xffff0000u);
  }

 private:
  // Returns a word whose upper half is the bfloat16 nearest to `value`. The
  // lower half is undefined.
  JAX_CXL_INLINE static uint32_t Rounded(float value) {
    const uint32_t bits = Bits(OneNan(value));
    return bits + 0x7fffu + ((bits >> 16) & 1);
  }
};

template <typename Op>
struct OnPair {
  using Floats = Bfloat16Pair::Floats;
  JAX_CXL_INLINE static Floats Apply(Floats a, Floats b) {
    return {Op::Apply(a.low, b.low), Op::Apply(a.high, b.high)};
  }
};

// --- loops ---

using FoldFunction = void (*)(const std::byte* const* sources,
                              std::byte* destination, size_t count);

// destination = sources[0] op ... op sources[kSources - 1].
template <typename Format, typename Op, int kSources>
struct Fold {
  static_assert(kSources >= 2 && kSources <= 4);
  using Storage = typename Format::Storage;

  JAX_CXL_INLINE static auto Load(const std::byte* source, size_t i) {
    return Format::Widen(LoadAt<Storage>(source, i));
  }

  JAX_CXL_INLINE static void Element(const std::byte* const* sources,
                                     std::byte* destination, size_t i) {
    auto fold = Load(sources[0], i);
    // The loop over the sources is unrolled by hand, because at -O2 compilers
    // unroll it too late to vectorize the code.
    fold = Op::Apply(fold, Load(sources[1], i));
    if constexpr (kSources > 2) fold = Op::Apply(fold, Load(sources[2], i));
    if constexpr (kSources > 3) fold = Op::Apply(fold, Load(sources[3], i));
    StoreAt<Storage>(destination, i, Format::Narrow(fold));
  }

  JAX_CXL_INLINE static void Run(const std::byte* const* sources,
                                 std::byte* destination, size_t count) {
    // Copy the pointers to a local array, so that the compiler knows that
    // stores to the destination do not change them.
    const std::byte* from[kSources];
    for (int s = 0; s < kSources; ++s) from[s] = sources[s];
    size_t i = 0;
    for (; i + kTile <= count; i += kTile) {
      JAX_CXL_INDEPENDENT
      for (size_t j = 0; j < kTile; ++j) Element(from, destination, i + j);
    }
    for (; i < count; ++i) Element(from, destination, i);
  }
};

using WidenFunction = void (*)(const std::byte* from, std::byte* to,
                               size_t count);

// Converts elements at `from` to elements of another type at `to`.
template <typename From, typename To, To (*convert)(From)>
struct ConvertLoop {
  JAX_CXL_INLINE static void Run(const std::byte* from, std::byte* to,
                                 size_t count) {
    size_t i = 0;
    for (; i + kTile <= count; i += kTile) {
      JAX_CXL_INDEPENDENT
      for (size_t j = i; j < i + kTile; ++j) {
        StoreAt(to, j, convert(LoadAt<From>(from, j)));
      }
    }
    for (; i < count; ++i) StoreAt(to, i, convert(LoadAt<From>(from, i)));
  }
};

// Loops that convert elements of a small format to float32, and back.
template <typename Small>
using WidenLoop = ConvertLoop<typename Small::Storage, float, Small::Widen>;
template <typename Small>
using NarrowLoop = ConvertLoop<float, typename Small::Storage, Small::Narrow>;

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_REDUCE_LOOPS_H_
