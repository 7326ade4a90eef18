// Operations that move rows: what they write to the pool and what they count.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "cc/engine/cuda/rows.h"
#include "cc/testing/cuda/device_calls.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {
namespace {

constexpr int kRanks = 2;
constexpr uint64_t kRows = 200, kTaken = 300;

// One rank's memory on its device.
class Memory {
 public:
  explicit Memory(int device) {
    OkOrDie(cudaSetDevice(device));
    OkOrDie(cudaMalloc(&base_, kBytes));
  }
  ~Memory() { cudaFree(base_); }
  Memory(const Memory&) = delete;

  std::byte* Take(uint64_t bytes) {
    std::byte* at = static_cast<std::byte*>(base_) + used_;
    used_ += (bytes + 63) / 64 * 64;
    EXPECT_LE(used_, kBytes);
    return at;
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    std::byte* at = Take(values.size() * sizeof(T));
    OkOrDie(cudaMemcpy(at, values.data(), values.size() * sizeof(T),
                       cudaMemcpyHostToDevice));
    return reinterpret_cast<T*>(at);
  }

 private:
  static constexpr uint64_t kBytes = uint64_t{32} << 20;
  void* base_ = nullptr;
  uint64_t used_ = 0;
};

// Returns the value of word `at` of row `row` of a rank. Nothing else in the
// pool has this value.
uint64_t Word(int rank, uint64_t row, uint64_t at) {
  return 0x7ab1e00000000000 | uint64_t(rank) << 40 | row << 20 | at;
}

class DeviceRowsTest : public DeviceEndpointTest,
                       public testing::WithParamInterface<int> {
 protected:
  // The number of 8-byte words in a row. For some values a row consists of
  // whole 16-byte vectors, whose number may or may not be a power of two. For
  // others a row has 8 or 24 bytes, so that neighboring rows share a vector.
  uint64_t words() const { return GetParam(); }

  std::vector<uint64_t> Table(int rank) const {
    std::vector<uint64_t> table;
    for (uint64_t row = 0; row < kRows; ++row)
      for (uint64_t at = 0; at < words(); ++at)
        table.push_back(Word(rank, row, at));
    return table;
  }

  Call RowsCall(int rank, plan::Op op, const char* name) const {
    Call call;
    call.name = name;
    call.request.op = op;
    call.request.num_ranks = kRanks;
    call.request.rank = rank;
    call.request.count = kRows * words();
    call.request.element_bytes = sizeof(uint64_t);
    call.request.rows.table = kRows;
    call.request.rows.taken = kTaken;
    call.dtype = DType::kUint64;
    return call;
  }

  // Runs a call of each rank, and waits until all calls are done. If `started`
  // is true, enqueues the start and the end of each call separately.
  void Run(DeviceWorld& world, const std::vector<Call>& calls, bool started) {
    for (const Call& call : calls) {
      const int rank = call.request.rank;
      OkOrDie(cudaSetDevice(world.device(rank)));
      DeviceEndpoint& endpoint = world.endpoint(rank);
      if (started) {
        OkOrDie(endpoint.EnqueueStart({0, 1}, call, world.stream(rank)));
        OkOrDie(endpoint.EnqueueDone(call.output, call.output, 0,
                                     world.stream(rank)));
      } else {
        OkOrDie(endpoint.Enqueue({0, 1}, call, world.stream(rank)));
      }
    }
    for (const Call& call : calls) {
      OkOrDie(cudaSetDevice(world.device(call.request.rank)));
      OkOrDie(cudaStreamSynchronize(world.stream(call.request.rank)));
    }
  }

  std::vector<uint64_t> Output(const Call& call) const {
    std::vector<uint64_t> output(kTaken * words());
    OkOrDie(cudaMemcpy(output.data(), call.output, output.size() * 8,
                       cudaMemcpyDeviceToHost));
    return output;
  }

  // Returns those words of the ranks' tables that are found in the pool.
  std::set<uint64_t> InPool(DeviceWorld& world) const {
    std::set<uint64_t> found;
    const auto* words = reinterpret_cast<const uint64_t*>(world.pool().base());
    for (uint64_t i = 0; i < world.pool().total_bytes() / 8; ++i)
      if (words[i] >> 44 == 0x7ab1e) found.insert(words[i]);
    return found;
  }

  static uint64_t Rows16(uint64_t rows, uint64_t words) {
    return (rows * words * 8 + 15) / 16 * 16;
  }
};

// Every third row is published. The peer takes only half of the published rows,
// and some of them twice.
TEST_P(DeviceRowsTest, TakeRowsWritesWhatIsPublished) {
  for (bool started : {false, true}) {
    DeviceWorld world(kRanks, {});
    world.OpenChannels({0, 1});
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<Call> calls;
    std::vector<uint8_t> published(kRows);
    for (uint64_t row = 0; row < kRows; row += 3) published[row] = 1;
    for (int rank = 0; rank < kRanks; ++rank) {
      memory.push_back(std::make_unique<Memory>(world.device(rank)));
      std::vector<int32_t> indices(kTaken, -1);
      for (uint64_t i = 0; i < kTaken; ++i) {
        const int32_t peer = static_cast<int32_t>((1 - rank) * kRows);
        const auto row = static_cast<int32_t>(i);
        if (i % 6 == 0 && i < kRows) indices[i] = peer + row;
        if (i % 6 == 1 && i < kRows / 2) indices[i] = peer + row - 1;
        if (i % 6 == 2 && i < kRows)  // an own row that is not published
          indices[i] = static_cast<int32_t>(rank * kRows) + row - 1;
      }
      Call call = RowsCall(rank, plan::Op::kTakeRows, "take_rows");
      call.input =
          reinterpret_cast<std::byte*>(memory[rank]->Upload(Table(rank)));
      call.output = memory[rank]->Take(kTaken * words() * 8);
      call.row_operands.indices = memory[rank]->Upload(indices);
      call.row_operands.published = memory[rank]->Upload(published);
      call.row_operands.scratch =
          memory[rank]->Take(cuda::RowScratchBytes(call.request));
      calls.push_back(call);
    }
    Run(world, calls, started);

    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<uint64_t> output = Output(calls[rank]);
      for (uint64_t i = 0; i < kTaken; ++i)
        for (uint64_t at = 0; at < words(); ++at) {
          uint64_t expected = 0;
          if (i % 6 == 0 && i < kRows) expected = Word(1 - rank, i, at);
          if (i % 6 == 1 && i < kRows / 2) expected = Word(1 - rank, i - 1, at);
          if (i % 6 == 2 && i < kRows) expected = Word(rank, i - 1, at);
          ASSERT_EQ(output[i * words() + at], expected) << i << ", " << at;
        }
    }
    // A published row is in the pool as a whole. Of other rows, only the words
    // that share 16 bytes with a published row may be in the pool.
    const std::set<uint64_t> found = InPool(world);
    for (int rank = 0; rank < kRanks; ++rank)
      for (uint64_t row = 0; row < kRows; ++row)
        for (uint64_t at = 0; at < words(); ++at) {
          if (published[row] == 1) {
            EXPECT_EQ(found.count(Word(rank, row, at)), 1u);
          } else if (words() % 2 == 0) {
            EXPECT_EQ(found.count(Word(rank, row, at)), 0u) << row;
          }
        }
    const Stats stats = world.endpoint(0).stats();
    EXPECT_EQ(stats.calls, 1u);
    constexpr uint64_t kPublished = (kRows + 2) / 3, kWanted = (kRows + 5) / 6;
    if (words() % 2 == 0) {
      EXPECT_EQ(stats.bytes_published, Rows16(kPublished, words()));
      EXPECT_EQ(stats.bytes_retrieved, Rows16(kWanted, words()));
    } else {
      EXPECT_GE(stats.bytes_published, kPublished * words() * 8);
      EXPECT_LT(stats.bytes_published, Rows16(kRows, words()));
    }
  }
}

// Rank r sends its first 50 rows to itself, and the next 30 to its peer.
TEST_P(DeviceRowsTest, RaggedIsOneCall) {
  DeviceWorld world(kRanks, {});
  world.OpenChannels({0, 1});
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<Call> calls;
  constexpr int32_t kOwn = 50, kSent = 30;
  for (int rank = 0; rank < kRanks; ++rank) {
    memory.push_back(std::make_unique<Memory>(world.device(rank)));
    Call call = RowsCall(rank, plan::Op::kRaggedAllToAll, "ragged_all_to_all");
    call.request.rows.slices = 1;
    const int32_t own = rank, peer = 1 - rank;
    // The table has four lists, each with an entry for each receiver: input
    // offsets, sizes, output offsets, and received sizes.
    std::vector<int32_t> table(4 * kRanks);
    table[own] = 0, table[peer] = kOwn;
    table[kRanks + own] = kOwn, table[kRanks + peer] = kSent;
    table[2 * kRanks + own] = 0, table[2 * kRanks + peer] = 100;
    table[3 * kRanks + own] = kOwn, table[3 * kRanks + peer] = kSent;
    call.input =
        reinterpret_cast<std::byte*>(memory[rank]->Upload(Table(rank)));
    call.output = memory[rank]->Take(kTaken * words() * 8);
    call.row_operands.slices = memory[rank]->Upload(table);
    call.row_operands.slice_entry_bytes = sizeof(int32_t);
    call.row_operands.scratch =
        memory[rank]->Take(cuda::RowScratchBytes(call.request));
    calls.push_back(call);
  }
  Run(world, calls, false);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<uint64_t> output = Output(calls[rank]);
    for (uint64_t i = 0; i < kOwn; ++i)
      EXPECT_EQ(output[i * words()], Word(rank, i, 0));
    for (uint64_t i = 0; i < kSent; ++i)
      EXPECT_EQ(output[(100 + i) * words()], Word(1 - rank, kOwn + i, 0));
  }
  const Stats stats = world.endpoint(0).stats();
  EXPECT_EQ(stats.calls, 1u);
  EXPECT_GE(stats.bytes_published, kSent * words() * 8);
  EXPECT_LT(stats.bytes_published, (kSent + 2) * words() * 8 + 256);
  for (const std::set<uint64_t> found = InPool(world); uint64_t word : found) {
    const uint64_t row = word >> 20 & 0xfffff;
    EXPECT_TRUE(words() % 2 == 1 || (row >= kOwn && row < kOwn + kSent)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Words, DeviceRowsTest,
                         testing::Values(1, 3, 2, 6, 64, 512));

}  // namespace
}  // namespace jax_cxl::comm
