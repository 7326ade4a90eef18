#include "cc/pool/mapping/map.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "cc/pool/layout/geometry.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

// Returns a file without a name, whose page i consists of the letter `first` +
// i.
UniqueFd Letters(char first, int pages) {
  UniqueFd fd(memfd_create("letters", MFD_CLOEXEC));
  for (int i = 0; i < pages; ++i) {
    const std::string page(FilePageBytes(), static_cast<char>(first + i));
    if (write(fd.get(), page.data(), page.size()) !=
        static_cast<ssize_t>(page.size())) {
      abort();
    }
  }
  return fd;
}

TEST(MapTest, PiecesFollowEachOther) {
  const uint64_t page = FilePageBytes();
  const UniqueFd a = Letters('a', 3);
  const UniqueFd b = Letters('m', 3);
  const auto mapped = MapContiguous(
      {{a.get(), page, 2 * page, page}, {b.get(), 0, page, page}});
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  char* text = reinterpret_cast<char*>(mapped->get());
  EXPECT_EQ(text[0], 'b');
  EXPECT_EQ(text[page], 'c');
  EXPECT_EQ(text[2 * page], 'm');
  EXPECT_TRUE(Prefault(mapped->get(), 3 * page).ok());
  EXPECT_EQ(text[0], 'b');
  EXPECT_EQ(text[3 * page - 1], 'm');
  text[2 * page] = 'X';  // The mapping is shared, so the file changes too.
  char found = 0;
  EXPECT_EQ(pread(b.get(), &found, 1, 0), 1);
  EXPECT_EQ(found, 'X');
}

TEST(MapTest, FailureIsAnError) {
  constexpr int kNotOpen = 1 << 20;
  EXPECT_EQ(MapContiguous({{kNotOpen, 0, kMiB, 1}}).status().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(MapContiguous({{-1, 0, uint64_t{1} << 60, 1}}).status().code(),
            Code::kResourceExhausted);
}

TEST(MapTest, PrefaultBeyondTheFileIsAnErrorAndNoSignal) {
  const uint64_t page = FilePageBytes();
  const UniqueFd a = Letters('a', 1);
  const auto mapped = MapContiguous({{a.get(), 0, 4 * page, page}});
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE(PassesInChild([&] {
    const Status status = Prefault(mapped->get(), 4 * page);
    return status.code() == Code::kResourceExhausted;
  }));
}

}  // namespace
}  // namespace jax_cxl::pool
