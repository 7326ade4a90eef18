#include "cc/store/table/take.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace jax_cxl::table {
namespace {

constexpr uint64_t kBatch = 512;  // ids that are looked up together
// How many rows ahead the first cache line of a row is prefetched. The
// processor fetches the other lines of the row by itself. It would be slower to
// prefetch them here too.
constexpr uint64_t kAhead = 8;
constexpr uint64_t kChunkBytes = 1 << 18;

// Copies a small row. Because the size is a constant, the compiler need not
// call memcpy. The call would take longer than the copy itself.
template <uint64_t kBytes>
void CopySmall(const std::byte* from, std::byte* to) {
  std::memcpy(to, from, kBytes);
}

void Copy(const std::byte* from, std::byte* to, uint64_t bytes) {
  switch (bytes) {
    case 4:
      return CopySmall<4>(from, to);
    case 8:
      return CopySmall<8>(from, to);
    case 16:
      return CopySmall<16>(from, to);
    case 32:
      return CopySmall<32>(from, to);
    case 64:
      return CopySmall<64>(from, to);
    default:
      std::memcpy(to, from, bytes);
  }
}

// Copies a row that its owner may be changing. The copy has the row's state
// before or after a step, never a mixture.
Status CopyWhole(const Column& column, uint64_t row, std::byte* to) {
  using Clock = std::chrono::steady_clock;
  const PartWords& part = column.parts[row / column.rows_of_part];
  const std::byte* from = column.data + row * column.row_bytes;
  Clock::time_point deadline;
  for (uint64_t tries = 0;; ++tries) {
    const uint64_t finished = column.coherence.LoadFlag(&part.finished);
    const uint64_t begun = column.coherence.LoadFlag(&part.begun);
    if (begun == finished) {
      column.coherence.AcquirePayload(from, column.row_bytes);
      std::memcpy(to, from, column.row_bytes);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (column.coherence.LoadFlag(&part.begun) == begun) return OkStatus();
    }
    if (tries < 64) continue;
    const Clock::time_point now = Clock::now();
    if (tries == 64)
      deadline = now + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(column.timeout_s));
    if (now > deadline)
      return Error(Code::kDeadlineExceeded, "row ", row,
                   " of a table is being changed by step ", begun,
                   ", which has not finished within ", column.timeout_s,
                   " s. If the job that trains the table has ended, start it "
                   "again: it will finish the step. If it is only slow, raise "
                   "JAX_CXL_TIMEOUT");
    std::this_thread::yield();
  }
}

void Fill(const Column& column, const std::array<std::byte, 16>& elements,
          std::byte* to) {
  for (uint64_t at = 0; at < column.row_bytes; at += elements.size())
    std::memcpy(to + at, elements.data(),
                std::min<uint64_t>(elements.size(), column.row_bytes - at));
}

template <typename Id>
Status Take(const Column& column, const Request& request, uint64_t begin,
            uint64_t end) {
  const auto* ids = static_cast<const Id*>(request.ids.data);
  const uint64_t bytes = column.row_bytes;
  int64_t rows[kBatch];
  const std::byte* from[kBatch];
  for (uint64_t start = begin; start < end; start += kBatch) {
    const uint64_t count = std::min(kBatch, end - start);
    for (uint64_t i = 0; i < count; ++i) {
      rows[i] = RowOf(ids[start + i], static_cast<int64_t>(column.rows),
                      request.mode);
      if (rows[i] == kOutside && request.mode == Mode::kError)
        return OutsideError(column, std::to_string(ids[start + i]), start + i);
      from[i] = column.data + (rows[i] == kOutside ? 0 : rows[i] * bytes);
    }
    const auto prefetch = [&](uint64_t i) {
      if (i < count) __builtin_prefetch(from[i]);
    };
    for (uint64_t i = 0; i < kAhead; ++i) prefetch(i);
    for (uint64_t i = 0; i < count; ++i) {
      prefetch(i + kAhead);
      std::byte* to = request.output + (start + i) * bytes;
      if (rows[i] == kOutside)
        Fill(column, request.fill, to);
      else if (column.parts != nullptr)
        CXL_RETURN_IF_ERROR(CopyWhole(column, rows[i], to));
      else
        Copy(from[i], to, bytes);
    }
  }
  return OkStatus();
}

}  // namespace

Status TakeRows(const Column& column, const Request& request, uint64_t begin,
                uint64_t end) {
  return request.ids.wide ? Take<int64_t>(column, request, begin, end)
                          : Take<int32_t>(column, request, begin, end);
}

uint64_t IdsOfChunk(const Column& column) {
  return std::clamp<uint64_t>(
      kChunkBytes / std::max<uint64_t>(column.row_bytes, 1), 16, 8192);
}

Status OutsideError(const Column& column, const std::string& id,
                    uint64_t position) {
  return Error(Code::kInvalidArgument, "take: id ", id, " at position ",
               position, " is outside of a table of ", column.rows,
               " rows. mode=\"fill\" and mode=\"clip\" accept such ids");
}

}  // namespace jax_cxl::table
