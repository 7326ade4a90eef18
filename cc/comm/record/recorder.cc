#include "cc/comm/record/recorder.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "cc/base/text.h"
#include "cc/base/ticks.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::comm {
namespace {

using pool::kRecordedCalls;

// How old, in calls, a record is that no longer changes, for all Beat knows.
constexpr uint64_t kSettled = 64;

// Other threads and processes read a record while it is written.
void Store(uint64_t* word, uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

template <typename Clock>
uint64_t Nanoseconds(typename Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             time.time_since_epoch())
      .count();
}

pool::ClockReading ReadClocks() {
  pool::ClockReading reading;
  reading.steady_ns = Nanoseconds<Clock>(Clock::now());
  reading.ticks = Ticks();
  reading.realtime_ns =
      Nanoseconds<std::chrono::system_clock>(std::chrono::system_clock::now());
  return reading;
}

}  // namespace

Recorder::Recorder(pool::Pool* pool, int rank)
    : coherence_(pool->coherence()),
      doorbells_(pool->coherence(), pool->epoch()),
      recorder_(pool->recorder(rank)) {}

void Recorder::OpenGroup(int index, const std::vector<int32_t>& members) {
  pool::GroupMembers& group = recorder_->groups[index];
  std::memset(&group, 0, sizeof(group));
  for (int32_t rank : members)
    group.bits[rank / 64] |= uint64_t{1} << rank % 64;
  coherence_.PublishPayload(&group, sizeof(group));
}

uint64_t Recorder::Submit(const Call& call, uint64_t identity, uint64_t group,
                          uint64_t ticks) {
  while (submitting_.test_and_set(std::memory_order_acquire)) sched_yield();
  const uint64_t number = calls() + 1;
  calls_.store(number, std::memory_order_relaxed);
  pool::CallRecord record = {};
  record.identity = identity;
  record.group = group;
  record.descriptor = Describe(call);
  record.submitted = ticks;
  record.waiting_for = -1;
  std::memcpy(record.name, call.name.data(),
              std::min(call.name.size(), sizeof(record.name) - 1));
  pool::CallRecord& shared = recorder_->calls[number % kRecordedCalls];
  Store(&shared.number, 0);
  std::atomic_thread_fence(std::memory_order_release);
  pool::StoreWords(&shared, record);
  Store(&shared.number, doorbells_.Word(number));
  Store(&recorder_->submitted_calls.word, doorbells_.Word(number));
  submitting_.clear(std::memory_order_release);
  // The next record is 4,096 calls old and in no cache any more.
  __builtin_prefetch(&recorder_->calls[(number + 1) % kRecordedCalls], 1);
  return number;
}

pool::CallRecord* Recorder::Find(uint64_t number) {
  if (number == 0 || number + kRecordedCalls <= calls()) return nullptr;
  return &recorder_->calls[number % kRecordedCalls];
}

void Recorder::Start(uint64_t number, uint64_t ticks) {
  pool::CallRecord* record = Find(number);
  if (record != nullptr) Store(&record->started, ticks);
}

void Recorder::Wait(uint64_t number, int rank) {
  pool::CallRecord* record = Find(number);
  if (record == nullptr || record->waiting_for == rank) return;
  std::atomic_ref(record->waiting_for).store(rank, std::memory_order_relaxed);
  coherence_.PublishPayload(record, sizeof(*record));
}

void Recorder::Finish(uint64_t number, const Status& status, uint64_t ticks) {
  pool::CallRecord* record = Find(number);
  if (record == nullptr) return;
  std::atomic_ref(record->code)
      .store(static_cast<uint32_t>(status.code()), std::memory_order_relaxed);
  Store(&record->finished, ticks);
  if (!status.ok()) coherence_.PublishPayload(record, sizeof(*record));
}

std::string Recorder::LastOf(const pool::Pool& pool, int rank) {
  const pool::Doorbells doorbells(pool.coherence(), pool.epoch());
  const pool::Recorder* recorder = pool.recorder(rank);
  const uint64_t number = doorbells.Read(&recorder->submitted_calls.word);
  if (number == 0) return "started no collective";
  const pool::CallRecord record =
      pool.coherence().AcquireWords(recorder->calls[number % kRecordedCalls]);
  if (doorbells.Value(record.number) != number) return "";
  const char* did = record.finished != 0  ? "finished "
                    : record.started != 0 ? "went on with "
                                          : "started ";
  return did + DescribeText(record.descriptor, PrintableText(record.name)) +
         ", its collective " + std::to_string(number);
}

void Recorder::Beat(pool::Pool* pool, int rank) {
  const pool::Coherence& coherence = pool->coherence();
  pool::Recorder* recorder = pool->recorder(rank);
  const uint64_t calls =
      pool::Doorbells(coherence, pool->epoch())
          .Value(std::atomic_ref(recorder->submitted_calls.word)
                     .load(std::memory_order_acquire));
  pool::RecorderClock clock = pool::LoadWords(recorder->clock);
  const uint64_t window =
      std::min(calls - std::min(calls, clock.published_calls) + kSettled,
               kRecordedCalls);
  for (uint64_t number = calls - std::min(calls, window) + 1; number <= calls;
       ++number)
    coherence.PublishPayload(&recorder->calls[number % kRecordedCalls],
                             sizeof(pool::CallRecord));
  coherence.PublishPayload(&recorder->submitted_calls, sizeof(pool::Doorbell));

  const pool::ClockReading now = ReadClocks();
  if (clock.first.ticks == 0) clock.first = now;
  clock.last = now;
  clock.published_calls = calls;
  pool::StoreWords(&recorder->clock, clock);
  coherence.PublishPayload(&recorder->clock, sizeof(clock));
}

}  // namespace jax_cxl::comm
