#ifndef JAX_CXL_TESTING_FAULTS_FAULT_H_
#define JAX_CXL_TESTING_FAULTS_FAULT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "cc/base/status.h"

// Describes a fault: which rank dies, stops, is delayed or corrupts memory, and
// at which point of the protocol. Injector (faulty_memory.h) makes it happen.
namespace jax_cxl::fault {

enum class Point : uint8_t {
  // Before the rank's first operation on the pool after its recorder says that
  kSubmit,  // it has submitted a call,
  kStart,   // all ranks are in the call,
  kFinish,  // the call is done.
  // At operations on the words and data of a channel:
  kStep,  // before a slot or a submission is published or acquired
  kRing,  // before a doorbell, after the data that it announces
  kRung,  // after a doorbell
  kWait,  // before a doorbell is read
};
inline constexpr int kNumPoints = 7;

enum class Action : uint8_t {
  kKill,     // SIGKILL
  kStop,     // SIGSTOP
  kExit,     // _exit(70): no destructor runs
  kDelay,    // sleeps for `seconds`
  kCorrupt,  // kRing: overwrites the data of the doorbell; kRung: overwrites
             // the doorbell
};
inline constexpr int kNumActions = 5;

struct Fault {
  int rank = 0;
  uint64_t call = 1;  // the fault happens in this call (from 1) or a later one
  Point point = Point::kSubmit;
  uint64_t pass = 1;  // counts passes through the point from that call on
  Action action = Action::kKill;
  double seconds = 0;  // kDelay

  bool operator==(const Fault&) const = default;
};

std::string_view PointName(Point point);
std::string_view ActionName(Action action);

// Parses a text like
// "rank=1,call=3,point=ring,pass=2,action=delay,seconds=0.5". `call` and `pass`
// are optional. Fails with kInvalidArgument.
Result<Fault> Parse(std::string_view text);
std::string Text(const Fault& fault);

}  // namespace jax_cxl::fault

#endif  // JAX_CXL_TESTING_FAULTS_FAULT_H_
