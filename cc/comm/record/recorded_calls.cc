#include "cc/comm/record/recorded_calls.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "cc/base/text.h"

namespace jax_cxl::comm {
namespace {

using pool::kRecordedCalls;

// Converts readings of a rank's clocks to seconds since 1970.
class Timeline {
 public:
  Timeline(const pool::Recorder& recorder, const pool::Coherence& coherence)
      : clock_(coherence.AcquireWords(recorder.clock)) {
    const double ticks = Difference(clock_.last.ticks, clock_.first.ticks);
    const double ns = Difference(clock_.last.steady_ns, clock_.first.steady_ns);
    // With only one reading of the clocks, the rate of the ticks is unknown.
    // Then use the time of that reading for all calls, because little time has
    // passed.
    if (ticks > 0 && ns > 0) ns_per_tick_ = ns / ticks;
  }

  // Returns the duration of `ticks` in seconds.
  double Duration(uint64_t ticks) const {
    return 1e-9 * ns_per_tick_ * static_cast<double>(ticks);
  }

  double FromTicks(uint64_t ticks) const {
    if (ticks == 0) return 0;
    return 1e-9 * (static_cast<double>(clock_.last.realtime_ns) +
                   ns_per_tick_ * Difference(ticks, clock_.last.ticks));
  }

 private:
  static double Difference(uint64_t a, uint64_t b) {
    return static_cast<double>(static_cast<int64_t>(a - b));
  }

  pool::RecorderClock clock_;
  double ns_per_tick_ = 0;
};

// Returns the calls for which `wanted` returns true, among the newest `most`
// calls, oldest first.
template <typename Wanted>
std::vector<RecordedCall> Select(const pool::Recorder& recorder,
                                 const pool::Doorbells& doorbells,
                                 uint64_t most, Wanted wanted) {
  const Timeline timeline(recorder, doorbells.coherence());
  const uint64_t newest = doorbells.Read(&recorder.submitted_calls.word);
  const uint64_t count = std::min({newest, most, kRecordedCalls});
  std::vector<RecordedCall> calls;
  for (uint64_t number = newest - count + 1; number <= newest; ++number) {
    const pool::CallRecord& from = recorder.calls[number % kRecordedCalls];
    if (doorbells.Read(&from.number) != number) continue;
    const auto record = doorbells.coherence().AcquireWords(from);
    // Skip the record if it has changed while it was copied.
    if (doorbells.Read(&from.number) != number ||
        doorbells.Value(record.number) != number || !wanted(record))
      continue;
    RecordedCall& call = calls.emplace_back();
    call.number = number;
    call.identity = record.identity;
    call.group = record.group;
    call.name = PrintableText(record.name);
    call.what = DescribeText(record.descriptor, call.name);
    call.site = ReadSite(recorder, record.site, doorbells);
    call.submitted = timeline.FromTicks(record.submitted);
    call.started = timeline.FromTicks(record.started);
    call.finished = timeline.FromTicks(record.finished);
    call.code = static_cast<Code>(record.code);
    call.waiting_for = record.waiting_for;
  }
  return calls;
}

}  // namespace

std::string ReadSite(const pool::Recorder& recorder, uint32_t number,
                     const pool::Doorbells& doorbells) {
  const pool::SiteRecord& from = recorder.sites[number % pool::kRecordedSites];
  if (number == 0 || doorbells.Read(&from.number) != number) return "";
  const auto copy = doorbells.coherence().AcquireWords(from);
  if (doorbells.Read(&from.number) != number) return "";
  return PrintableText(copy.text);
}

std::vector<RecordedCall> ReadCalls(const pool::Recorder& recorder,
                                    const pool::Doorbells& doorbells,
                                    size_t most) {
  return Select(recorder, doorbells, most,
                [](const pool::CallRecord&) { return true; });
}

std::vector<RecordedOperation> ReadOperations(
    const pool::Recorder& recorder, const pool::Coherence& coherence) {
  const Timeline timeline(recorder, coherence);
  std::vector<RecordedOperation> operations;
  for (const pool::OperationRecord& from : recorder.operations) {
    const pool::OperationRecord copy = coherence.AcquireWords(from);
    RecordedOperation operation = {PrintableText(copy.name),
                                   copy.calls,
                                   copy.bytes,
                                   timeline.Duration(copy.waited),
                                   timeline.Duration(copy.worked),
                                   copy.failed};
    if (!operation.name.empty()) operations.push_back(std::move(operation));
  }
  return operations;
}

uint64_t KeyOf(const pool::Pool& pool, int rank, const Call& call) {
  return pool.recorder(rank)->calls[call.number % kRecordedCalls].group;
}

std::optional<RecordedCall> FindCall(const pool::Recorder& recorder,
                                     const pool::Doorbells& doorbells,
                                     uint64_t identity, uint64_t group) {
  const auto calls = Select(
      recorder, doorbells, kRecordedCalls, [&](const pool::CallRecord& record) {
        return record.identity == identity && record.group == group;
      });
  return calls.empty() ? std::nullopt : std::optional(calls.front());
}

std::optional<RecordedCall> Unfinished(const pool::Recorder& recorder,
                                       const pool::Doorbells& doorbells,
                                       uint64_t identity, uint64_t group) {
  const auto calls = Select(
      recorder, doorbells, kRecordedCalls,
      [](const pool::CallRecord& record) { return record.finished == 0; });
  if (calls.empty()) return std::nullopt;
  const auto wanted = std::ranges::find_if(calls, [&](const auto& call) {
    return call.identity == identity && call.group == group;
  });
  return wanted != calls.end() ? *wanted : calls.front();
}

std::string DescribeLastCall(const pool::Recorder& recorder,
                             const pool::Doorbells& doorbells) {
  std::ostringstream text;
  // No call has identity 0 and group 0, so this returns the oldest unfinished
  // call.
  if (const auto call = Unfinished(recorder, doorbells, 0, 0)) {
    text << "it was in its call number " << call->number << ", " << call->what
         << (call->started != 0 ? ", which all ranks had started"
                                : ", which it had just started");
    return text.str();
  }
  const std::vector<RecordedCall> calls = ReadCalls(recorder, doorbells, 1);
  if (calls.empty()) return "it had not called any collective";
  text << "it had finished its call " << calls[0].number << ", "
       << calls[0].what << ", and started no other";
  return text.str();
}

std::string LastOf(const pool::Pool& pool, int rank) {
  const pool::Recorder& recorder = *pool.recorder(rank);
  const auto calls = ReadCalls(recorder, pool.doorbells(), 1);
  if (calls.empty())
    return pool.doorbells().Read(&recorder.submitted_calls.word) == 0
               ? "started no collective"
               : "";
  const char* did = calls[0].finished != 0  ? "finished "
                    : calls[0].started != 0 ? "was executing "
                                            : "started ";
  return did + calls[0].what + ", its collective number " +
         std::to_string(calls[0].number);
}

}  // namespace jax_cxl::comm
