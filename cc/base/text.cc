#include "cc/base/text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace jax_cxl {
namespace {

struct Character {
  size_t bytes = 0;  // 0: not valid UTF-8
  uint32_t point = 0;
};

// Returns the first character of `text`, which must not be empty.
Character FirstCharacter(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {1, lead};
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead < 0xc0 || lead >= 0xf8 || bytes > text.size()) return {};
  uint32_t point = lead & (0x7f >> bytes);
  for (const char byte : text.substr(1, bytes - 1)) {
    if ((byte & 0xc0) != 0x80) return {};
    point = point << 6 | (byte & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  // Refuse overlong sequences: they encode a character with more bytes than
  // needed, and could hide it from a check.
  if (point < kLeast[bytes] || surrogate || point > 0x10ffff) return {};
  return {bytes, point};
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

// Returns true for characters that are safe to print on a terminal: newlines,
// and all characters that are neither control characters nor in kInvisible.
bool MayShow(uint32_t point) {
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
    const auto [bytes, point] = FirstCharacter(text);
    if (bytes == 0 || !MayShow(point))
      printable += '?';
    else
      printable += text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return printable;
}

}  // namespace jax_cxl
