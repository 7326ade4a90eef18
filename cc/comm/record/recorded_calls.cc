#include "cc/comm/record/recorded_calls.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "cc/base/text.h"
#include "cc/comm/call/call.h"

namespace jax_cxl::comm {
namespace {

using pool::kRecordedCalls;

pool::RecorderClock ReadClock(const pool::Recorder& recorder,
                              const pool::Coherence& coherence) {
  return coherence.AcquireWords(recorder.clock);
}

// Converts readings of a rank's clocks to seconds since 1970.
class Timeline {
 public:
  explicit Timeline(const pool::RecorderClock& clock) : clock_(clock) {
    const double ticks = Difference(clock.last.ticks, clock.first.ticks);
    const double ns = Difference(clock.last.steady_ns, clock.first.steady_ns);
    // With one reading only, the rate is unknown, but little time has passed.
    if (ticks > 0 && ns > 0) ns_per_tick_ = ns / ticks;
  }

  // Returns the duration of `ticks` in seconds.
  double Duration(uint64_t ticks) const {
    return 1e-9 * ns_per_tick_ * static_cast<double>(ticks);
  }

  double FromTicks(uint64_t ticks) const {
    return ticks == 0
               ? 0
               : Seconds(ns_per_tick_ * Difference(ticks, clock_.last.ticks));
  }

 private:
  static double Difference(uint64_t a, uint64_t b) {
    return static_cast<double>(static_cast<int64_t>(a - b));
  }
  double Seconds(double ns_after_last) const {
    return 1e-9 *
           (static_cast<double>(clock_.last.realtime_ns) + ns_after_last);
  }

  pool::RecorderClock clock_;
  double ns_per_tick_ = 0;
};

// Copies the record of a call. Returns false if the record is gone or is
// changing.
bool CopyRecord(const pool::CallRecord& from, uint64_t number,
                const pool::Doorbells& doorbells, pool::CallRecord* to) {
  if (doorbells.Read(&from.number) != number) return false;
  *to = doorbells.coherence().AcquireWords(from);
  return doorbells.Read(&from.number) == number &&
         doorbells.Value(to->number) == number;
}

RecordedCall Interpret(const pool::CallRecord& record, uint64_t number,
                       const Timeline& timeline) {
  RecordedCall call;
  call.number = number;
  call.identity = record.identity;
  call.group = record.group;
  call.name = PrintableText(record.name);
  call.what = DescribeText(record.descriptor, call.name);
  call.submitted = timeline.FromTicks(record.submitted);
  call.started = timeline.FromTicks(record.started);
  call.finished = timeline.FromTicks(record.finished);
  call.code = static_cast<Code>(record.code);
  call.waiting_for = record.waiting_for;
  return call;
}

// Passes the newest `most` records to `visit`, oldest first, until it returns
// true.
template <typename Visit>
void ForEachRecord(const pool::Recorder& recorder,
                   const pool::Doorbells& doorbells, uint64_t most,
                   Visit visit) {
  const uint64_t newest = doorbells.Read(&recorder.submitted_calls.word);
  const uint64_t count = std::min({newest, most, kRecordedCalls});
  pool::CallRecord record;
  for (uint64_t number = newest - count + 1; number <= newest; ++number)
    if (CopyRecord(recorder.calls[number % kRecordedCalls], number, doorbells,
                   &record) &&
        visit(record, number))
      return;
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
  const Timeline timeline(ReadClock(recorder, doorbells.coherence()));
  std::vector<RecordedCall> calls;
  ForEachRecord(recorder, doorbells, most,
                [&](const pool::CallRecord& record, uint64_t number) {
                  calls.push_back(Interpret(record, number, timeline));
                  calls.back().site =
                      ReadSite(recorder, record.site, doorbells);
                  return false;
                });
  return calls;
}

std::vector<RecordedOperation> ReadOperations(
    const pool::Recorder& recorder, const pool::Coherence& coherence) {
  const Timeline timeline(ReadClock(recorder, coherence));
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

std::optional<RecordedCall> FindCall(const pool::Recorder& recorder,
                                     const pool::Doorbells& doorbells,
                                     uint64_t identity, uint64_t group) {
  const Timeline timeline(ReadClock(recorder, doorbells.coherence()));
  std::optional<RecordedCall> call;
  ForEachRecord(recorder, doorbells, kRecordedCalls,
                [&](const pool::CallRecord& record, uint64_t number) {
                  if (record.identity != identity || record.group != group)
                    return false;
                  call = Interpret(record, number, timeline);
                  call->site = ReadSite(recorder, record.site, doorbells);
                  return true;
                });
  return call;
}

std::optional<RecordedCall> Unfinished(const pool::Recorder& recorder,
                                       const pool::Doorbells& doorbells,
                                       uint64_t identity, uint64_t group) {
  const Timeline timeline(ReadClock(recorder, doorbells.coherence()));
  std::optional<RecordedCall> call;
  ForEachRecord(recorder, doorbells, kRecordedCalls,
                [&](const pool::CallRecord& record, uint64_t number) {
                  if (record.finished != 0) return false;
                  const bool wanted =
                      record.identity == identity && record.group == group;
                  if (wanted || !call)
                    call = Interpret(record, number, timeline);
                  return wanted;
                });
  return call;
}

SignOfLife LastSignOfLife(const pool::Recorder& recorder,
                          const pool::Coherence& coherence) {
  const pool::ClockReading last = ReadClock(recorder, coherence).last;
  return {1e-9 * static_cast<double>(last.realtime_ns),
          1e-9 * static_cast<double>(last.steady_ns)};
}

std::string DescribeLastCall(const pool::Recorder& recorder,
                             const pool::Doorbells& doorbells) {
  std::ostringstream text;
  // No call has identity 0 and group 0, so this returns the oldest.
  if (const auto call = Unfinished(recorder, doorbells, 0, 0)) {
    text << "it was in its call " << call->number << ", " << call->what
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

}  // namespace jax_cxl::comm
