#ifndef JAX_CXL_BASE_TEXT_H_
#define JAX_CXL_BASE_TEXT_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace jax_cxl {

// Returns `text` in a form that is safe to print: valid UTF-8 without control
// characters other than newlines, which a terminal would obey, and without
// characters that hide or reorder text. Each of these characters, and each
// invalid byte, becomes '?'. Use this function for all text from other
// processes.
std::string PrintableText(std::string_view text);

// As above, for an array that may lack its terminating zero.
template <size_t size>
std::string PrintableText(const char (&text)[size]) {
  return PrintableText(std::string_view(text, strnlen(text, size)));
}

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_TEXT_H_
