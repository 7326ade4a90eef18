#ifndef JAX_CXL_BASE_FAULT_H_
#define JAX_CXL_BASE_FAULT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "cc/base/status.h"

// A test facility: makes one rank die, stop, stall or scribble at one point of
// the protocol. Unset, each point costs one load of a word that nobody writes
// and a branch that is never taken.
namespace jax_cxl::fault {

enum class Point : uint8_t {
  kSubmit,  // the rank has started a call
  kStart,   // all ranks are in it
  kStep,    // before a step of its plan
  kRing,    // before a doorbell: all that it announces is written
  kRung,    // after a doorbell
  kWait,    // a look at the peers, now and then while nothing moves
  kFinish,  // the call is done, its caller does not know yet
};
inline constexpr int kNumPoints = 7;

enum class Action : uint8_t {
  kKill,     // SIGKILL
  kStop,     // SIGSTOP
  kExit,     // _exit(70): no destructor runs
  kDelay,    // sleeps for `seconds`
  kCorrupt,  // kRing: scribbles over what the doorbell announces; kRung: over
             // the doorbell
};
inline constexpr int kNumActions = 5;

struct Fault {
  int rank = 0;
  uint64_t call = 1;  // number of the rank's call, from 1, or a later one
  Point point = Point::kSubmit;
  uint64_t pass = 1;  // which pass through the point from then on
  Action action = Action::kKill;
  double seconds = 0;  // kDelay
};

std::string_view PointName(Point point);
std::string_view ActionName(Action action);

// "rank=1,call=3,point=ring,pass=2,action=delay,seconds=0.5"; call and pass may
// be left out. Error: kInvalidArgument.
Result<Fault> Parse(std::string_view text);
std::string Text(const Fault& fault);

// Sets or clears the fault of this process. It happens once. Not while calls
// are under way.
void Arm(const Fault& fault);
void Disarm();

// Runs just before the fault happens, in its thread.
void SetObserver(void (*observer)(const Fault&));

// How often the armed rank has passed a point since the call of its fault: what
// `pass` can be.
uint64_t Passes(Point point);

namespace internal {
extern std::atomic<bool> armed;
void Enter(int rank);
void Pass(Point point, uint64_t* word);
void Pass(Point point, int rank, uint64_t call);
}  // namespace internal

// This thread acts for `rank` from now on.
inline void Enter(int rank) {
  if (internal::armed.load(std::memory_order_relaxed)) [[unlikely]]
    internal::Enter(rank);
}

// This thread has come to `point`; `word`: the doorbell.
inline void Pass(Point point, uint64_t* word = nullptr) {
  if (internal::armed.load(std::memory_order_relaxed)) [[unlikely]]
    internal::Pass(point, word);
}

// The same where the call is known.
inline void Pass(Point point, int rank, uint64_t call) {
  if (internal::armed.load(std::memory_order_relaxed)) [[unlikely]]
    internal::Pass(point, rank, call);
}

}  // namespace jax_cxl::fault

#endif  // JAX_CXL_BASE_FAULT_H_
