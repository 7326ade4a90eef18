#include "cc/engine/cpu/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace jax_cxl::cpu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Pages of zeros that nothing has touched yet.
class Mapping {
 public:
  explicit Mapping(size_t bytes) : bytes_(bytes) {
    void* begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin != MAP_FAILED) begin_ = static_cast<std::byte*>(begin);
  }
  ~Mapping() { munmap(begin_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* begin() const { return begin_; }

  // Returns how many bytes of the mapping Linux may put on huge pages.
  size_t AdvisedBytes() const {
    const auto first = reinterpret_cast<uintptr_t>(begin_);
    std::ifstream smaps("/proc/self/smaps");
    size_t advised = 0, inside = 0;
    for (std::string line; std::getline(smaps, line);) {
      std::istringstream words(line);
      uintptr_t begin = 0, end = 0;
      char dash = 0;
      if (words >> std::hex >> begin >> dash >> end && dash == '-') {
        begin = std::max(begin, first);
        end = std::min(end, first + bytes_);
        inside = begin < end ? end - begin : 0;
      }
      if (line.starts_with("VmFlags:") && line.find(" hg") != std::string::npos)
        advised += inside;
    }
    return advised;
  }

 private:
  size_t bytes_;
  std::byte* begin_ = nullptr;
};

class HugePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
      GTEST_SKIP() << "this Linux has no transparent huge pages";
  }
};

TEST_F(HugePagesTest, OnlyWholeHugePagesOfTheOutput) {
  const Mapping memory(16 * kMiB);
  ASSERT_NE(memory.begin(), nullptr);
  ASSERT_EQ(memory.AdvisedBytes(), 0);
  PreferHugePages(memory.begin() + 64, 9 * kMiB);
  // The output contains only a part of the first and of the last huge page, so
  // these two get no advice.
  EXPECT_GE(memory.AdvisedBytes(), 6 * kMiB);
  EXPECT_LE(memory.AdvisedBytes(), 8 * kMiB);
  EXPECT_EQ(memory.AdvisedBytes() % (2 * kMiB), 0);
}

TEST_F(HugePagesTest, SmallOutputsStayAsTheyAre) {
  const Mapping memory(16 * kMiB);
  ASSERT_NE(memory.begin(), nullptr);
  PreferHugePages(memory.begin() + 64, 2 * kMiB - 64);
  PreferHugePages(nullptr, 0);
  EXPECT_EQ(memory.AdvisedBytes(), 0);
}

TEST_F(HugePagesTest, BytesStay) {
  const Mapping memory(8 * kMiB);
  ASSERT_NE(memory.begin(), nullptr);
  std::fill_n(memory.begin(), 8 * kMiB, std::byte{7});
  PreferHugePages(memory.begin(), 8 * kMiB);
  EXPECT_EQ(std::count(memory.begin(), memory.begin() + 8 * kMiB, std::byte{7}),
            8 * kMiB);
}

}  // namespace
}  // namespace jax_cxl::cpu
