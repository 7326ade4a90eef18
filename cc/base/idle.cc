#include "cc/base/idle.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <utility>

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

// Returns the state of a thread, which is field 3 of
// /proc/self/task/THREAD/stat, or 'X' if the thread has ended.
char StateOf(int tasks, const char* thread) {
  const std::string path = std::string(thread) + "/stat";
  const int file = openat(tasks, path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 'X';
  char text[256];
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  if (size <= 0) return 'X';
  text[size] = 0;
  // Start after field 2, because the thread's name in it may contain blanks
  // and parentheses.
  const char* end = std::strrchr(text, ')');
  return end != nullptr && end[1] == ' ' ? end[2] : 'X';
}

// Returns true if a thread that is not the library's own runs, or waits for a
// processor or a disk.
bool AnotherRuns() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return true;  // Unknown: assume the worse.
  bool runs = false;
  while (const dirent* entry = readdir(tasks)) {
    const pid_t thread = std::atoi(entry->d_name);
    if (thread <= 0) continue;
    {
      std::lock_guard lock(Own().mutex);
      if (Own().clocks.contains(thread)) continue;
    }
    const char state = StateOf(dirfd(tasks), entry->d_name);
    if (state == 'R' || state == 'D') {
      runs = true;
      break;
    }
  }
  closedir(tasks);
  return runs;
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
