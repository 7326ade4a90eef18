#include "cc/ffi/errors/errors.h"

#include <gtest/gtest.h>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

TEST(ErrorsTest, ConvertsStatuses) {
  EXPECT_TRUE(ToFfiError(OkStatus()).success());
  const xla::ffi::Error error =
      ToFfiError(Error(Code::kMismatch, "sizes differ"));
  EXPECT_EQ(error.errc(), xla::ffi::ErrorCode::kAborted);
  EXPECT_EQ(Failures::Get().Find(error.message())->code(), Code::kMismatch);
}

}  // namespace
}  // namespace jax_cxl::ffi
