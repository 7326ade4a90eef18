#include "cc/base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <thread>

namespace jax_cxl::fault {
namespace {

constexpr std::string_view kPoints[] = {"submit", "start", "step",  "ring",
                                        "rung",   "wait",  "finish"};
constexpr std::string_view kActions[] = {"kill", "stop", "exit", "delay",
                                         "corrupt"};
static_assert(std::size(kPoints) == kNumPoints);
static_assert(std::size(kActions) == kNumActions);

constexpr int kExitStatus = 70;
// What a doorbell announces starts beside it, and is at least this long.
constexpr uint64_t kLineBytes = 128;
constexpr uint64_t kScribbledWords = 4;

// Written by Arm, before calls are under way, and by the one thread at a time
// that acts for the rank.
struct State {
  Fault fault;
  uint64_t call = 0;
  std::array<uint64_t, kNumPoints> passes{};
  bool happened = false;
  void (*observer)(const Fault&) = nullptr;
};

State& TheState() {
  static auto& state = *new State;
  return state;
}

thread_local int this_rank = -1;

// A corruption that a test can repeat.
uint64_t Scramble(uint64_t value) {
  value = (value ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  return value ^ value >> 29 ^ value << 41;
}

void Corrupt(Point point, uint64_t* word) {
  if (word == nullptr) return;
  if (point == Point::kRung) {
    std::atomic_ref(*word).store(Scramble(*word));
    return;
  }
  for (uint64_t i = 1; i <= kScribbledWords; ++i)
    std::atomic_ref(word[i]).store(Scramble(word[i] + i));
}

void Act(Point point, uint64_t* word) {
  const Fault& fault = TheState().fault;
  if (TheState().observer != nullptr) TheState().observer(fault);
  switch (fault.action) {
    case Action::kKill:
      kill(getpid(), SIGKILL);
      break;
    case Action::kStop:
      kill(getpid(), SIGSTOP);
      break;
    case Action::kExit:
      _exit(kExitStatus);
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      break;
    case Action::kCorrupt:
      Corrupt(point, word);
      break;
  }
}

template <size_t size>
int IndexOf(const std::string_view (&names)[size], std::string_view name) {
  const auto* found = std::find(names, names + size, name);
  return found == names + size ? -1 : static_cast<int>(found - names);
}

template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && parsed == end && *value >= 0;
}

bool ParseField(std::string_view key, std::string_view value, Fault* fault) {
  if (key == "rank") return ParseNumber(value, &fault->rank);
  if (key == "call") return ParseNumber(value, &fault->call);
  if (key == "pass") return ParseNumber(value, &fault->pass) && fault->pass > 0;
  if (key == "seconds") return ParseNumber(value, &fault->seconds);
  if (key == "point") {
    const int index = IndexOf(kPoints, value);
    fault->point = static_cast<Point>(index);
    return index >= 0;
  }
  if (key == "action") {
    const int index = IndexOf(kActions, value);
    fault->action = static_cast<Action>(index);
    return index >= 0;
  }
  return false;
}

}  // namespace

std::string_view PointName(Point point) {
  return kPoints[static_cast<int>(point)];
}

std::string_view ActionName(Action action) {
  return kActions[static_cast<int>(action)];
}

Result<Fault> Parse(std::string_view text) {
  Fault fault;
  bool rank = false, point = false, action = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view field = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    const size_t equals = field.find('=');
    const std::string_view key = field.substr(0, equals);
    if (equals == field.npos ||
        !ParseField(key, field.substr(equals + 1), &fault))
      return Error(Code::kInvalidArgument, "fault '", text, "': '", field,
                   "' is not understood; write for example "
                   "rank=1,call=3,point=ring,pass=2,action=kill");
    rank |= key == "rank";
    point |= key == "point";
    action |= key == "action";
  }
  if (!rank || !point || !action)
    return Error(Code::kInvalidArgument, "fault '", text,
                 "' lacks rank=, point= or action=");
  if (fault.action == Action::kCorrupt && fault.point != Point::kRing &&
      fault.point != Point::kRung)
    return Error(Code::kInvalidArgument, "fault '", text,
                 "': there is something to corrupt at the points ring and "
                 "rung only");
  return fault;
}

std::string Text(const Fault& fault) {
  std::ostringstream text;
  text << "rank=" << fault.rank << ",call=" << fault.call
       << ",point=" << PointName(fault.point) << ",pass=" << fault.pass
       << ",action=" << ActionName(fault.action);
  if (fault.action == Action::kDelay) text << ",seconds=" << fault.seconds;
  return text.str();
}

void Arm(const Fault& fault) {
  State& state = TheState();
  state.fault = fault;
  state.call = 0;
  state.passes = {};
  state.happened = false;
  internal::armed.store(true, std::memory_order_release);
}

void Disarm() { internal::armed.store(false, std::memory_order_release); }

void SetObserver(void (*observer)(const Fault&)) {
  TheState().observer = observer;
}

uint64_t Passes(Point point) {
  return TheState().passes[static_cast<int>(point)];
}

namespace internal {

std::atomic<bool> armed{false};

void Enter(int rank) { this_rank = rank; }

void Pass(Point point, uint64_t* word) {
  State& state = TheState();
  const Fault& fault = state.fault;
  if (this_rank != fault.rank || state.call < fault.call) return;
  const uint64_t pass = ++state.passes[static_cast<int>(point)];
  if (state.happened || point != fault.point || pass != fault.pass) return;
  state.happened = true;
  Act(point, word);
}

void Pass(Point point, int rank, uint64_t call) {
  State& state = TheState();
  if (rank != state.fault.rank) return;
  this_rank = rank;
  state.call = call;
  internal::Pass(point, nullptr);
}

}  // namespace internal
}  // namespace jax_cxl::fault
