#include "cc/base/text.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace jax_cxl {
namespace {

TEST(TextTest, TextStaysAsItIs) {
  for (const char* text : {"", "rank 3: psum\n", "Grüße, 東京 \U0001f600"})
    EXPECT_EQ(PrintableText(std::string_view(text)), text);
}

TEST(TextTest, NothingForATerminalToObey) {
  EXPECT_EQ(PrintableText(std::string_view("a\x1b[2J\r\t\x7f")), "a?[2J???");
  // U+009B is the one-character form of "ESC [". Some terminals obey it.
  EXPECT_EQ(PrintableText(std::string_view("\xc2\x9b"
                                           "2J")),
            "?2J");
}

TEST(TextTest, NothingThatHidesOrReordersText) {
  for (const char* hidden :
       {"\u00ad", "\u061c", "\u200b", "\u200f", "\u2028", "\u2029", "\u202a",
        "\u202e", "\u2060", "\u2066", "\u2069", "\ufeff", "\ufffb",
        "\U000e0001", "\U000e007f"})
    EXPECT_EQ(PrintableText("rank" + std::string(hidden) + "3"), "rank?3");
  for (const char* shown : {"\u00ac", "\u00ae", "\u200a", "\u2010", "\u202f",
                            "\u2070", "\ufffd", "\U0001f600"})
    EXPECT_EQ(PrintableText(std::string_view(shown)), shown);
}

TEST(TextTest, BytesThatAreNoUtf8AreMarked) {
  EXPECT_EQ(PrintableText(std::string_view("\xff\xfe")), "??");
  EXPECT_EQ(PrintableText(std::string_view("cut \xe6\x9d")), "cut ??");
  EXPECT_EQ(PrintableText(std::string_view("\xc0\xaf")), "??");  // overlong /
  EXPECT_EQ(PrintableText(std::string_view("\xe0\x80\xaf")), "???");
  EXPECT_EQ(PrintableText(std::string_view("\xed\xa0\x80")), "???");
  EXPECT_EQ(PrintableText(std::string_view("\xf4\x90\x80\x80")), "????");
}

TEST(TextTest, ArraysNeedNoZero) {
  char text[4] = {'f', 'u', 'l', 'l'};
  EXPECT_EQ(PrintableText(text), "full");
  text[1] = '\0';
  EXPECT_EQ(PrintableText(text), "f");
}

}  // namespace
}  // namespace jax_cxl
