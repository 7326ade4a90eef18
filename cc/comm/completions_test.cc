// Sanitizers: address, thread
#include "cc/comm/completions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace jax_cxl::comm {
namespace {

using std::chrono::microseconds;

// Completions may add further completions. For example, when the last part of a
// call in levels ends, its completion completes the calls of all ranks. This
// must work even while the Completions are destroyed.
TEST(CompletionsTest, RunCompletionsOfCompletionsBeforeTheEnd) {
  std::atomic<int> ran = 0;
  for (int i = 0; i < 100; ++i) {
    Completions completions;
    for (int j = 0; j < 4; ++j)
      completions.Run([&] {
        std::this_thread::sleep_for(microseconds(200));
        for (int k = 0; k < 6; ++k)
          completions.Run([&ran] {
            std::this_thread::sleep_for(microseconds(50));
            ++ran;
          });
      });
  }
  EXPECT_EQ(ran, 100 * 4 * 6);
}

}  // namespace
}  // namespace jax_cxl::comm
