#include "cc/testing/faults/fault.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

namespace jax_cxl::fault {
namespace {

constexpr std::string_view kPoints[] = {"submit", "start", "finish", "step",
                                        "ring",   "rung",  "wait"};
constexpr std::string_view kActions[] = {"kill", "stop", "exit", "delay",
                                         "corrupt"};
static_assert(std::size(kPoints) == kNumPoints);
static_assert(std::size(kActions) == kNumActions);

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
                 "': action=corrupt needs point=ring or point=rung, because "
                 "other points have nothing to corrupt");
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

}  // namespace jax_cxl::fault
