#include "cc/comm/cuda/device_channel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "cc/base/text.h"
#include "cc/engine/cuda/flagged.h"
#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::comm {
namespace {

// In which a device ends its calls after a peer has ended its last one, and
// then itself.
constexpr double kLastCallS = 0.2;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// A word that a device writes.
template <typename T>
T Read(T& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

// 48 bits of what all ranks must agree on about call `number`.
uint64_t HashCall(const pool::CallDescriptor& descriptor, uint64_t number) {
  uint64_t words[sizeof(descriptor) / sizeof(uint64_t)];
  std::memcpy(words, &descriptor, sizeof(words));
  uint64_t hash = 0xcbf29ce484222325 + number;
  for (uint64_t word : words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash & cuda::kHashMask;
}

std::string ProgramKey(uint64_t channel, const Call& call,
                       const pool::CallDescriptor& descriptor, int copy_lines) {
  std::string key(reinterpret_cast<const char*>(&channel), sizeof(channel));
  key.append(reinterpret_cast<const char*>(&descriptor), sizeof(descriptor));
  // A hash may collide; the permutation itself does not.
  key.append(reinterpret_cast<const char*>(call.request.sources.data()),
             call.request.sources.size() * sizeof(int32_t));
  key.push_back(static_cast<char>(copy_lines));
  return key;
}

// Rounds that a kernel puts ahead of its bells. One keeps the way to the peers
// short, but leaves the link idle where a round is small, or is read by several
// peers at a time.
uint32_t RoundsAhead(const StoredProgram& program, int members) {
  constexpr uint64_t kLongRoundBytes = uint64_t{512} << 10;
  const bool is_long =
      program.bytes_published >= program.rounds * kLongRoundBytes;
  return members == 2 && is_long ? 1 : 2;
}

}  // namespace

DeviceChannel::DeviceChannel(pool::Pool* pool, Peers* peers,
                             const DeviceOptions& options, Group group,
                             ProgramStore* programs,
                             cuda::CopyEngine* copy_engine)
    : pool_(pool),
      peers_(peers),
      options_(options),
      connection_(pool, peers, options, std::move(group)),
      programs_(programs),
      copy_engine_(copy_engine),
      key_(HashGroup(connection_.group().members)),
      flagged_rounds_(options.first_flagged_round) {}

DeviceChannel::~DeviceChannel() {
  for (const TimedCopies& copies : timed_copies_)
    free_times_.push_back(copies.times);
  for (const cuda::CopyTimes& times : free_times_) {
    cudaEventDestroy(times.begin);
    cudaEventDestroy(times.end);
  }
  if (last_done_ != nullptr) cudaEventDestroy(last_done_);
}

Status DeviceChannel::Open(Arena* arena, Recorder* recorder) {
  CXL_RETURN_IF_ERROR(connection_.Open(arena, recorder));
  recorded_.emplace(recorder, connection_.key());
  CXL_ASSIGN_OR_RETURN(scratch_, AllocateDevice<cuda::DeviceScratch>(1));
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpy(&scratch_[0].flagged_released, &flagged_rounds_,
                 sizeof(flagged_rounds_), cudaMemcpyHostToDevice),
      "copying a channel to the device"));
  CXL_ASSIGN_OR_RETURN(status_, AllocatePinned<cuda::DeviceStatus>(1));
  return cuda::CudaStatus(
      cudaEventCreateWithFlags(&last_done_, cudaEventDisableTiming),
      "cudaEventCreate");
}

Status DeviceChannel::Connect() {
  if (connected_) return OkStatus();
  const std::vector<int32_t>& ranks = connection_.group().members;
  const Clock::time_point start = Clock::now();
  for (;;) {
    CXL_ASSIGN_OR_RETURN(bool all, connection_.Connect());
    if (all) return UploadMembers();
    const int32_t missing = ranks[connection_.Missing()];
    RecordWait(calls_, connection_.Missing());
    CXL_RETURN_IF_ERROR(peers_->GaveUp(missing));
    CXL_RETURN_IF_ERROR(peers_->Alive(missing));
    if (Seconds(Clock::now() - start) > options_.timeout_s)
      return Error(Code::kDeadlineExceeded, peers_->Name(missing),
                   " has not started any collective of this group; ",
                   peers_->Name(ranks[connection_.group().self]),
                   " gave up after JAX_CXL_TIMEOUT = ", options_.timeout_s,
                   " s");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Of one of the copy engines' buffers.
uint64_t DeviceChannel::staging_bytes() const {
  return (connection_.members().size() - 1) * connection_.geometry().slot_bytes;
}

// On how many lines the copy engines execute a call; 0: kernels do. Follows
// from what is equal on all ranks. Kernels fill one direction of the link as
// well as the copy engines do, and both where they read from several peers.
// Beside compute, a call leaves the multiprocessors alone as soon as that costs
// it little. Copy engines load the pool's devices one after another, kernels
// all of them at once.
int DeviceChannel::CopyLines(const Call& call, bool aside) const {
  if (!aside && connection_.stripes().slot_step > 0) return 0;
  bool ahead = connection_.members().size() == 2;  // of kernels
  int lines = 1;
  switch (call.request.op) {
    case plan::Op::kAllGather:
    case plan::Op::kAllToAll:
      break;
    case plan::Op::kAllReduce:
      lines = 2;
      break;
    case plan::Op::kReduceScatter:
      lines = 2;
      ahead = false;  // of kernels, which need not stage operands
      break;
    case plan::Op::kBroadcast:
    case plan::Op::kReduce:
    case plan::Op::kGather:
    case plan::Op::kScatter:
      ahead = false;
      break;
    default:  // not measured
      return 0;
  }
  const uint64_t bytes =
      std::max(plan::InputBytes(call.request), plan::OutputBytes(call.request));
  const bool copies = (ahead && bytes >= options_.copy_engine_bytes) ||
                      (aside && bytes >= options_.copy_engine_bytes_aside);
  return bytes > 0 && copies ? lines : 0;
}

Status DeviceChannel::UploadMembers() {
  const std::vector<cuda::MemberView>& members = connection_.members();
  CXL_ASSIGN_OR_RETURN(
      staging_,
      AllocateDevice<std::byte>(cuda::CopyEngine::kBuffers * staging_bytes()));
  CXL_ASSIGN_OR_RETURN(members_,
                       AllocateDevice<cuda::MemberView>(members.size()));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpy(members_.get(), members.data(),
                                  members.size() * sizeof(cuda::MemberView),
                                  cudaMemcpyHostToDevice),
                       "copying a channel to the device"));
  connected_ = true;
  return OkStatus();
}

// None if the call is too long for flags.
Result<std::optional<cuda::Program>> DeviceChannel::FlaggedProgram(
    const plan::Request& request) const {
  if (options_.flagged_bytes == 0 ||
      !plan::IsFlagged(request, options_.flagged_bytes))
    return std::optional<cuda::Program>();
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(request, plan::FlaggedGeometry(request.num_ranks)));
  CXL_ASSIGN_OR_RETURN(
      cuda::Program program,
      cuda::MakeProgram(plan, request.rank, cuda::Stripes{1, 16}));
  if (!cuda::FitsFlagged(program)) return std::optional<cuda::Program>();
  return std::optional(std::move(program));
}

Result<const StoredProgram*> DeviceChannel::ProgramFor(
    const Call& call, const pool::CallDescriptor& descriptor, int copy_lines,
    cudaStream_t stream) {
  const std::string key = ProgramKey(key_, call, descriptor, copy_lines);
  if (const StoredProgram* found = programs_->Find(key)) return found;
  if (copy_lines == 0) {
    CXL_ASSIGN_OR_RETURN(const std::optional<cuda::Program> program,
                         FlaggedProgram(call.request));
    if (program) return programs_->Store(key, *program, true, stream);
  }
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(call.request, copy_lines > 0
                                       ? connection_.geometry()
                                       : connection_.kernel_geometry()));
  CXL_ASSIGN_OR_RETURN(
      const cuda::Program program,
      cuda::MakeProgram(plan, call.request.rank, connection_.stripes()));
  return programs_->Store(key, program, false, stream);
}

// A channel's calls execute in the order in which they are enqueued.
Status DeviceChannel::FollowLast(cudaStream_t stream) {
  if (calls_ == 0 || stream == last_stream_) return OkStatus();
  if (!last_recorded_)
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaEventRecord(last_done_, last_stream_), "cudaEventRecord"));
  return cuda::CudaStatus(cudaStreamWaitEvent(stream, last_done_),
                          "cudaStreamWaitEvent");
}

// What every way of executing a call needs.
cuda::DeviceCall DeviceChannel::Prepare(const Call& call,
                                        const StoredProgram& program,
                                        const pool::CallDescriptor& descriptor,
                                        bool by_copies) const {
  cuda::DeviceCall device;
  device.sending = program.sending;
  device.receiving = program.receiving;
  device.num_sending = program.num_sending;
  device.num_receiving = program.num_receiving;
  device.members = members_.get();
  device.num_members = static_cast<int32_t>(connection_.members().size());
  device.self = connection_.group().self;
  device.num_slots = static_cast<uint32_t>(
      (by_copies ? connection_.geometry() : connection_.kernel_geometry())
          .num_slots);
  device.unit_bytes = connection_.stripes().unit_bytes;
  device.slot_step = connection_.stripes().slot_step;
  device.base_round = program.flagged ? flagged_rounds_ : rounds_;
  device.rounds = program.rounds;
  device.rounds_ahead = RoundsAhead(program, device.num_members);
  device.epoch = pool_->epoch();
  device.call = calls_;
  device.hash = HashCall(descriptor, calls_);
  device.input = call.input;
  device.output = call.output;
  device.dtype = call.dtype;
  device.reduce_op = call.reduce_op;
  device.status = status_.get();
  device.scratch = scratch_.get();
  // The host's deadline comes first, and knows more. This one is for a device
  // whose host no longer runs.
  device.timeout_ns =
      static_cast<uint64_t>((options_.timeout_s * 1.5 + 5) * 1e9);
  return device;
}

cudaError_t DeviceChannel::LaunchFlagged(cuda::DeviceCall call,
                                         const StoredProgram& program,
                                         cudaStream_t stream) {
  if (cuda::MustWipe(call.base_round)) {
    const cudaError_t error = cuda::LaunchWipe(call, stream);
    if (error != cudaSuccess) return error;
    call.base_round = ++flagged_rounds_;
  }
  ++flagged_rounds_;
  return cuda::LaunchFlagged(
      call,
      {program.host_sending, program.host_receiving,
       connection_.members().data(), program.flagged_blocks},
      stream);
}

Status DeviceChannel::Enqueue(const Call& call, bool aside,
                              cudaStream_t stream) {
  const uint64_t place = calls_;
  {
    std::lock_guard lock(mutex_);
    recorded_->Submit(place, call);
  }
  Status status = EnqueueRecorded(call, aside, stream);
  if (status.ok()) return status;
  std::lock_guard lock(mutex_);
  recorded_->Fail(place, status);
  return status;
}

Status DeviceChannel::EnqueueRecorded(const Call& call, bool aside,
                                      cudaStream_t stream) {
  CXL_RETURN_IF_ERROR(Connect());
  CXL_RETURN_IF_ERROR(FollowLast(stream));
  const int copy_lines = CopyLines(call, aside);
  const uint64_t place = calls_;
  const pool::CallDescriptor descriptor = Describe(call);
  CXL_ASSIGN_OR_RETURN(const StoredProgram* program,
                       ProgramFor(call, descriptor, copy_lines, stream));
  const cuda::DeviceCall device =
      Prepare(call, *program, descriptor, copy_lines > 0);

  Note(call, descriptor);
  cudaError_t error = cudaSuccess;
  if (copy_lines > 0) {
    CXL_ASSIGN_OR_RETURN(const cuda::CopyTimes times, TakeTimes(place));
    error = copy_engine_->Enqueue(
        device,
        {copy_lines, program->host_sending, program->host_receiving,
         connection_.members().data(), staging_.get(), staging_bytes()},
        times, stream);
    last_by_copy_engine_ = true;
  } else if (program->flagged) {
    error = LaunchFlagged(device, *program, stream);
  } else {
    if (std::exchange(last_by_copy_engine_, false))
      error = cuda::LaunchWaitForEnd(device, stream);
    if (error == cudaSuccess)
      error = cuda::Launch(device, options_.shape, stream);
  }
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(error, "launching a collective"));
  if (aside)
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaEventRecord(last_done_, stream),
                                         "cudaEventRecord"));
  last_recorded_ = aside;
  last_stream_ = stream;
  if (!program->flagged) rounds_ += program->rounds;
  std::lock_guard lock(mutex_);
  stats_.bytes_published += program->bytes_published;
  stats_.bytes_retrieved += program->bytes_retrieved;
  return OkStatus();
}

// Events around call `place`. From here on it counts as one by the copy
// engines, which Abort stops, unless it came before.
Result<cuda::CopyTimes> DeviceChannel::TakeTimes(uint64_t place) {
  std::lock_guard lock(mutex_);
  if (Read(status_.get()->abort) != 0)
    return Error(Code::kFailedPrecondition,
                 "a collective of this process has failed before");
  cuda::CopyTimes times;
  if (free_times_.empty()) {
    for (cudaEvent_t* event : {&times.begin, &times.end})
      CXL_RETURN_IF_ERROR(
          cuda::CudaStatus(cudaEventCreate(event), "cudaEventCreate"));
  } else {
    times = free_times_.back();
    free_times_.pop_back();
  }
  timed_copies_.push_back({place, times});
  return times;
}

// With the mutex.
void DeviceChannel::AddTimes(uint64_t finished) {
  while (!timed_copies_.empty() && timed_copies_.front().call < finished) {
    const cuda::CopyTimes times = timed_copies_.front().times;
    timed_copies_.pop_front();
    free_times_.push_back(times);
    float ms = 0;
    if (cudaEventElapsedTime(&ms, times.begin, times.end) == cudaSuccess)
      copying_s_ += ms * 1e-3;
  }
}

void DeviceChannel::Note(const Call& call,
                         const pool::CallDescriptor& descriptor) {
  std::lock_guard lock(mutex_);
  journal_[calls_ % cuda::kJournal] = {descriptor, call.name};
  cuda::JournalEntry& entry = connection_.control(connection_.group().self)
                                  ->journal[calls_ % cuda::kJournal];
  entry.descriptor = descriptor;
  std::memset(entry.name, 0, sizeof(entry.name));
  call.name.copy(entry.name, sizeof(entry.name) - 1);
  pool_->coherence().PublishPayload(&entry, sizeof(entry));
  connection_.doorbells().Ring(&entry.ready, ++calls_);
}

void DeviceChannel::RecordWait(uint64_t call, int member) {
  std::lock_guard lock(mutex_);
  recorded_->Wait(call, connection_.group().members[member]);
}

std::string DeviceChannel::InCall(uint64_t call) const {
  std::lock_guard lock(mutex_);
  if (call >= calls_ || call + cuda::kJournal < calls_) return "a collective";
  const Enqueued& enqueued = journal_[call % cuda::kJournal];
  return DescribeText(enqueued.descriptor, enqueued.name);
}

// Compares what the members' hosts have enqueued. The device has refused to
// read the data of another call; here it is put in words.
Status DeviceChannel::CompareJournals() {
  uint64_t enqueued;
  {
    std::lock_guard lock(mutex_);
    enqueued = calls_;
  }
  if (compared_ + cuda::kJournal / 2 < enqueued)
    compared_ = enqueued - cuda::kJournal / 2;
  const int size = static_cast<int>(connection_.members().size());
  for (; compared_ < enqueued; met_ = ++compared_) {
    const uint64_t at = compared_ % cuda::kJournal;
    const int self = connection_.group().self;
    const pool::CallDescriptor mine =
        connection_.control(self)->journal[at].descriptor;
    for (int member = 0; member < size; ++member) {
      if (member == self) continue;
      const cuda::JournalEntry& entry =
          connection_.control(member)->journal[at];
      const uint64_t ready = connection_.doorbells().Read(&entry.ready);
      if (ready < compared_ + 1) return OkStatus();  // not there yet
      const cuda::JournalEntry theirs = pool_->coherence().AcquireCopy(entry);
      // Overwritten: the member is far ahead, and was in this call before.
      if (connection_.doorbells().Read(&entry.ready) != compared_ + 1) continue;
      if (theirs.descriptor == mine) continue;
      const auto& ranks = connection_.group().members;
      return Error(Code::kMismatch,
                   "the ranks disagree about a collective: rank ", ranks[self],
                   " calls ", InCall(compared_), "; rank ", ranks[member],
                   " calls ",
                   DescribeText(theirs.descriptor, PrintableText(theirs.name)));
    }
  }
  return OkStatus();
}

Status DeviceChannel::Check(Clock::time_point now) {
  if (!connected_) return OkStatus();
  const uint64_t finished = Read(status_.get()->finished);
  Status status = CheckCalls(now, finished);
  std::lock_guard lock(mutex_);
  AddTimes(finished);
  recorded_->Advance(met_, finished);
  if (!status.ok()) recorded_->Fail(finished, status);
  return status;
}

Status DeviceChannel::CheckCalls(Clock::time_point now, uint64_t finished) {
  uint64_t enqueued;
  {
    std::lock_guard lock(mutex_);
    enqueued = calls_;
  }
  cuda::DeviceStatus& status = *status_.get();
  const uint64_t started = Read(status.started);
  CXL_RETURN_IF_ERROR(CompareJournals());
  if (finished != seen_finished_ || started != seen_started_) {
    seen_finished_ = finished;
    seen_started_ = started;
    moved_ = now;
  }
  if (finished >= enqueued) return OkStatus();

  const std::vector<int32_t>& ranks = connection_.group().members;
  const int self = connection_.group().self;
  const std::string me = peers_->Name(ranks[self]);
  for (int32_t rank : ranks) CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (static_cast<int>(member) == self) continue;
    Status alive = peers_->Alive(ranks[member]);
    if (alive.ok()) continue;
    // It may have ended when all that this device needs of it was there.
    if (!gone_since_) gone_since_ = now;
    if (Seconds(now - *gone_since_) < kLastCallS) return OkStatus();
    return Error(alive.code(), alive.message(), "; ", me, " was in ",
                 InCall(finished));
  }
  const auto fault = static_cast<cuda::DeviceFault>(Read(status.fault));
  const uint32_t about = Read(status.fault_member);
  const std::string other =
      about < ranks.size() ? peers_->Name(ranks[about]) : "a peer";
  if (fault == cuda::DeviceFault::kMismatch)
    return Error(Code::kMismatch, other, " is in another collective than ", me,
                 ", which is in ", InCall(finished));
  if (fault == cuda::DeviceFault::kTimeout)
    return Error(Code::kDeadlineExceeded, me, " waited in vain for ", other,
                 " in ", InCall(finished));

  // A call that was enqueued behind others has not begun to wait.
  if (started == finished) return OkStatus();
  const double waited = Seconds(now - moved_);
  const int waiting_for = WaitingFor(finished, waited);
  if (waiting_for < 0) return OkStatus();
  RecordWait(finished, waiting_for);
  const std::string late = peers_->Name(ranks[waiting_for]);
  if (waited > options_.timeout_s)
    return Error(Code::kDeadlineExceeded, me, " has waited ",
                 static_cast<int>(waited), " s in ", InCall(finished), " for ",
                 late, "; gave up after JAX_CXL_TIMEOUT = ", options_.timeout_s,
                 " s");
  if (waited > options_.warn_after_s &&
      Seconds(now - last_warning_) > options_.warn_after_s) {
    last_warning_ = now;
    std::fprintf(stderr, "jax_cxl: warning: %s has waited %d s in %s for %s\n",
                 me.c_str(), static_cast<int>(waited), InCall(finished).c_str(),
                 late.c_str());
  }
  return OkStatus();
}

// The member that the first call which is not finished waits for, -1: none.
int DeviceChannel::WaitingFor(uint64_t finished, double waited_s) const {
  {
    std::lock_guard lock(mutex_);
    const bool copies =
        !timed_copies_.empty() && timed_copies_.front().call == finished;
    if (!copies) {
      const uint32_t said = Read(status_.get()->waiting_for);
      return said > connection_.members().size() ? -1
                                                 : static_cast<int>(said) - 1;
    }
  }
  // No kernel says whom copies wait for. No copies take so long, so they wait,
  // and the member that is behind all others has to come first.
  constexpr double kLongWaitS = 0.1;
  if (waited_s < kLongWaitS) return -1;
  int last = -1;
  uint64_t least = 0;
  for (int member = 0; member < static_cast<int>(connection_.members().size());
       ++member) {
    if (member == connection_.group().self) continue;
    const cuda::DeviceControl& control = *connection_.control(member);
    uint64_t rounds = connection_.doorbells().Read(&control.ended.word);
    for (int line = 0; line < cuda::CopyEngine::kLines; ++line)
      rounds += connection_.doorbells().Read(&control.send[line].published) +
                connection_.doorbells().Read(&control.released[line].word);
    if (last >= 0 && rounds >= least) continue;
    last = member;
    least = rounds;
  }
  return last;
}

void DeviceChannel::Abort() {
  if (status_ == nullptr) return;
  std::atomic_ref(status_.get()->abort).store(1, std::memory_order_release);
  const uint64_t finished = Read(status_.get()->finished);
  std::lock_guard lock(mutex_);
  if (!timed_copies_.empty() && timed_copies_.back().call >= finished)
    copy_engine_->Stop();
}

Stats DeviceChannel::stats() {
  std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.calls = calls_;
  if (status_ == nullptr) return stats;
  AddTimes(Read(status_.get()->finished));
  stats.seconds = Read(status_.get()->busy_ns) * 1e-9 + copying_s_;
  return stats;
}

}  // namespace jax_cxl::comm
