#include "cc/comm/exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cc/base/idle.h"
#include "cc/base/text.h"
#include "cc/base/ticks.h"
#include "cc/comm/call/backoff.h"

namespace jax_cxl::comm {
namespace {

// Distinguishes the memory of an exchange from that of a group of the same
// ranks.
constexpr uint64_t kExchangeKey = 0x65786368616e6765;
// Each poll reads a cache line of each member. The checks read more, and the
// clock.
constexpr int kPollsPerExchangeCheck = 64;
// The stall detector learns of waits that take longer.
constexpr double kNotedWaitS = 0.05;
// Limits what other members can cost this rank: how many exchanges they are
// ahead of it.
constexpr size_t kMaxMeetings = size_t{1} << 12;

// An exchange has no use for slots, but each channel has some.
Options SmallSlots(Options options) {
  options.slot_bytes = uint64_t{4} << 10;
  options.num_slots = 2;
  return options;
}

uint64_t IdentityOf(std::string_view topic, uint64_t count) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x100000001b3;
  };
  for (const char byte : topic) add(static_cast<unsigned char>(byte));
  for (int bit = 0; bit < 64; bit += 8) add(count >> bit & 0xff);
  return hash;
}

}  // namespace

Exchange::Exchange(pool::Pool* pool, const Peers* peers, Endpoint* endpoint,
                   const Group& group, const Options& options)
    : pool_(pool),
      peers_(peers),
      endpoint_(endpoint),
      times_(options),
      connection_(pool, peers, SmallSlots(options), group, kExchangeKey),
      last_(group.members.size()) {}

Result<std::unique_ptr<Exchange>> Exchange::Open(
    pool::Pool* pool, const Peers* peers, Endpoint* endpoint,
    const std::vector<int32_t>& members, const Options& options) {
  CXL_ASSIGN_OR_RETURN(const Group group, endpoint->GroupOf(members));
  std::unique_ptr<Exchange> exchange(
      new Exchange(pool, peers, endpoint, group, options));
  if (exchange->size() == 1) return exchange;
  CXL_ASSIGN_OR_RETURN(const pool::ChannelPlace place,
                       exchange->connection_.Allocate(endpoint->arena()));
  exchange->connection_.Take(place);
  CXL_RETURN_IF_ERROR(exchange->connection_.Publish());
  return exchange;
}

void Exchange::Abort(const Status& status) {
  std::lock_guard lock(mutex_);
  if (aborted_.ok()) aborted_ = status;
}

Result<std::vector<std::string>> Exchange::AllGather(
    const Message& message, std::optional<double> timeout_s,
    const std::function<bool()>& interrupted) {
  std::unique_lock lock(mutex_);
  CXL_RETURN_IF_ERROR(aborted_);
  if (size() == 1) return std::vector<std::string>{std::string(message.bytes)};
  const int self = connection_.group().self;
  const bool after_error = !peers_->GaveUp(RankOf(self)).ok();
  auto& count = counts_.try_emplace(std::string(message.topic)).first->second;
  const uint64_t identity = IdentityOf(message.topic, count++);
  CXL_ASSIGN_OR_RETURN(Meeting* const meeting, Find(identity, self));
  std::string text(message.what);
  (text += '\0') += message.bytes;
  meeting->parts[self].text = std::move(text);
  unsent_.push_back({identity});
  meeting->awaited = true;
  // A thread that waits for other processes is none that computes.
  std::optional<OwnThread> own;
  std::shared_ptr<std::atomic<bool>> noted;
  const Clock::time_point start = peers_->AwakeTime();
  bool warned = false;
  Backoff backoff;
  const auto wait = [&]() -> Status {
    for (int polls = 0;;) {
      CXL_RETURN_IF_ERROR(aborted_);
      CXL_ASSIGN_OR_RETURN(const bool moved, Progress());
      if (meeting->num_whole == size()) return pool_->CheckIntact();
      if (moved) {
        backoff.Reset();
        continue;
      }
      if (timeout_s == 0 || ++polls % kPollsPerExchangeCheck == 0 ||
          !backoff.spinning()) {
        const double waited = Seconds(peers_->AwakeTime() - start);
        Status status = Check(message, *meeting, after_error);
        if (status.ok())
          status = CheckTime(message, *meeting, waited,
                             timeout_s.value_or(times_.timeout_s), &warned);
        if (!status.ok()) {
          // Just before it ended, a member may have given its bytes.
          CXL_RETURN_IF_ERROR(Progress().status());
          return meeting->num_whole == size() ? OkStatus() : status;
        }
        if (waited > kNotedWaitS && noted == nullptr && !after_error) {
          own.emplace();
          noted = NoteWait(message, *meeting);
        }
      }
      lock.unlock();
      backoff.Pause();
      const bool stop = !backoff.spinning() && interrupted();
      lock.lock();
      if (stop) return Error(Code::kInternal, message.what, " was interrupted");
    }
  };
  Status status = wait();
  if (noted != nullptr) *noted = true;
  meeting->awaited = false;
  if (meeting->num_whole < size()) return status;
  Result<std::vector<std::string>> all = Unpack(meeting->parts);
  meetings_.erase(identity);
  CXL_RETURN_IF_ERROR(status);
  return all;
}

Result<std::vector<std::string>> Exchange::Unpack(
    const std::vector<Part>& parts) const {
  const int self = connection_.group().self;
  const std::string_view mine = parts[self].text.c_str();
  std::vector<std::string> all;
  for (int member = 0; member < size(); ++member) {
    const std::string& text = parts[member].text;
    if (mine != text.c_str())
      return Error(Code::kMismatch, "the processes are at different points: ",
                   peers_->Name(RankOf(self)), " at ", mine, ", and ",
                   peers_->Name(RankOf(member)), " at ", last_[member],
                   ". All processes have to make the same calls in the same "
                   "order")
          .With("rank_0", RankOf(self))
          .With("call_0", mine)
          .With("rank_1", RankOf(member))
          .With("call_1", last_[member]);
    all.push_back(text.substr(mine.size() + 1));
  }
  return all;
}

Result<bool> Exchange::Progress() {
  if (!submissions_) {
    CXL_ASSIGN_OR_RETURN(const bool connected, connection_.Connect());
    if (!connected) return false;
    submissions_.emplace(connection_.blocks(), connection_.group(),
                         connection_.payload_bytes());
  }
  CXL_ASSIGN_OR_RETURN(bool moved, Send());
  for (int member = 0; member < size(); ++member) {
    if (member == connection_.group().self) continue;
    CXL_ASSIGN_OR_RETURN(const bool read, Read(member));
    moved |= read;
  }
  return moved;
}

Result<bool> Exchange::Send() {
  bool moved = false;
  while (!unsent_.empty()) {
    Unsent& next = unsent_.front();
    CXL_ASSIGN_OR_RETURN(const bool can, submissions_->CanWrite());
    if (!can) break;
    moved = true;
    const auto meeting = meetings_.find(next.identity);
    const int self = connection_.group().self;
    const std::string& text = meeting->second.parts[self].text;
    const uint64_t bytes = std::min<uint64_t>(text.size() - next.sent,
                                              connection_.payload_bytes());
    std::memcpy(submissions_->payload(), text.data() + next.sent, bytes);
    submissions_->Write(next.identity, Call(),
                        {.count = text.size(), .details = next.sent},
                        static_cast<uint32_t>(bytes));
    next.sent += bytes;
    if (next.sent < text.size()) continue;
    unsent_.pop_front();
    Note(meeting, self);
  }
  return moved;
}

Result<bool> Exchange::Read(int member) {
  bool moved = false;
  for (;; moved = true) {
    Submissions::Entry entry;
    CXL_ASSIGN_OR_RETURN(const bool here, submissions_->Peek(member, &entry));
    if (!here) return moved;
    CXL_ASSIGN_OR_RETURN(Meeting* const meeting, Find(entry.identity, member));
    Part& part = meeting->parts[member];
    if (part.whole || entry.payload_bytes == 0 ||
        entry.descriptor.details != part.text.size() ||
        entry.descriptor.count - part.text.size() < entry.payload_bytes)
      return submissions_->Corrupt(member, "an exchange with other bytes");
    part.text.append(reinterpret_cast<const char*>(entry.payload),
                     entry.payload_bytes);
    const bool whole = part.text.size() == entry.descriptor.count;
    submissions_->Pop(member);
    if (whole) Note(meetings_.find(entry.identity), member);
  }
}

Result<Exchange::Meeting*> Exchange::Find(uint64_t identity, int member) {
  const auto [found, added] = meetings_.try_emplace(identity);
  if (added) found->second.parts.resize(size());
  if (meetings_.size() > kMaxMeetings)
    return Error(Code::kResourceExhausted, peers_->Name(RankOf(member)), " is ",
                 kMaxMeetings,
                 " exchanges ahead of others; please report this to jax_cxl");
  return &found->second;
}

void Exchange::Note(std::map<uint64_t, Meeting>::iterator found, int member) {
  Meeting& meeting = found->second;
  Part& part = meeting.parts[member];
  last_[member] = PrintableText(std::string_view(part.text.c_str()));
  part.whole = true;
  // The thread of this process that waited may have given up.
  if (++meeting.num_whole == size() && !meeting.awaited) meetings_.erase(found);
}

Status Exchange::Check(const Message& message, const Meeting& meeting,
                       bool after_error) const {
  CXL_RETURN_IF_ERROR(pool_->CheckIntact());
  for (int member = 0; member < size() && !after_error; ++member)
    CXL_RETURN_IF_ERROR(peers_->GaveUp(RankOf(member)));
  for (const int member : Missing(meeting)) {
    const int rank = RankOf(member);
    Status lost = peers_->Left(rank);
    // A rank gives up before it leaves, but possibly after the check above.
    if (!lost.ok() && !after_error) CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
    if (lost.ok()) lost = peers_->Alive(rank);
    if (lost.ok()) continue;
    return Error(Code::kPeerLost, message.what, ": ", lost.message())
        .With(peers_->Identity(rank))
        .With("call", message.what);
  }
  return OkStatus();
}

Status Exchange::CheckTime(const Message& message, const Meeting& meeting,
                           double waited_s, double timeout_s,
                           bool* warned) const {
  const std::vector<int> missing = Missing(meeting);
  std::string names;
  for (const int member : missing)
    names += (names.empty() ? "" : "; ") + Name(member);
  if (waited_s >= timeout_s)
    return Error(Code::kDeadlineExceeded, message.what, ": ", names,
                 " did not arrive within ", timeout_s,
                 " s. python -m jax_cxl status shows what ranks do. Pass a "
                 "longer timeout, or raise JAX_CXL_TIMEOUT, to wait longer")
        .With(missing.empty() ? Details()
                              : peers_->Identity(RankOf(missing[0])))
        .With("call", message.what)
        .With("waited_s", waited_s);
  if (waited_s > times_.warn_after_s && !std::exchange(*warned, true))
    std::fprintf(stderr,
                 "jax_cxl: warning: %.*s has waited %.0f s for %s. python -m "
                 "jax_cxl status shows which ranks wait for which\n",
                 static_cast<int>(message.what.size()), message.what.data(),
                 waited_s, names.c_str());
  return OkStatus();
}

std::vector<int> Exchange::Missing(const Meeting& meeting) const {
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member)
    if (!meeting.parts[member].whole && member != connection_.group().self)
      missing.push_back(member);
  // This rank's own bytes may still wait for members that do not read.
  if (missing.empty() && submissions_) return submissions_->RingHolders();
  return missing;
}

std::string Exchange::Name(int member) const {
  std::string name = peers_->Name(RankOf(member));
  if (!last_[member].empty() && name.ends_with(')'))
    name.replace(name.size() - 1, 1, "; last at " + last_[member] + ")");
  return name;
}

std::shared_ptr<std::atomic<bool>> Exchange::NoteWait(
    const Message& message, const Meeting& meeting) const {
  auto call = std::make_shared<Call>();
  call->request.op = plan::Op::kAllGather;
  call->request.num_ranks = size();
  call->request.count = message.bytes.size();
  call->name = message.what;
  call->submitted = Ticks();
  auto over = std::make_shared<std::atomic<bool>>(false);
  std::vector<int32_t> ranks;
  for (const int member : Missing(meeting)) ranks.push_back(RankOf(member));
  endpoint_->AddLocalWait({std::move(ranks), std::move(call), over});
  return over;
}

}  // namespace jax_cxl::comm
