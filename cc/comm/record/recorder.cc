#include "cc/comm/record/recorder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

#include "cc/base/ticks.h"
#include "cc/plan/plan.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::comm {
namespace {

using pool::kRecordedCalls;

// Beat assumes that a record this many calls old no longer changes, and does
// not publish it again.
constexpr uint64_t kSettled = 64;

// Stores a word of a record atomically, because other threads and processes
// read the record at the same time.
void Store(uint64_t* word, uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

// Returns the ticks from `before` to `after`. Returns 0 if `after` is earlier,
// because the counters of two processors may differ slightly.
uint64_t Since(uint64_t before, uint64_t after) {
  return after > before ? after - before : 0;
}

pool::ClockReading ReadClocks() {
  const auto nanoseconds = [](auto time) -> uint64_t {
    return std::chrono::nanoseconds(time.time_since_epoch()).count();
  };
  return {.steady_ns = nanoseconds(Clock::now()),
          .ticks = Ticks(),
          .realtime_ns = nanoseconds(std::chrono::system_clock::now())};
}

}  // namespace

Recorder::Recorder(pool::Pool* pool, int rank)
    : coherence_(pool->coherence()),
      doorbells_(pool->doorbells()),
      recorder_(pool->recorder(rank)) {}

void Recorder::Record(Call* started, uint64_t group) {
  const Call& call = *started;
  const std::lock_guard lock(submitting_);
  const uint64_t number = calls() + 1;
  calls_.store(number, std::memory_order_relaxed);
  pool::CallRecord record = {};
  record.identity = call.identity;
  record.group = group;
  record.descriptor = Describe(call);
  record.submitted = call.submitted;
  record.waiting_for = -1;
  record.site = SiteOf(call.site);
  record.operation = OperationOf(call.name);
  pool::OperationRecord& counted = operations_[record.operation];
  ++counted.calls;
  counted.bytes += plan::InputBytes(call.request);
  pool::StoreWords(&recorder_->operations[record.operation], counted);
  std::memcpy(record.name, call.name.data(),
              std::min(call.name.size(), sizeof(record.name) - 1));
  pool::CallRecord& shared = recorder_->calls[number % kRecordedCalls];
  Store(&shared.number, 0);
  std::atomic_thread_fence(std::memory_order_release);
  pool::StoreWords(&shared, record);
  Store(&shared.number, doorbells_.Word(number));
  Store(&recorder_->submitted_calls.word, doorbells_.Word(number));
  // The next call replaces a record that is 4,096 calls old, so no cache has
  // that record. Prefetch it.
  __builtin_prefetch(&recorder_->calls[(number + 1) % kRecordedCalls], 1);
  started->number = number;
}

uint32_t Recorder::SiteOf(const std::string& text) {
  if (text.empty()) return 0;
  auto [found, is_new] = sites_.try_emplace(text, newest_site_ + 1);
  if (!is_new) return found->second;
  const uint32_t number = ++newest_site_;
  pool::SiteRecord& shared = recorder_->sites[number % pool::kRecordedSites];
  // The new record replaces the record of an older site. If the older site is
  // used again, it gets a new number.
  if (number > pool::kRecordedSites)
    std::erase_if(sites_, [number](const auto& site) {
      return site.second + pool::kRecordedSites == number;
    });
  pool::SiteRecord record = {};
  text.copy(record.text, sizeof(record.text) - 1);
  Store(&shared.number, 0);
  std::atomic_thread_fence(std::memory_order_release);
  pool::StoreWords(&shared, record);
  Store(&shared.number, doorbells_.Word(number));
  coherence_.PublishPayload(&shared, sizeof(shared));
  return number;
}

uint32_t Recorder::OperationOf(std::string_view name) {
  constexpr uint32_t kLast = pool::kRecordedOperations - 1;
  for (uint32_t i = 0; i < kLast; ++i) {
    pool::OperationRecord& counted = operations_[i];
    const std::string_view known = counted.name;
    if (known == name.substr(0, sizeof(counted.name) - 1)) return i;
    if (!known.empty()) continue;
    name.copy(counted.name, sizeof(counted.name) - 1);
    return i;
  }
  std::memcpy(operations_[kLast].name, "others", sizeof("others"));
  return kLast;
}

std::vector<pool::OperationRecord> Recorder::operations() {
  const std::lock_guard lock(submitting_);
  std::vector<pool::OperationRecord> counted;
  for (const pool::OperationRecord& operation : operations_)
    if (operation.name[0] != 0) counted.push_back(operation);
  return counted;
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
  // If no start was recorded, the call had its data as soon as the last rank
  // had started it. So the whole duration of the call counts as waiting.
  const uint64_t started = record->started != 0 ? record->started : ticks;
  {
    const std::lock_guard lock(submitting_);
    const uint32_t index = record->operation % pool::kRecordedOperations;
    pool::OperationRecord& counted = operations_[index];
    counted.waited += Since(record->submitted, started);
    counted.worked += Since(started, ticks);
    counted.failed += !status.ok();
    pool::StoreWords(&recorder_->operations[index], counted);
  }
  std::atomic_ref(record->code)
      .store(static_cast<uint32_t>(status.code()), std::memory_order_relaxed);
  Store(&record->finished, ticks);
  if (!status.ok()) coherence_.PublishPayload(record, sizeof(*record));
}

void Recorder::Beat(pool::Pool* pool, int rank) {
  const pool::Coherence& coherence = pool->coherence();
  pool::Recorder* recorder = pool->recorder(rank);
  const uint64_t calls =
      pool->doorbells().Value(std::atomic_ref(recorder->submitted_calls.word)
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
  coherence.PublishPayload(recorder->operations, sizeof(recorder->operations));

  const pool::ClockReading now = ReadClocks();
  if (clock.first.ticks == 0) clock.first = now;
  clock.last = now;
  clock.published_calls = calls;
  pool::StoreWords(&recorder->clock, clock);
  coherence.PublishPayload(&recorder->clock, sizeof(clock));
}

}  // namespace jax_cxl::comm
