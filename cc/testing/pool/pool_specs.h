#ifndef JAX_CXL_TESTING_POOL_POOL_SPECS_H_
#define JAX_CXL_TESTING_POOL_POOL_SPECS_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/pool/pool.h"
#include "cc/testing/pool/scratch.h"

// Code that the tests of Pool share.
namespace jax_cxl::pool {

inline constexpr uid_t kNobody = 65534;

inline PoolSpec ShmSpec(const std::string& name, uint64_t bytes = 4 * kMiB) {
  PoolSpec spec;
  spec.paths = {name};
  spec.bytes = bytes;
  return spec;
}

inline PoolSpec FileSpec(std::vector<std::string> paths,
                         uint64_t bytes = 4 * kMiB) {
  PoolSpec spec;
  spec.medium = Medium::kFile;
  spec.paths = std::move(paths);
  spec.bytes = bytes;
  return spec;
}

inline void WriteFile(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
  std::filesystem::permissions(path, std::filesystem::perms(0600));
}

// Calls Create. Returns the code of its status, and checks that the status
// message contains `word`.
inline Code CreateCode(const PoolSpec& spec, const std::string& word = "") {
  const auto pool = Pool::Create(spec, 2);
  EXPECT_NE(pool.status().message().find(word), std::string::npos)
      << pool.status().message();
  return pool.status().code();
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_POOL_POOL_SPECS_H_
