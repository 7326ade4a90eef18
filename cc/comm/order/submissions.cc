#include "cc/comm/order/submissions.h"

#include <algorithm>
#include <cstring>

#include "cc/base/text.h"

namespace jax_cxl::comm {

using pool::kCallRing;
using pool::kLinePayloadBytes;
using pool::Submission;

Submissions::Submissions(const std::vector<MemberBlock>& blocks,
                         const Group& group, uint64_t payload_bytes)
    : blocks_(blocks),
      group_(group),
      payload_bytes_(payload_bytes),
      read_(blocks_.size()) {}

void Submissions::Move() {
  for (int member = 0; member < size(); ++member)
    blocks_[group_.self].doorbells.Ring(&ReadBy(group_.self)[member].word,
                                        read_[member]);
  names_.clear();
  last_name_ = 0;
}

uint64_t Submissions::most() const {
  return std::max(written_, *std::ranges::max_element(read_));
}

Result<bool> Submissions::CanWrite() {
  if (written_ < free_until_) return true;
  uint64_t read = written_;
  for (int member = 0; member < size(); ++member) {
    if (member == group_.self) continue;
    const uint64_t by_member = ReadOfMine(member);
    if (by_member > written_) {
      // If the member has moved, this is a word of another group, which is
      // larger than any count in this group.
      if (blocks_[member].Moved()) return false;
      return Corrupt(member, "it has read calls that nobody wrote");
    }
    read = std::min(read, by_member);
  }
  free_until_ = read + kCallRing;
  return written_ < free_until_;
}

std::vector<int> Submissions::RingHolders() const {
  std::vector<int> holders;
  for (int member = 0; member < size(); ++member)
    if (member != group_.self && ReadOfMine(member) + kCallRing <= written_)
      holders.push_back(member);
  return holders;
}

uint32_t Submissions::Write(uint64_t identity, const Call& call,
                            const pool::CallDescriptor& descriptor,
                            uint32_t payload_bytes) {
  const uint32_t name = NameOf(call);
  const pool::Doorbells& doorbells = blocks_[group_.self].doorbells;
  Submission* entry = At(group_.self, written_);
  entry->identity = identity;
  entry->descriptor = descriptor;
  entry->name = name;
  entry->payload_bytes = payload_bytes;
  // First publish the bytes of the payload that are not in the doorbell's cache
  // line. RingLine publishes the rest together with the doorbell.
  if (payload_bytes > kLinePayloadBytes)
    doorbells.coherence().PublishPayload(entry->payload() + kLinePayloadBytes,
                                         payload_bytes - kLinePayloadBytes);
  doorbells.RingLine(&entry->ready, ++written_);
  return name;
}

Result<bool> Submissions::Peek(int member, Entry* entry) {
  const Submission* slot = At(member, read_[member]);
  const pool::Doorbells& doorbells = blocks_[member].doorbells;
  const uint64_t ready = doorbells.Read(&slot->ready);
  if (ready < read_[member] + 1) return false;
  // Within this group, the owner reuses an entry only after this member has
  // read it. So a larger number is a word of the owner's next group, or an
  // error.
  if (ready > read_[member] + 1) {
    if (blocks_[member].Moved()) return false;
    return Corrupt(member, "a submission out of turn");
  }
  const Submission copy = doorbells.coherence().AcquireCopy(*slot);
  if (copy.payload_bytes > payload_bytes_)
    return Corrupt(member, "a submission larger than its place");
  doorbells.coherence().AcquirePayload(slot->payload(), copy.payload_bytes);
  *entry = {copy.identity, copy.descriptor, copy.name, copy.payload_bytes,
            slot->payload()};
  return true;
}

void Submissions::Pop(int member) {
  if (++read_[member] % kReadsPerWord != 0) return;
  blocks_[group_.self].doorbells.Ring(&ReadBy(group_.self)[member].word,
                                      read_[member]);
}

Status Submissions::Corrupt(int member, const char* what) const {
  return Error(Code::kDataLoss, "the control block of rank ",
               group_.members[member], " is corrupt (", what,
               "): restart the job, and check what else writes to this pool");
}

uint32_t Submissions::NameOf(const Call& call) {
  // Programs are loops, so the name is usually the last name that was found, or
  // the name after it.
  for (size_t i = 0; i < names_.size(); ++i) {
    const size_t index = (last_name_ + i) % names_.size();
    const Name& known = names_[index];
    if (known.name != call.name || known.site != call.site) continue;
    last_name_ = index;
    return static_cast<uint32_t>(index + 1);
  }
  if (names_.size() == pool::kCallNames) return 0;
  const MemberBlock& own = blocks_[group_.self];
  pool::CallName& entry = own.control->names[names_.size()];
  std::memset(entry.name, 0, sizeof(entry.name));
  std::memset(entry.site, 0, sizeof(entry.site));
  call.name.copy(entry.name, sizeof(entry.name) - 1);
  call.site.copy(entry.site, sizeof(entry.site) - 1);
  own.doorbells.coherence().PublishPayload(&entry, sizeof(entry));
  own.doorbells.Ring(&entry.ready, 1);
  last_name_ = names_.size();
  names_.push_back({call.name, call.site});
  return static_cast<uint32_t>(names_.size());
}

std::string Submissions::Describe(int member,
                                  const pool::CallDescriptor& descriptor,
                                  uint32_t name) const {
  const MemberBlock& block = blocks_[member];
  const pool::CallName* names = block.control->names;
  if (name == 0 || name > pool::kCallNames ||
      block.doorbells.Read(&names[name - 1].ready) == 0)
    return DescribeText(descriptor, "a call");
  const pool::CallName copy =
      block.doorbells.coherence().AcquireCopy(names[name - 1]);
  return DescribeText(descriptor, PrintableText(copy.name),
                      PrintableText(copy.site));
}

}  // namespace jax_cxl::comm
