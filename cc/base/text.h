#ifndef JAX_CXL_BASE_TEXT_H_
#define JAX_CXL_BASE_TEXT_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace jax_cxl {

// Returns `text` in a form that is safe to print. Control characters, which a
// terminal would obey, become '?'; only newlines stay. Characters that hide or
// reorder text, and bytes that are not valid UTF-8, also become '?'. Use this
// function for all text from other processes.
std::string PrintableText(std::string_view text);

// Returns the printable form of the text in an array. The text ends with the
// array if it has no terminating zero.
template <size_t size>
std::string PrintableText(const char (&text)[size]) {
  return PrintableText(std::string_view(text, strnlen(text, size)));
}

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_TEXT_H_
