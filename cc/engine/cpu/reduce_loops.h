#ifndef JAX_CXL_ENGINE_CPU_REDUCE_LOOPS_H_
#define JAX_CXL_ENGINE_CPU_REDUCE_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cc/engine/cpu/float_formats.h"
#include "cc/engine/cpu/reduce_targets.h"

// The loops that `kernels.cc` picks from. They never reassociate: the n-th
// source is folded into the result of the ones before it.
namespace jax_cxl::cpu {

// Loops work on tiles of a constant length, which compilers vectorize at -O2
// too, and finish with single elements.
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

// Which NaN an addition returns depends on the order of its operands, which
// compilers swap at will, and the sign of inf - inf on the processor. One NaN
// for all keeps the bits equal everywhere.
template <typename T>
JAX_CXL_INLINE T OneNan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value == value ? value : std::numeric_limits<T>::quiet_NaN();
  } else {
    return value;
  }
}

// --- operations: `a` is the fold so far, `b` the next operand ---

struct Sum {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Prod {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    if constexpr (std::is_same_v<T, uint16_t>) {
      // uint16_t would be promoted to int, where the product can overflow.
      return static_cast<T>(uint32_t{a} * b);
    } else {
      return static_cast<T>(a * b);
    }
  }
};

// The first of two equal operands (+0 and -0 are equal), or a NaN.
struct Min {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T smaller = b < a ? b : a;
      return b != b ? b : smaller;
    } else {
      return b < a ? b : a;
    }
  }
};

struct Max {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T larger = b > a ? b : a;
      return b != b ? b : larger;
    } else {
      return b > a ? b : a;
    }
  }
};

// Booleans are bytes; any byte but 0 is true, and results are 0 or 1.
struct Or {
  JAX_CXL_INLINE static uint8_t Apply(uint8_t a, uint8_t b) {
    return (a | b) != 0 ? 1 : 0;
  }
};

struct And {
  JAX_CXL_INLINE static uint8_t Apply(uint8_t a, uint8_t b) {
    return (a != 0 ? 1 : 0) & (b != 0 ? 1 : 0);
  }
};

// float8_e8m0fnu is a biased exponent: ordered as its code, 255 is NaN.
struct MinE8M0 {
  JAX_CXL_INLINE static uint8_t Apply(uint8_t a, uint8_t b) {
    const uint8_t smaller = b < a ? b : a;
    const uint8_t larger = b < a ? a : b;
    return larger == 255 ? larger : smaller;
  }
};

// --- formats: how an element lies in memory and what it is folded in ---

template <typename T>
struct Native {
  using Storage = T;
  using Accumulator = T;
  JAX_CXL_INLINE static T Widen(T value) { return value; }
  JAX_CXL_INLINE static T Narrow(T value) { return OneNan(value); }
};

template <typename Small>
struct InFloat32 {
  using Storage = typename Small::Storage;
  using Accumulator = float;
  JAX_CXL_INLINE static float Widen(Storage code) { return Small::Widen(code); }
  JAX_CXL_INLINE static Storage Narrow(float value) {
    return Small::Narrow(OneNan(value));
  }
};

// --- loops ---

using FoldFunction = void (*)(const std::byte* const* sources,
                              std::byte* destination, size_t count);

// destination = sources[0] op ... op sources[kSources - 1].
template <typename Format, typename Op, int kSources>
struct Fold {
  using Storage = typename Format::Storage;

  JAX_CXL_INLINE static void Element(const std::byte* const* sources,
                                     std::byte* destination, size_t i) {
    auto fold = Format::Widen(LoadAt<Storage>(sources[0], i));
    for (int s = 1; s < kSources; ++s) {
      fold = Op::Apply(fold, Format::Widen(LoadAt<Storage>(sources[s], i)));
    }
    StoreAt<Storage>(destination, i, Format::Narrow(fold));
  }

  JAX_CXL_INLINE static void Run(const std::byte* const* sources,
                                 std::byte* destination, size_t count) {
    // A copy: the destination cannot overlap it as far as the compiler knows.
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

// Small codes at `from` to float32 at `to`.
template <typename Small>
struct WidenLoop {
  JAX_CXL_INLINE static void Run(const std::byte* from, std::byte* to,
                                 size_t count) {
    using Storage = typename Small::Storage;
    size_t i = 0;
    for (; i + kTile <= count; i += kTile) {
      JAX_CXL_INDEPENDENT
      for (size_t j = i; j < i + kTile; ++j) {
        StoreAt(to, j, Small::Widen(LoadAt<Storage>(from, j)));
      }
    }
    for (; i < count; ++i) {
      StoreAt(to, i, Small::Widen(LoadAt<Storage>(from, i)));
    }
  }
};

// float32 at `from` to small codes at `to`.
template <typename Small>
struct NarrowLoop {
  JAX_CXL_INLINE static void Run(const std::byte* from, std::byte* to,
                                 size_t count) {
    size_t i = 0;
    for (; i + kTile <= count; i += kTile) {
      JAX_CXL_INDEPENDENT
      for (size_t j = i; j < i + kTile; ++j) {
        StoreAt(to, j, Small::Narrow(LoadAt<float>(from, j)));
      }
    }
    for (; i < count; ++i) {
      StoreAt(to, i, Small::Narrow(LoadAt<float>(from, i)));
    }
  }
};

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_REDUCE_LOOPS_H_
