#include "cc/engine/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cc/engine/kernels/reduce_complex.h"
#include "cc/engine/kernels/reduce_float16.h"
#include "cc/engine/kernels/reduce_loops.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace jax_cxl::cpu {
namespace {

using Sources = std::span<const std::byte* const>;

// One loop folds up to kMaxFused sources. More sources are folded block by
// block, with an accumulator that stays in the first-level cache. Blocks of 4
// KiB would be too large: with them, folding 8 bfloat16 sources of 16 MiB was
// only half as fast as with blocks of 1 KiB.
constexpr size_t kMaxFused = 4;
constexpr size_t kBlockBytes = 1024;

// Sets the default floating-point environment of the thread while the object
// lives. XLA's threads flush subnormals to zero, and other threads do not. So
// otherwise the bits of a result would depend on the thread that computed it.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  // All exceptions masked, round to nearest, subnormals kept.
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

// The loops for one type and operation: [n] folds n sources, n >= 2.
using FoldSet = std::array<FoldFunction, kMaxFused + 1>;

template <typename Format, typename Op>
const FoldSet& FoldSetOf() {
  static const FoldSet set = {
      {nullptr, nullptr,
       Pick<Fold<Format, Op, 2>, const std::byte* const*, std::byte*, size_t>(),
       Pick<Fold<Format, Op, 3>, const std::byte* const*, std::byte*, size_t>(),
       Pick<Fold<Format, Op, 4>, const std::byte* const*, std::byte*,
            size_t>()}};
  return set;
}

const FoldSet& Bfloat16PairFoldSet(ReduceOp op) {
  return *WithReduction<float>(op, []<typename Reduction>() {
    return &FoldSetOf<Bfloat16Pair, OnPair<Reduction>>();
  });
}

template <typename T>
const FoldSet& NativeFoldSet(ReduceOp op) {
  return *WithReduction<T>(op, []<typename Reduction>() {
    return &FoldSetOf<Native<FoldedAs<T, Reduction>>, Reduction>();
  });
}

// Returns the loops that fold elements of `dtype` without conversion. Returns
// null for types whose elements are first widened to float32, block by block.
const FoldSet* DirectFoldSet(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kBool:
      return IsAny(op) ? &FoldSetOf<Bool, Or>() : &FoldSetOf<Bool, And>();
#define JAX_CXL_CASE(name, type) \
  case DType::k##name:           \
    return &NativeFoldSet<type>(op);
      JAX_CXL_NATIVE_DTYPES(JAX_CXL_CASE)
#undef JAX_CXL_CASE
    case DType::kComplex64:
      return op == ReduceOp::kSum
                 ? &FoldSetOf<Native<float>, Sum>()
                 : &FoldSetOf<Native<Complex<float>>, ComplexProd>();
    case DType::kComplex128:
      return op == ReduceOp::kSum
                 ? &FoldSetOf<Native<double>, Sum>()
                 : &FoldSetOf<Native<Complex<double>>, ComplexProd>();
    case DType::kFloat8E8M0Fnu:
      return op == ReduceOp::kMin ? &FoldSetOf<Native<uint8_t>, MinE8M0>()
                                  : &FoldSetOf<Native<uint8_t>, Max>();
    default:
      return nullptr;
  }
}

struct Conversion {
  WidenFunction widen;
  WidenFunction narrow;
};

template <typename Small>
const Conversion& ConversionOf() {
#if defined(__x86_64__)
  static constexpr Conversion kF16c = {&WidenFloat16, &NarrowFloat16};
  if (std::is_same_v<Small, Float16> && HasAvx2()) return kF16c;
#endif
  static const Conversion conversion = {
      PickWidest<WidenLoop<Small>, const std::byte*, std::byte*, size_t>(),
      PickWidest<NarrowLoop<Small>, const std::byte*, std::byte*, size_t>()};
  return conversion;
}

const Conversion& ConversionFor(DType dtype) {
  switch (dtype) {
#define JAX_CXL_CASE(format) \
  case DType::k##format:     \
    return ConversionOf<format>();
    JAX_CXL_SMALL_FLOATS(JAX_CXL_CASE)
#undef JAX_CXL_CASE
    default:
      return ConversionOf<Bfloat16>();
  }
}

void ReduceDirect(const FoldSet& folds, size_t element_bytes, Sources sources,
                  std::byte* destination, size_t count) {
  if (sources.size() <= kMaxFused) {
    folds[sources.size()](sources.data(), destination, count);
    return;
  }
  alignas(64) std::byte accumulator[kBlockBytes];
  const size_t block = kBlockBytes / element_bytes;
  for (size_t start = 0; start < count; start += block) {
    const size_t length = std::min(block, count - start);
    const size_t offset = start * element_bytes;
    // Only the last fold of a block writes the destination, because the
    // destination may be one of the sources.
    const std::byte* from[kMaxFused] = {sources[0] + offset};
    for (size_t next = 1; next < sources.size();) {
      const size_t taken = std::min(kMaxFused - 1, sources.size() - next);
      for (size_t s = 0; s < taken; ++s) {
        from[s + 1] = sources[next + s] + offset;
      }
      next += taken;
      std::byte* to =
          next == sources.size() ? destination + offset : accumulator;
      folds[taken + 1](from, to, length);
      from[0] = accumulator;
    }
  }
}

// Folds elements [begin, end) in float32, and then rounds each result once to
// the type of the elements.
void ReduceWidened(const Conversion& conversion, const FoldSet& folds,
                   size_t element_bytes, Sources sources,
                   std::byte* destination, size_t begin, size_t end) {
  alignas(64) std::byte widened[kMaxFused][kBlockBytes];
  const std::byte* from[kMaxFused];
  for (size_t s = 0; s < kMaxFused; ++s) from[s] = widened[s];
  constexpr size_t kBlock = kBlockBytes / sizeof(float);
  for (size_t start = begin; start < end; start += kBlock) {
    const size_t length = std::min(kBlock, end - start);
    const size_t offset = start * element_bytes;
    conversion.widen(sources[0] + offset, widened[0], length);
    for (size_t next = 1; next < sources.size();) {
      const size_t taken = std::min(kMaxFused - 1, sources.size() - next);
      for (size_t s = 0; s < taken; ++s) {
        conversion.widen(sources[next + s] + offset, widened[s + 1], length);
      }
      next += taken;
      folds[taken + 1](from, widened[0], length);
    }
    conversion.narrow(widened[0], destination + offset, length);
  }
}

}  // namespace

void Reduce(DType dtype, ReduceOp op, Sources sources, std::byte* destination,
            size_t count) {
  if (count == 0) return;
  const size_t element_bytes = DTypeBytes(dtype);
  if (sources.size() == 1) {
    if (destination != sources[0]) {
      std::memcpy(destination, sources[0], count * element_bytes);
    }
    return;
  }
  DefaultFloatEnvironment environment;
  if (const FoldSet* folds = DirectFoldSet(dtype, op)) {
    const bool as_reals = op == ReduceOp::kSum && (dtype == DType::kComplex64 ||
                                                   dtype == DType::kComplex128);
    const size_t parts = as_reals ? 2 : 1;
    ReduceDirect(*folds, element_bytes / parts, sources, destination,
                 count * parts);
    return;
  }
  size_t done = 0;
  if (dtype == DType::kBfloat16 && sources.size() <= kMaxFused) {
    Bfloat16PairFoldSet(op)[sources.size()](sources.data(), destination,
                                            count / 2);
    done = count / 2 * 2;
  }
  ReduceWidened(ConversionFor(dtype), NativeFoldSet<float>(op), element_bytes,
                sources, destination, done, count);
}

}  // namespace jax_cxl::cpu
