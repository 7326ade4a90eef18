#ifndef JAX_CXL_TESTING_POOL_MEMORY_BYTES_H_
#define JAX_CXL_TESTING_POOL_MEMORY_BYTES_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/layout/layout.h"
#include "cc/store/memory/persistent_memory.h"

// Code that the tests of PersistentMemory share.
namespace jax_cxl::pool {

using Bytes = std::vector<std::byte>;

inline Bytes Filled(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

inline const std::string kSignature(kStoreMagic, sizeof(kStoreMagic));

inline Result<std::unique_ptr<PersistentMemory>> TryOpen(
    const PoolSpec& spec, OpenMode mode = OpenMode::kNormal) {
  return PersistentMemory::Open(spec, mode);
}

// Opens memory in mode kFormat, which ignores what the paths hold.
inline std::unique_ptr<PersistentMemory> Open(const PoolSpec& spec) {
  auto memory = TryOpen(spec, OpenMode::kFormat);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  return memory.ok() ? *std::move(memory) : nullptr;
}

inline void ExpectRefused(const Status& status, Code code,
                          const std::string& word) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

inline Bytes ReadBack(const PersistentMemory& memory, int device,
                      uint64_t offset, size_t size) {
  Bytes bytes(size, std::byte{0x5a});
  const Status status = memory.Read(device, offset, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_POOL_MEMORY_BYTES_H_
