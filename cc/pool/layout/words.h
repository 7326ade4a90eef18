#ifndef JAX_CXL_POOL_LAYOUT_WORDS_H_
#define JAX_CXL_POOL_LAYOUT_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Copies of what is read while it may be written: word by word, each of which
// is as it was before or after, never in between. The reader has to find out
// for itself, by a version or a number, whether they belong together.
namespace jax_cxl::pool {

// Also for memory in which other types live.
typedef uint64_t __attribute__((may_alias)) Word;

template <typename T>
inline constexpr bool kIsWords =
    std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(Word) == 0 &&
    alignof(T) % alignof(Word) == 0;

template <typename T>
T LoadWords(const T& from) {
  static_assert(kIsWords<T>);
  T to;
  const auto* source = reinterpret_cast<const Word*>(&from);
  auto* target = reinterpret_cast<Word*>(&to);
  for (size_t i = 0; i < sizeof(T) / sizeof(Word); ++i)
    target[i] = __atomic_load_n(source + i, __ATOMIC_RELAXED);
  return to;
}

template <typename T>
void StoreWords(T* to, const T& from) {
  static_assert(kIsWords<T>);
  const auto* source = reinterpret_cast<const Word*>(&from);
  auto* target = reinterpret_cast<Word*>(to);
  for (size_t i = 0; i < sizeof(T) / sizeof(Word); ++i)
    __atomic_store_n(target + i, source[i], __ATOMIC_RELAXED);
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_WORDS_H_
