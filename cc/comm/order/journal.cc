#include "cc/comm/order/journal.h"

#include <cstring>
#include <utility>

#include "cc/base/text.h"
#include "cc/comm/record/recorded_calls.h"

namespace jax_cxl::comm {

using cuda::JournalEntry;
using cuda::kJournal;

Journal::Journal(pool::Pool* pool, const Group& group,
                 std::vector<cuda::DeviceControl*> controls)
    : pool_(pool),
      group_(group),
      doorbells_(pool->coherence(), pool->epoch()),
      controls_(std::move(controls)) {}

void Journal::Write(const Call& call, const pool::CallDescriptor& descriptor) {
  JournalEntry& entry = controls_[group_.self]->journal[written_ % kJournal];
  entry.descriptor = descriptor;
  entry.site = pool_->recorder(group_.members[group_.self])
                   ->calls[call.number % pool::kRecordedCalls]
                   .site;
  std::memset(entry.name, 0, sizeof(entry.name));
  call.name.copy(entry.name, sizeof(entry.name) - 1);
  doorbells_.coherence().PublishPayload(&entry, sizeof(entry));
  doorbells_.Ring(&entry.ready, ++written_);
}

std::string Journal::Describe(int member, const JournalEntry& entry) const {
  return DescribeText(entry.descriptor, PrintableText(entry.name),
                      ReadSite(*pool_->recorder(group_.members[member]),
                               entry.site, doorbells_));
}

Status Journal::Compare(uint64_t written) {
  // A journal keeps only the latest kJournal calls. Skip the calls whose
  // entries may be replaced while this rank reads them.
  if (compared_ + kJournal / 2 < written) compared_ = written - kJournal / 2;
  const int self = group_.self, size = static_cast<int>(controls_.size());
  for (; compared_ < written; compared_by_all_ = ++compared_) {
    const uint64_t at = compared_ % kJournal, number = compared_ + 1;
    const JournalEntry mine = controls_[self]->journal[at];
    for (int member = 0; member < size; ++member) {
      if (member == self) continue;
      const JournalEntry& entry = controls_[member]->journal[at];
      if (doorbells_.Read(&entry.ready) < number) return OkStatus();
      const JournalEntry theirs = doorbells_.coherence().AcquireCopy(entry);
      // The entry has been replaced: the member is far ahead, and has passed
      // this call. So there is nothing left to compare.
      if (doorbells_.Read(&entry.ready) != number) continue;
      if (theirs.descriptor == mine.descriptor) continue;
      return Disagreement(group_, {self, Describe(self, mine)},
                          {member, Describe(member, theirs)});
    }
  }
  return OkStatus();
}

std::vector<int> Journal::Missing(uint64_t place) const {
  std::vector<int> missing;
  for (int member = 0; member < static_cast<int>(controls_.size()); ++member) {
    const JournalEntry& entry = controls_[member]->journal[place % kJournal];
    if (member != group_.self && doorbells_.Read(&entry.ready) <= place)
      missing.push_back(member);
  }
  return missing;
}

}  // namespace jax_cxl::comm
