#ifndef JAX_CXL_BASE_TEXT_H_
#define JAX_CXL_BASE_TEXT_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace jax_cxl {

// `text` as it may stand in a message: valid UTF-8, with '?' for each byte that
// is none and for control characters but the newline, which a terminal would
// obey. For whatever another process wrote.
std::string PrintableText(std::string_view text);

// The same for an array that may lack its terminating zero.
template <size_t size>
std::string PrintableText(const char (&text)[size]) {
  return PrintableText(std::string_view(text, strnlen(text, size)));
}

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_TEXT_H_
