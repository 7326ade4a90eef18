#include "cc/engine/kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace jax_cxl::cpu {
namespace {

TEST(CopyTest, CopiesExactlyTheBytes) {
  std::vector<std::byte> from(5000);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i * 7 % 251);
  }
  for (auto copy : {&CopyBytes, &CopyPastCaches}) {
    for (size_t offset : {0, 1, 63}) {
      for (size_t bytes : {0, 1, 64, 129, 255, 4096, 4900}) {
        std::vector<std::byte> to(from.size(), std::byte{0xff});
        copy(to.data() + offset, from.data() + 3, bytes);
        std::vector<std::byte> expected(from.size(), std::byte{0xff});
        std::copy_n(from.begin() + 3, bytes, expected.begin() + offset);
        ASSERT_EQ(to, expected) << "offset " << offset << ", " << bytes;
      }
    }
  }
}

TEST(CopyTest, NothingFromNowhere) {
  CopyBytes(nullptr, nullptr, 0);
  CopyPastCaches(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace jax_cxl::cpu
