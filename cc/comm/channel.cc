#include "cc/comm/channel.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <utility>

namespace jax_cxl::comm {
namespace {

// Enough to overlap publication, retrieval and a peer's lateness. Two slots a
// device, so that half a ring is filled while the other half is read.
constexpr int kMinSlots = 4;
constexpr uint64_t kMaxSlotBytes = uint64_t{1} << 20;
constexpr uint64_t kMinSlotBytes = uint64_t{4} << 10;
// A rank is a member of a few groups: the world, one per mesh axis, ...
constexpr uint64_t kGroupsPerArena = 4;
constexpr size_t kMaxCachedPlans = 256;
constexpr size_t kMaxCachedSteps = 1 << 16;

// Follows from the pool alone, so that all ranks choose the same.
plan::Geometry ChooseGeometry(const pool::Pool& pool, const Options& options) {
  plan::Geometry geometry;
  geometry.num_slots =
      options.num_slots > 0
          ? options.num_slots
          : std::clamp(2 * pool.num_extents(), kMinSlots, pool::kMaxSlots);
  geometry.num_devices = pool.num_extents();
  uint64_t arena = 0;
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    arena += pool.arena(extent, 0).bytes;
  geometry.slot_bytes =
      options.slot_bytes > 0
          ? options.slot_bytes
          : std::clamp(std::bit_floor(arena / (kGroupsPerArena + 1) /
                                      geometry.num_slots),
                       kMinSlotBytes, kMaxSlotBytes);
  return geometry;
}

std::string PlanKey(const Call& call) {
  const pool::CallDescriptor descriptor = Describe(call);
  std::string key(reinterpret_cast<const char*>(&descriptor),
                  sizeof(descriptor));
  // A hash may collide; the permutation itself does not.
  key.append(reinterpret_cast<const char*>(call.request.sources.data()),
             call.request.sources.size() * sizeof(int32_t));
  return key;
}

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Channel::Channel(pool::Pool* pool, Peers* peers, const Options& options,
                 Group group)
    : pool_(pool),
      peers_(peers),
      options_(options),
      group_(std::move(group)),
      doorbells_(pool->coherence(), pool->epoch()),
      geometry_(ChooseGeometry(*pool, options)),
      places_(group_.members.size()) {}

Status Channel::Open(Arena* arena) {
  const int size = static_cast<int>(group_.members.size());
  const int extents = pool_->num_extents();
  // Members start on devices spread evenly and all move on by one a round, so
  // that in step no two of them write to one device while there are enough.
  const int home = group_.self * extents / size;

  const uint64_t control_bytes = pool::ControlBytes(size);
  CXL_ASSIGN_OR_RETURN(uint64_t control, arena->Allocate(home, control_bytes));
  pool::ChannelPlace place = {};
  place.group = HashGroup(group_.members);
  place.control = control;
  place.slot_bytes = static_cast<uint32_t>(geometry_.slot_bytes);
  place.num_slots = static_cast<uint32_t>(geometry_.num_slots);
  for (int slot = 0; slot < geometry_.num_slots; ++slot) {
    CXL_ASSIGN_OR_RETURN(
        place.slots[slot],
        arena->Allocate((home + slot) % extents, geometry_.slot_bytes));
  }
  // Doorbells carry the job's epoch, but pools are not zero and epochs come
  // round: the owner wipes what peers will poll before it says where that is.
  std::byte* block = pool_->At(control, control_bytes);
  std::memset(block, 0, control_bytes);
  pool_->coherence().PublishPayload(block, control_bytes);

  pool::RankPage* page = pool_->rank_page(group_.members[group_.self]);
  for (pool::ChannelEntry& candidate : page->channels) {
    if (doorbells_.Read(&candidate.ready) != 0) continue;
    candidate.place = place;
    pool_->coherence().PublishPayload(&candidate.place, sizeof(place));
    doorbells_.Ring(&candidate.ready, 1);
    return OkStatus();
  }
  return Error(Code::kResourceExhausted, "a rank can be a member of at most ",
               pool::kMaxChannels, " different groups");
}

void Channel::Submit(std::unique_ptr<Call> call) {
  if (negotiation_)
    negotiation_->Submit(std::move(call));
  else
    waiting_.push_back(std::move(call));
}

Result<bool> Channel::ConnectMember(int member) {
  const uint64_t group = HashGroup(group_.members);
  const pool::RankPage* page = pool_->rank_page(group_.members[member]);
  for (const pool::ChannelEntry& entry : page->channels) {
    if (doorbells_.Read(&entry.ready) == 0) return false;
    const pool::ChannelPlace& place = entry.place;
    pool_->coherence().AcquirePayload(&place, sizeof(place));
    if (place.group != group) continue;
    if (place.slot_bytes != geometry_.slot_bytes ||
        place.num_slots != static_cast<uint32_t>(geometry_.num_slots))
      return Error(
          Code::kMismatch, peers_->Name(group_.members[member]), " uses ",
          place.num_slots, " slots of ", place.slot_bytes, " bytes, this rank ",
          geometry_.num_slots, " of ", geometry_.slot_bytes,
          ": set JAX_CXL_SLOT_BYTES and JAX_CXL_NUM_SLOTS alike on all "
          "processes");
    places_[member] = place;
    return true;
  }
  return false;
}

Status Channel::Connect() {
  const int size = static_cast<int>(group_.members.size());
  for (int member = 0; member < size; ++member) {
    if (places_[member]) continue;
    CXL_ASSIGN_OR_RETURN(bool found, ConnectMember(member));
    if (!found) return OkStatus();
  }
  std::vector<pool::ControlBlock*> blocks;
  std::vector<cpu::RingView> rings;
  for (int member = 0; member < size; ++member) {
    const pool::ChannelPlace& place = *places_[member];
    auto* block = reinterpret_cast<pool::ControlBlock*>(
        pool_->At(place.control, pool::ControlBytes(size)));
    cpu::RingView ring;
    bool inside = block != nullptr && place.control % pool::kLineBytes == 0;
    for (int slot = 0; inside && slot < geometry_.num_slots; ++slot) {
      ring.slots[slot] = pool_->At(place.slots[slot], place.slot_bytes);
      inside = ring.slots[slot] != nullptr;
    }
    if (!inside)
      return Error(Code::kDataLoss, peers_->Name(group_.members[member]),
                   " names a place outside the pool: its directory is corrupt");
    ring.published = &block->published.word;
    ring.released = &block->released.word;
    blocks.push_back(block);
    rings.push_back(ring);
  }
  rings_ = std::make_unique<cpu::Rings>(doorbells_, std::move(rings),
                                        group_.self, geometry_.num_slots);
  negotiation_ =
      std::make_unique<Negotiation>(doorbells_, std::move(blocks), group_);
  for (; !waiting_.empty(); waiting_.pop_front())
    negotiation_->Submit(std::move(waiting_.front()));
  return OkStatus();
}

Result<bool> Channel::Progress(std::vector<Finished>* finished) {
  bool moved = false;
  if (!negotiation_) {
    if (waiting_.empty()) return false;
    CXL_RETURN_IF_ERROR(Connect());
    if (!negotiation_) return false;
    moved = true;
  }
  for (;;) {
    if (!current_) {
      bool started = false;
      CXL_RETURN_IF_ERROR(StartNext(&started));
      if (!started) return moved;
      moved = true;
    }
    const size_t before = execution_->steps_done();
    const bool done = execution_->Advance(&traffic_);
    moved |= execution_->steps_done() != before;
    if (!done) return moved;
    rounds_ = call_ends_.back();
    execution_.reset();
    if (gathers_tables_) {
      CXL_RETURN_IF_ERROR(StartRows());
      continue;
    }
    finished->push_back({std::move(current_), OkStatus()});
  }
}

Status Channel::StartNext(bool* started) {
  CXL_ASSIGN_OR_RETURN(std::unique_ptr<Call> call,
                       negotiation_->Next(CallsLeftBehind()));
  if (call == nullptr) return OkStatus();
  current_ = std::move(call);
  *started = true;
  if (current_->request.op == plan::Op::kRaggedAllToAll) return StartTables();
  CXL_ASSIGN_OR_RETURN(std::shared_ptr<const plan::Plan> plan,
                       PlanFor(*current_));
  call_ends_.push_back(rounds_ + plan->rounds);
  execution_.emplace(std::move(plan), rings_.get(), rounds_, current_->dtype,
                     current_->reduce_op, current_->input, current_->output);
  return OkStatus();
}

// What a ragged_all_to_all moves is known at run time only. Its ranks gather
// each other's tables, from which all of them make the same plan, or find the
// same error.
Status Channel::StartTables() {
  plan::Request& request = current_->request;
  plan::Request gather;
  gather.op = plan::Op::kAllGather;
  gather.num_ranks = request.num_ranks;
  gather.rank = request.rank;
  gather.count = current_->table.size();
  gather.element_bytes = sizeof(int64_t);
  request.ragged.tables.resize(gather.num_ranks * gather.count);
  CXL_ASSIGN_OR_RETURN(plan::Plan plan, plan::MakePlan(gather, geometry_));
  gathers_tables_ = true;
  call_ends_.push_back(rounds_ + plan.rounds);
  execution_.emplace(
      std::make_shared<const plan::Plan>(std::move(plan)), rings_.get(),
      rounds_, DType::kInt64, ReduceOp::kSum,
      reinterpret_cast<const std::byte*>(current_->table.data()),
      reinterpret_cast<std::byte*>(request.ragged.tables.data()));
  return OkStatus();
}

Status Channel::StartRows() {
  gathers_tables_ = false;
  CXL_ASSIGN_OR_RETURN(plan::Plan plan,
                       plan::MakePlan(current_->request, geometry_));
  call_ends_.back() += plan.rounds;
  execution_.emplace(std::make_shared<const plan::Plan>(std::move(plan)),
                     rings_.get(), rounds_, current_->dtype,
                     current_->reduce_op, current_->input, current_->output);
  return OkStatus();
}

uint64_t Channel::CallsLeftBehind() {
  while (!call_ends_.empty() &&
         rings_->BehindReleasing(call_ends_.front()) < 0) {
    call_ends_.pop_front();
    ++calls_left_behind_;
  }
  return calls_left_behind_;
}

Result<std::shared_ptr<const plan::Plan>> Channel::PlanFor(const Call& call) {
  const std::string key = PlanKey(call);
  if (auto found = plans_.find(key); found != plans_.end())
    return found->second;
  CXL_ASSIGN_OR_RETURN(plan::Plan made,
                       plan::MakePlan(call.request, geometry_));
  auto plan = std::make_shared<const plan::Plan>(std::move(made));
  if (plan->steps.size() <= kMaxCachedSteps) {
    // A program's collectives recur every step: that many different ones mean
    // that shapes change all the time, and the old ones will not come back.
    if (plans_.size() == kMaxCachedPlans) plans_.clear();
    plans_[key] = plan;
  }
  return plan;
}

std::vector<int> Channel::WaitingFor() const {
  if (current_)
    return execution_ && execution_->waiting_for() >= 0
               ? std::vector<int>{execution_->waiting_for()}
               : std::vector<int>{};
  if (negotiation_) return negotiation_->WaitingFor();
  std::vector<int> missing;
  for (size_t member = 0; member < places_.size(); ++member)
    if (!places_[member]) missing.push_back(static_cast<int>(member));
  return missing;
}

const Call* Channel::oldest() const {
  if (current_) return current_.get();
  if (!waiting_.empty()) return waiting_.front().get();
  return negotiation_ ? negotiation_->oldest() : nullptr;
}

std::string Channel::Late(const Call& call, double waited,
                          const std::vector<int>& members) const {
  std::ostringstream text;
  text << peers_->Name(group_.members[group_.self]) << " has waited "
       << static_cast<int>(waited) << " s in "
       << DescribeText(Describe(call), call.name) << " for ";
  for (size_t i = 0; i < members.size(); ++i)
    text << (i > 0 ? ", " : "") << peers_->Name(group_.members[members[i]]);
  if (current_)
    text << " to go on with it";
  else if (negotiation_ && group_.self != 0)
    text << ", which waits for all ranks to start it";
  else
    text << " to start it";
  return text.str();
}

Status Channel::CheckPeers(Clock::time_point now) {
  const Call* call = oldest();
  if (call == nullptr) return OkStatus();
  for (int32_t rank : group_.members) CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
  const std::vector<int> members = WaitingFor();
  for (int member : members) {
    Status alive = peers_->Alive(group_.members[member]);
    if (!alive.ok())
      return Error(alive.code(), alive.message(), "; ",
                   peers_->Name(group_.members[group_.self]),
                   " was waiting for it in ",
                   DescribeText(Describe(*call), call->name));
  }
  // A long transfer through a small pool takes its time: what counts is how
  // long nothing has moved.
  const std::pair stand(rounds_, execution_ ? execution_->steps_done() : 0);
  if (stand != stand_) {
    stand_ = stand;
    moved_ = now;
  }
  const double waited = Seconds(now - std::max(call->submitted, moved_));
  if (waited > options_.timeout_s)
    return Error(Code::kDeadlineExceeded, Late(*call, waited, members),
                 "; gave up after JAX_CXL_TIMEOUT = ", options_.timeout_s,
                 " s");
  if (waited > options_.warn_after_s &&
      Seconds(now - last_warning_) > options_.warn_after_s) {
    last_warning_ = now;
    std::fprintf(stderr, "jax_cxl: warning: %s\n",
                 Late(*call, waited, members).c_str());
  }
  return OkStatus();
}

void Channel::Fail(const Status& status, std::vector<Finished>* finished) {
  if (current_) finished->push_back({std::move(current_), status});
  execution_.reset();
  for (; !waiting_.empty(); waiting_.pop_front())
    finished->push_back({std::move(waiting_.front()), status});
  if (!negotiation_) return;
  for (auto& call : negotiation_->TakePending())
    finished->push_back({std::move(call), status});
}

}  // namespace jax_cxl::comm
