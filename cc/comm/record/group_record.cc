#include "cc/comm/record/group_record.h"

#include <algorithm>

#include "cc/base/ticks.h"

namespace jax_cxl::comm {

using pool::kRecordedCalls;

void GroupRecord::Record(uint64_t place, Call* call) {
  call->identity = place + 1;
  call->submitted = Ticks();
  recorder_->Record(call, group_);
  numbers_[place % kRecordedCalls] = call->number;
  submitted_ = place + 1;
}

uint64_t GroupRecord::NumberOf(uint64_t place) const {
  const bool known = place < submitted_ && place + kRecordedCalls >= submitted_;
  return known ? numbers_[place % kRecordedCalls] : 0;
}

void GroupRecord::Wait(uint64_t place, int rank) {
  recorder_->Wait(NumberOf(place), rank);
}

void GroupRecord::Fail(uint64_t place, const Status& status) {
  recorder_->Finish(NumberOf(place), status, Ticks());
}

void GroupRecord::Advance(uint64_t started, uint64_t finished) {
  const uint64_t now = Ticks();
  for (; started_ < std::max(started, finished); ++started_)
    recorder_->Start(NumberOf(started_), now);
  for (; finished_ < finished; ++finished_)
    recorder_->Finish(NumberOf(finished_), OkStatus(), now);
}

void GroupRecord::SkipTo(uint64_t place) {
  if (place <= submitted_) return;
  Advance(submitted_, submitted_);
  submitted_ = started_ = finished_ = place;
  numbers_ = {};
}

}  // namespace jax_cxl::comm
