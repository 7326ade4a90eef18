#include "cc/comm/negotiation.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace jax_cxl::comm {
namespace {

using pool::kCallRing;

// Copies as much of `text` as fits, always zero-terminated.
template <size_t size>
void CopyText(const std::string& text, char (&to)[size]) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, size - length);
}

template <size_t size>
std::string ReadText(const char (&from)[size]) {
  return std::string(from, strnlen(from, size));
}

}  // namespace

Negotiation::Negotiation(const pool::Doorbells& doorbells,
                         std::vector<pool::ControlBlock*> blocks,
                         const Group& group)
    : doorbells_(doorbells),
      blocks_(std::move(blocks)),
      group_(group),
      collected_(blocks_.size()) {}

void Negotiation::Submit(std::unique_ptr<Call> call) {
  const uint64_t identity = call->identity;
  const Call* submitted = call.get();
  age_.push_back(identity);
  mine_[identity] = std::move(call);
  unsent_.push_back(submitted);
}

Result<std::unique_ptr<Call>> Negotiation::Next(uint64_t released_calls) {
  if (leads()) return Announce(released_calls);
  FlushSubmissions();
  return Follow();
}

void Negotiation::FlushSubmissions() {
  pool::ControlBlock* mine = blocks_[group_.self];
  uint64_t* read = &SubmissionsRead(blocks_[0])[group_.self].word;
  while (!unsent_.empty() &&
         (submissions_ < kCallRing ||
          submissions_ - doorbells_.Read(read) < kCallRing)) {
    const Call* call = unsent_.front();
    unsent_.pop_front();
    pool::Submission& entry = mine->submissions[submissions_ % kCallRing];
    entry.identity = call->identity;
    entry.descriptor = Describe(*call);
    CopyText(call->name, entry.name);
    doorbells_.coherence().PublishPayload(&entry, sizeof(entry));
    doorbells_.Ring(&entry.ready, ++submissions_);
  }
}

Status Negotiation::CollectSubmissions() {
  for (; !unsent_.empty(); unsent_.pop_front()) {
    const Call* call = unsent_.front();
    CXL_RETURN_IF_ERROR(Enroll(0, call->identity, Describe(*call), call->name));
  }
  for (int member = 1; member < static_cast<int>(blocks_.size()); ++member) {
    uint64_t& read = collected_[member];
    const uint64_t before = read;
    for (;;) {
      const pool::Submission& entry =
          blocks_[member]->submissions[read % kCallRing];
      if (doorbells_.Read(&entry.ready) < read + 1) break;
      doorbells_.coherence().AcquirePayload(&entry, sizeof(entry));
      CXL_RETURN_IF_ERROR(Enroll(member, entry.identity, entry.descriptor,
                                 ReadText(entry.name)));
      ++read;
    }
    if (read != before)
      doorbells_.Ring(&SubmissionsRead(blocks_[0])[member].word, read);
  }
  return OkStatus();
}

Status Negotiation::Enroll(int member, uint64_t identity,
                           const pool::CallDescriptor& descriptor,
                           std::string name) {
  Roll& roll = rolls_[identity];
  roll.descriptors.resize(blocks_.size());
  roll.names.resize(blocks_.size());
  if (roll.descriptors[member])
    return Error(Code::kInternal, "rank ", group_.members[member],
                 " submitted the same call twice (",
                 DescribeText(descriptor, name), ")");
  roll.descriptors[member] = descriptor;
  roll.names[member] = std::move(name);
  if (++roll.present < static_cast<int>(blocks_.size())) return OkStatus();
  Status same = Compare(identity, roll);
  rolls_.erase(identity);
  complete_.push_back(identity);
  return same;
}

Status Negotiation::Compare(uint64_t identity, const Roll& roll) const {
  for (size_t member = 1; member < blocks_.size(); ++member) {
    if (roll.descriptors[member] == roll.descriptors[0]) continue;
    return Error(Code::kMismatch,
                 "the ranks disagree about a collective: rank ",
                 group_.members[0], " calls ",
                 DescribeText(*roll.descriptors[0], roll.names[0]), "; rank ",
                 group_.members[member], " calls ",
                 DescribeText(*roll.descriptors[member], roll.names[member]),
                 " (call ", std::hex, identity, ")");
  }
  return OkStatus();
}

Result<std::unique_ptr<Call>> Negotiation::Announce(uint64_t released_calls) {
  Status collected = CollectSubmissions();
  // The ring is bounded: an announcement may be overwritten once every
  // follower is past the call that it announced.
  if (announcements_ >= kCallRing + released_calls) return {nullptr};
  if (collected.ok() && complete_.empty()) return {nullptr};

  pool::Announcement& entry =
      blocks_[0]->announcements[announcements_ % kCallRing];
  entry.identity = collected.ok() ? complete_.front() : 0;
  entry.code = static_cast<uint32_t>(collected.code());
  CopyText(collected.message(), entry.message);
  doorbells_.coherence().PublishPayload(&entry, sizeof(entry));
  doorbells_.Ring(&entry.ready, ++announcements_);
  if (!collected.ok()) return collected;
  complete_.pop_front();
  return Take(entry.identity);
}

Result<std::unique_ptr<Call>> Negotiation::Follow() {
  const pool::Announcement& entry =
      blocks_[0]->announcements[announcements_ % kCallRing];
  if (doorbells_.Read(&entry.ready) < announcements_ + 1) return {nullptr};
  doorbells_.coherence().AcquirePayload(&entry, sizeof(entry));
  ++announcements_;
  if (entry.code != 0)
    return Status(static_cast<Code>(entry.code), ReadText(entry.message));
  std::unique_ptr<Call> call = Take(entry.identity);
  if (call == nullptr)
    return Error(Code::kDataLoss, "rank ", group_.members[0],
                 " announced a call that this rank did not submit: the pool's "
                 "control block is corrupt");
  return call;
}

std::unique_ptr<Call> Negotiation::Take(uint64_t identity) {
  auto found = mine_.find(identity);
  if (found == mine_.end()) return nullptr;
  std::unique_ptr<Call> call = std::move(found->second);
  mine_.erase(found);
  while (!age_.empty() && !mine_.contains(age_.front())) age_.pop_front();
  return call;
}

const Call* Negotiation::oldest() const {
  return age_.empty() ? nullptr : mine_.at(age_.front()).get();
}

std::vector<int> Negotiation::WaitingFor() const {
  if (age_.empty()) return {};
  if (!leads()) return {0};
  std::vector<int> missing;
  if (auto roll = rolls_.find(age_.front()); roll != rolls_.end()) {
    for (size_t member = 0; member < blocks_.size(); ++member) {
      if (!roll->second.descriptors[member])
        missing.push_back(static_cast<int>(member));
    }
  }
  return missing;
}

std::vector<std::unique_ptr<Call>> Negotiation::TakePending() {
  std::vector<std::unique_ptr<Call>> calls;
  for (auto& [identity, call] : mine_) calls.push_back(std::move(call));
  mine_.clear();
  age_.clear();
  unsent_.clear();
  return calls;
}

}  // namespace jax_cxl::comm
