#include "cc/base/text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

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

struct CodePoints {
  uint32_t first, last;
};

// Unicode's categories Cf, Zl and Zp. These characters are invisible, or change
// the order of visible characters, so they can make one text look like another.
constexpr CodePoints kInvisible[] = {
    {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
    {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},
    {0x8e2, 0x8e2},     {0x180e, 0x180e},   {0x200b, 0x200f},
    {0x2028, 0x202e},   {0x2060, 0x206f},   {0xfeff, 0xfeff},
    {0xfff9, 0xfffb},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
    {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
    {0xe0000, 0xe007f},
};

uint32_t CodePoint(std::string_view sequence) {
  const auto lead = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return lead;
  uint32_t value = lead & (0x7f >> sequence.size());
  for (const char byte : sequence.substr(1)) value = value << 6 | (byte & 0x3f);
  return value;
}

// Returns true for characters that are safe to print on a terminal: newline,
// and all characters that are not control characters.
bool MayShow(std::string_view sequence) {
  const uint32_t point = CodePoint(sequence);
  if (point < 0x20) return point == '\n';
  if (point >= 0x7f && point < 0xa0) return false;
  return std::none_of(std::begin(kInvisible), std::end(kInvisible),
                      [point](const CodePoints& range) {
                        return point >= range.first && point <= range.last;
                      });
}

}  // namespace

std::string PrintableText(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    if (length == 0 || !MayShow(sequence))
      printable += '?';
    else
      printable += sequence;
    text.remove_prefix(sequence.size());
  }
  return printable;
}

}  // namespace jax_cxl
