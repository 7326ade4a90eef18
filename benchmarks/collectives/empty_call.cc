// Custom calls that move no data: their time is what XLA itself needs for a
// call. benchmarks/collectives/empty_call.py compiles and registers them.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

struct alignas(128) Count {
  std::atomic<uint64_t> calls;
};
Count* counts = nullptr;  // of all ranks
int own = 0;
int ranks = 0;

// Waits until all ranks have made as many calls as this rank.
void MeetOthers() {
  const uint64_t number = counts[own].calls.fetch_add(1) + 1;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int polls = 0; counts[rank].calls.load() < number; ++polls)
      if (polls > 1000) sched_yield();
  }
}

}  // namespace

// Maps the file in which the ranks count their calls of
// jax_cxl_benchmark_wait, and makes the file if needed. These calls then use
// the counts to wait for each other. A new file starts with counts of zero.
// Returns false if the file cannot be mapped.
extern "C" bool jax_cxl_benchmark_meet(const char* path, int rank, int size) {
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  const off_t bytes = static_cast<off_t>(sizeof(Count)) * size;
  if (file < 0 || ftruncate(file, bytes) != 0) return false;
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return false;
  counts = static_cast<Count*>(memory);
  own = rank;
  ranks = size;
  return true;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_benchmark_empty,
    [](ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_benchmark_wait,
    [](ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
      MeetOthers();
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
