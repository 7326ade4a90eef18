#include "cc/pool/mapping/mapping_guard.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace jax_cxl::pool {
namespace {

std::atomic<MappingGuard::Range*> ranges{nullptr};
std::mutex ranges_mutex;  // never taken by the handler
bool installed = false;
struct sigaction previous;

// Holds the mutex during a fork. Otherwise, if another thread held it at that
// moment, the child would inherit a locked mutex that no thread unlocks.
[[maybe_unused]] const int at_fork =
    pthread_atfork([] { ranges_mutex.lock(); }, [] { ranges_mutex.unlock(); },
                   [] { ranges_mutex.unlock(); });

// If a guard covers `address`, replaces the memory there, at least
// `least_bytes` bytes, and returns true. Runs in the signal handler.
bool Replace(uintptr_t address, uintptr_t least_bytes) {
  for (auto* range = ranges.load(); range != nullptr; range = range->next) {
    const uintptr_t end = range->end.load();
    const uintptr_t begin = range->begin.load();
    if (address < begin || address >= end) continue;
    const uintptr_t unit = std::max(range->unit.load(), least_bytes);
    const uintptr_t first =
        std::max(begin, begin + (address - begin) / unit * unit);
    const uintptr_t last = std::min(end, first + unit);
    range->lost = true;  // before anybody can read the new zeros
    // This is a direct system call, because C libraries do not promise that
    // mmap works in a signal handler.
    return syscall(SYS_mmap, first, last - first, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                   0) != -1;
  }
  return false;
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool from_kernel = info->si_code > 0;
  const bool memory_error =
      info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO;
  const bool replaced =
      from_kernel &&
      Replace(reinterpret_cast<uintptr_t>(info->si_addr),
              memory_error ? uintptr_t{1} << info->si_addr_lsb : 0);
  errno = saved_errno;
  if (replaced) return;  // The access runs again and succeeds.
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // Restore the earlier handler. The access then faults again, as it would
    // have without the guard.
    sigaction(SIGBUS, &previous, nullptr);
    if (!from_kernel) raise(signal);
  }
}

// Installs the signal handler, at the first call only. The caller holds
// ranges_mutex.
void InstallHandler() {
  if (installed) return;
  installed = true;
  sigaction(SIGBUS, nullptr, &previous);
  struct sigaction ours = {};
  ours.sa_sigaction = OnBusError;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

MappingGuard::MappingGuard(std::byte* begin, uint64_t bytes, uint64_t unit) {
  std::lock_guard lock(ranges_mutex);
  InstallHandler();
  range_ = ranges.load();
  while (range_ != nullptr && range_->end != 0) range_ = range_->next;
  const bool fresh = range_ == nullptr;
  if (fresh) range_ = new Range;
  range_->begin = reinterpret_cast<uintptr_t>(begin);
  range_->unit = unit;
  range_->lost = false;
  range_->end = reinterpret_cast<uintptr_t>(begin) + bytes;
  if (!fresh) return;
  range_->next = ranges;
  ranges = range_;
}

MappingGuard::~MappingGuard() {
  std::lock_guard lock(ranges_mutex);
  range_->end = 0;
}

void MappingGuard::Abandon() {
  const uintptr_t begin = range_->begin.load();
  const uintptr_t end = range_->end.load();
  range_->lost = true;  // before anybody can read the new zeros
  mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace jax_cxl::pool
