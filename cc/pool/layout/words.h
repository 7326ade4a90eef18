#ifndef JAX_CXL_POOL_LAYOUT_WORDS_H_
#define JAX_CXL_POOL_LAYOUT_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Copies memory that another process may be writing, word by word. Each word of
// the copy has a value that was really stored: the value before or after a
// write, but no mixture. Different words may come from different writes, so the
// reader has to check by a version or a number that they belong together.
namespace jax_cxl::pool {

// A word that may alias objects of other types.
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
