// Random damage to headers and files. Opening a pool must give an error or a
// working pool, and never crash. Seeds are fixed, so that a failure repeats.
// JAX_CXL_TEST_SECONDS=20 runs ten times as many cases.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "cc/pool/layout/header.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/random_test_length.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBytes = 4 * kMiB;

class HeaderFuzzTest : public testing::Test {
 protected:
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  // Changes 1 to 8 of the first `length` bytes.
  void Damage(std::vector<char>& page, uint64_t length) {
    for (uint64_t n = 1 + Below(8); n > 0; --n) {
      page[Below(length)] ^= static_cast<char>(1 + Below(255));
    }
  }

  static void Write(const std::string& path, const std::vector<char>& page) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.write(page.data(), static_cast<std::streamsize>(page.size()));
  }

  static std::vector<char> Read(const std::string& path) {
    std::vector<char> page(kPageBytes);
    std::ifstream(path, std::ios::binary).read(page.data(), kPageBytes);
    return page;
  }

  TempDirectory dir_;
  PoolSpec spec_{
      .medium = Medium::kFile, .paths = {dir_ / "pool"}, .bytes = kBytes};
  std::mt19937_64 random_{20240607};
};

TEST_F(HeaderFuzzTest, AttachRefusesAnyDamagedByte) {
  auto pool = Pool::Create(spec_, 2);
  ASSERT_TRUE(pool.ok());
  const std::vector<char> good = Read(spec_.paths[0]);
  for (int i = 0; i < RandomTestCount(400); ++i) {
    std::vector<char> page = good;
    Damage(page, sizeof(PoolHeader));
    Write(spec_.paths[0], page);
    const auto peer = Pool::Attach(spec_, 2, (*pool)->token());
    if (page == good) continue;
    ASSERT_EQ(peer.status().code(), Code::kDataLoss);
    ASSERT_FALSE(peer.status().message().empty());
  }
  Write(spec_.paths[0], good);
  EXPECT_TRUE(Pool::Attach(spec_, 2, (*pool)->token()).ok());
}

TEST_F(HeaderFuzzTest, AttachRefusesAnyTruncation) {
  auto pool = Pool::Create(spec_, 2);
  ASSERT_TRUE(pool.ok());
  for (int i = 0; i < RandomTestCount(50); ++i) {
    fs::resize_file(spec_.paths[0], Below(kBytes));
    ASSERT_EQ(Pool::Attach(spec_, 2, (*pool)->token()).status().code(),
              Code::kDataLoss);
    PoolSpec unsized_spec = spec_;
    unsized_spec.bytes = 0;  // then the file's size is used
    ASSERT_FALSE(Pool::Attach(unsized_spec, 2, (*pool)->token()).ok());
  }
}

// A valid checksum does not prove that a header is right. A header with random
// fields and a matching checksum must be refused too.
TEST_F(HeaderFuzzTest, FieldsAreCheckedBehindAValidChecksum) {
  const std::vector<ByteRange> extents = {{0, kBytes}, {kBytes, kBytes}};
  const PoolHeader expected = MakeHeader(2, extents, 2 * kBytes, 1, 99);
  ASSERT_TRUE(CheckHeader(expected, expected, "x").ok());
  for (int i = 0; i < RandomTestCount(20000); ++i) {
    PoolHeader header = expected;
    auto* words = reinterpret_cast<uint32_t*>(&header);
    // Changes a field after magic and version. Leaves out the unused word and
    // the creator's uid, which CheckHeader does not compare.
    uint64_t at = 3 + Below(sizeof(PoolHeader) / 4 - 5);
    if (at == offsetof(PoolHeader, creator_uid) / 4 ||
        at == offsetof(PoolHeader, reserved) / 4) {
      continue;
    }
    // Any epoch from 1 to 65535 is valid, so make it 0 or larger than 65535.
    if (at * 4 / 8 == offsetof(PoolHeader, epoch) / 8) {
      header.epoch = Below(2) ? 0 : 65536 + Below(UINT64_MAX - 65536);
    } else {
      words[at] ^= 1 + static_cast<uint32_t>(Below(UINT32_MAX));
    }
    header.checksum = HeaderChecksum(header);
    ASSERT_EQ(CheckHeader(header, expected, "x").code(), Code::kDataLoss) << at;
    EpochOf(header);
  }
}

// Whatever an abandoned file contains, Create makes a new pool, or returns an
// error and leaves the file alone.
TEST_F(HeaderFuzzTest, CreateTakesOverOrRefuses) {
  {
    ASSERT_TRUE(Pool::Create(spec_, 2).ok());
  }  // its destructor removes the file
  const PoolHeader header =
      MakeHeader(2, {{0, kBytes}}, kBytes, /*epoch=*/5, /*token=*/6);
  std::vector<char> good(kPageBytes);
  std::memcpy(good.data(), &header, sizeof(header));
  int taken = 0, refused = 0;
  for (int i = 0; i < RandomTestCount(120); ++i) {
    std::vector<char> page = good;
    if (i % 3 == 0) {
      for (char& byte : page) byte = static_cast<char>(Below(256));
    } else if (i % 3 == 1) {
      Damage(page, 64);
    } else {
      Damage(page, page.size());
    }
    page.resize(Below(kPageBytes + 1));
    std::ofstream(spec_.paths[0], std::ios::binary)
        .write(page.data(), static_cast<std::streamsize>(page.size()));
    fs::permissions(spec_.paths[0], fs::perms(0600));
    const auto pool = Pool::Create(spec_, 2);
    if (pool.ok()) {
      ++taken;
      ASSERT_GE((*pool)->epoch(), 1u);
      ASSERT_TRUE(Pool::Attach(spec_, 2, (*pool)->token()).ok());
    } else {
      ++refused;
      ASSERT_EQ(pool.status().code(), Code::kDataLoss);
      std::vector<char> kept = Read(spec_.paths[0]);
      kept.resize(page.size());
      ASSERT_EQ(kept, page);
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace jax_cxl::pool
