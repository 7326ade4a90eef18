#include "cc/base/text.h"

#include <cstdint>

namespace jax_cxl {
namespace {

// Returns the length of the UTF-8 sequence at the start of `text`, or 0 if
// `text` does not start with one.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xc2   ? 0
                        : lead < 0xe0 ? 2
                        : lead < 0xf0 ? 3
                        : lead < 0xf5 ? 4
                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // No overlong forms, no surrogates, nothing above U+10FFFF.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90))
    return 0;
  return length;
}

// Returns true for C0 and C1 controls and DEL, but not for newline.
bool IsControl(std::string_view sequence) {
  const auto first = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1)
    return (first < 0x20 && first != '\n') || first == 0x7f;
  return first == 0xc2 && static_cast<uint8_t>(sequence[1]) < 0xa0;
}

}  // namespace

std::string PrintableText(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    if (length == 0 || IsControl(sequence))
      printable += '?';
    else
      printable += sequence;
    text.remove_prefix(sequence.size());
  }
  return printable;
}

}  // namespace jax_cxl
