#include "cc/base/idle.h"

#include <pthread.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "cc/base/process_stat.h"

namespace jax_cxl {
namespace {

using std::chrono::nanoseconds;

// The program still counts as idle if its threads use up to this share of the
// time, for timers, heartbeats and the like.
constexpr double kIdleShare = 0.05;

struct OwnThreads {
  std::mutex mutex;
  std::map<pid_t, clockid_t> clocks;  // by thread id
  nanoseconds ended{0};               // by threads that have ended
};

OwnThreads& Own() {
  // Never destroyed, because a thread that ends while the process exits still
  // uses this object.
  static auto& own = *new OwnThreads;
  return own;
}

nanoseconds Read(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

// Returns the processor time of all threads but the library's own.
nanoseconds UsedByOthers() {
  const nanoseconds used = UsedByOwnThreads();
  // Read the process's clock last. It then includes at least the time that
  // `used` contains, so the difference is not negative.
  return Read(CLOCK_PROCESS_CPUTIME_ID) - used;
}

// Returns true if a thread that is not the library's own runs, or waits for a
// processor or a disk.
bool AnotherRuns() {
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/self/task", error);
  if (error) return true;  // Unknown: assume the worse.
  for (; task != std::filesystem::directory_iterator(); task.increment(error)) {
    {
      std::lock_guard lock(Own().mutex);
      if (Own().clocks.contains(std::stoi(task->path().filename()))) continue;
    }
    const std::optional<ProcessStat> found = ReadStat(task->path());
    if (found && (found->state == 'R' || found->state == 'D')) return true;
  }
  return false;
}

}  // namespace

std::thread StartOwnThread(std::function<void()> body) {
  return std::thread([body = std::move(body)] {
    const OwnThread own;
    body();
  });
}

nanoseconds UsedByOwnThreads() {
  OwnThreads& own = Own();
  std::lock_guard lock(own.mutex);
  nanoseconds used = own.ended;
  for (const auto& [thread, clock] : own.clocks) used += Read(clock);
  return used;
}

OwnThread::OwnThread() {
  clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
  pthread_getcpuclockid(pthread_self(), &clock);
  std::lock_guard lock(Own().mutex);
  Own().clocks[gettid()] = clock;
}

OwnThread::~OwnThread() {
  std::lock_guard lock(Own().mutex);
  Own().clocks.erase(gettid());
  Own().ended += Read(CLOCK_THREAD_CPUTIME_ID);
}

void Idle::Start() {
  used_ = UsedByOthers();
  since_ = std::chrono::steady_clock::now();
}

bool Idle::Check() const {
  const auto used = UsedByOthers() - used_;
  const auto passed = std::chrono::steady_clock::now() - since_;
  return used <= kIdleShare * passed && !AnotherRuns();
}

}  // namespace jax_cxl
