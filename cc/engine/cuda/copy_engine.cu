#include <algorithm>
#include <bit>
#include <utility>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/copy_engine.h"
#include "cc/engine/cuda/progress.cuh"
#include "cc/engine/cuda/reduce.cuh"

namespace jax_cxl::cuda {
namespace {

constexpr uint32_t kReduceBlocks = 32;

// What a stream does between two copies: rings, then waits.
struct Turn {
  uint32_t line = 0;
  uint64_t publish = 0;  // rounds, from the job's start; 0 for nothing
  uint64_t release = 0;
  bool await_slot = false;
  uint64_t slot_round = 0;
  int first = 0;  // members whose publication is awaited
  int last = 0;
  uint64_t published = 0;
};

__global__ void Synchronize(const __grid_constant__ DeviceCall call,
                            const __grid_constant__ Turn turn) {
  __shared__ BlockState state;
  state.Reset();
  __syncthreads();
  ControlWarp warp(call, state, kSending, turn.line);
  const MemberView& mine = call.members[call.self];
  if (turn.publish > 0)
    warp.Ring(&mine.send[turn.line].published, turn.publish);
  if (turn.release > 0) warp.Ring(&mine.released[turn.line].word, turn.release);
  bool go_on = !turn.await_slot || warp.AwaitSlot(turn.slot_round);
  if (go_on && turn.last > turn.first)
    go_on = warp.AwaitPublished(turn.first, turn.last, turn.published);
  if (!go_on && threadIdx.x == 0) Stop(call.status);
}

// Before anything of the call is published.
__global__ void Begin(const __grid_constant__ DeviceCall call) {
  SendLine& line = call.members[call.self].send[threadIdx.x];
  StoreWord(&line.calls[call.call % kCallWords],
            CallWord(call.call, call.hash));
  FenceSystem();
  if (threadIdx.x != 0) return;
  call.scratch->started_ns = NowNs();
  SayStarted(call);
}

// After all that the call moves: every line is at its end.
__global__ void End(const __grid_constant__ DeviceCall call, uint64_t rounds) {
  const MemberView& mine = call.members[call.self];
  const uint64_t word = call.epoch << kHashBits | rounds;
  FenceSystem();
  StoreWord(&mine.send[threadIdx.x].published, word);
  StoreWord(&mine.released[threadIdx.x].word, word);
  if (threadIdx.x != 0) return;
  SayFinished(call, call.scratch->started_ns, call.scratch->busy_ns);
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    ReduceOnly(const __grid_constant__ DeviceCall call,
               const __grid_constant__ DeviceStep step,
               const std::byte* staging) {
  const auto slot_of = [&](uint64_t round) {
    return static_cast<uint32_t>((call.base_round + round) % call.num_slots);
  };
  ReduceTask task{&call,
                  &step,
                  StripeVectors(step.from, step.bytes, call.unit_bytes,
                                blockIdx.x, gridDim.x),
                  slot_of(step.round),
                  nullptr,
                  nullptr,
                  threadIdx.x,
                  blockDim.x,
                  staging};
  if (step.kind != DeviceStepKind::kReduceToSlot)
    task.to = call.output + step.to;
  if (step.kind != DeviceStepKind::kReduce)
    task.to_slot =
        call.members[call.self].slots[slot_of(step.to_round)] + step.to_slot;
  Reduce(task);
}

}  // namespace

// Walks through both lanes of a program and enqueues what they say.
class CopyEngine::Walk {
 public:
  Walk(CopyEngine& engine, const DeviceCall& call, const HostProgram& program,
       cudaStream_t stream)
      : engine_(engine), call_(call), program_(program), stream_(stream) {}

  // Keeps both lanes about level, so that neither starts late.
  cudaError_t Run() {
    uint32_t sent = 0, received = 0;
    while (sent < call_.num_sending || received < call_.num_receiving) {
      const bool receive = received < call_.num_receiving &&
                           (sent == call_.num_sending ||
                            received < program_.sending[sent].after ||
                            program_.receiving[received].round + 1 <
                                program_.sending[sent].round);
      if (receive)
        Receive(program_.receiving[received++]);
      else
        Send(program_.sending[sent++]);
    }
    for (int line = 0; line < kLines; ++line) {
      if (publish_[line] > 0) Synchronize(publishing(line), Take(line, true));
      if (release_[line] > 0) Synchronize(retrieving(line), Take(line, false));
    }
    return error_;
  }

 private:
  cudaStream_t publishing(int line) { return engine_.publishing_[line]; }
  cudaStream_t retrieving(int line) { return engine_.retrieving_[line]; }

  uint64_t Slot(uint64_t round) const {
    return (call_.base_round + round) % call_.num_slots;
  }
  int LineOf(uint64_t round) const {
    return static_cast<int>(Slot(round) % kLines);
  }

  void Check(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  // A turn of a line's stream, with the doorbells that are due.
  Turn Take(int line, bool sending) {
    Turn turn;
    turn.line = line;
    if (sending)
      turn.publish = std::exchange(publish_[line], 0);
    else
      turn.release = std::exchange(release_[line], 0);
    return turn;
  }

  void Synchronize(cudaStream_t stream, const Turn& turn) {
    cuda::Synchronize<<<1, 32, 0, stream>>>(call_, turn);
    Check(cudaGetLastError());
  }

  void Copy(void* to, const void* from, uint64_t bytes, cudaStream_t stream) {
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  }

  void Send(const DeviceStep& step) {
    const int line = LineOf(step.round);
    switch (step.kind) {
      case DeviceStepKind::kCopy:
        Copy(call_.output + step.to, call_.input + step.from, step.bytes,
             stream_);
        break;
      case DeviceStepKind::kZero:
        Check(cudaMemsetAsync(call_.output + step.to, 0, step.bytes, stream_));
        break;
      case DeviceStepKind::kPut: {
        const uint64_t round = call_.base_round + step.round;
        if (publish_[line] > 0 || free_[line] != round + 1) {
          Turn turn = Take(line, true);
          turn.await_slot = true;
          turn.slot_round = round;
          Synchronize(publishing(line), turn);
          free_[line] = round + 1;
        }
        Copy(program_.members[call_.self].slots[Slot(step.round)] + step.to,
             call_.input + step.from, step.bytes, publishing(line));
        break;
      }
      case DeviceStepKind::kPublish:
        // Results that the receiving lane has put into the slot.
        if (step.after > 0)
          Check(cudaStreamWaitEvent(publishing(line), engine_.reduced_[line]));
        // Not with the next turn: results are what the peers wait for.
        publish_[line] = call_.base_round + step.round + 1;
        if (step.after > 0) Synchronize(publishing(line), Take(line, true));
        break;
      default:
        break;
    }
  }

  void Receive(const DeviceStep& step) {
    const int line = LineOf(step.round);
    switch (step.kind) {
      case DeviceStepKind::kGet: {
        Await(step);
        if (step.bytes == 0) break;
        Copy(call_.output + step.to,
             program_.members[step.first].slots[Slot(step.round)] + step.from,
             step.bytes, retrieving(line));
        break;
      }
      case DeviceStepKind::kReduce:
        Await(step);
        Stage(step, line);
        Reduce(step, line);
        break;
      case DeviceStepKind::kReduceToSlot:
      case DeviceStepKind::kReduceToBoth: {
        Await(step);
        Stage(step, line);
        // The slot that it writes may be another line's.
        Turn turn;
        turn.line = LineOf(step.to_round);
        turn.await_slot = true;
        turn.slot_round = call_.base_round + step.to_round;
        Synchronize(retrieving(line), turn);
        Reduce(step, line);
        Check(cudaEventRecord(engine_.reduced_[turn.line], retrieving(line)));
        break;
      }
      case DeviceStepKind::kRelease:
        // It releases all rounds before as well, which may be another line's.
        for (uint64_t& release : release_)
          release = call_.base_round + step.round + 1;
        break;
      default:
        break;
    }
  }

  // Rings what is due on the line and waits for the step's sources.
  void Await(const DeviceStep& step) {
    const int line = LineOf(step.round);
    Turn turn = Take(line, false);
    turn.first = step.first;
    turn.last = step.last;
    turn.published = call_.base_round + step.round + 1;
    Synchronize(retrieving(line), turn);
  }

  std::byte* Staging(int line) const {
    return program_.staging + line * program_.staging_bytes;
  }

  // Fetches the peers' operands.
  void Stage(const DeviceStep& step, int line) {
    std::byte* to = Staging(line);
    for (int member = step.first; member < step.last; ++member) {
      if (member == call_.self) continue;
      Copy(to, program_.members[member].slots[Slot(step.round)] + step.from,
           step.bytes, retrieving(line));
      to += StagedBytes(step.bytes);
    }
  }

  void Reduce(const DeviceStep& step, int line) {
    const uint64_t units =
        (step.bytes + call_.unit_bytes - 1) / call_.unit_bytes;
    const auto blocks = static_cast<uint32_t>(
        std::bit_floor(std::clamp<uint64_t>(units, 1, kReduceBlocks)));
    ReduceOnly<<<blocks, kMaxThreads, 0, retrieving(line)>>>(call_, step,
                                                             Staging(line));
    Check(cudaGetLastError());
  }

  CopyEngine& engine_;
  const DeviceCall& call_;
  const HostProgram& program_;
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
  // Doorbells that a line's next turn rings.
  uint64_t publish_[kLines] = {};
  uint64_t release_[kLines] = {};
  // The round + 1 whose slot each line has waited for.
  uint64_t free_[kLines] = {};
};

CopyEngine::~CopyEngine() {
  for (cudaStream_t stream : publishing_)
    if (stream != nullptr) cudaStreamDestroy(stream);
  for (cudaStream_t stream : retrieving_)
    if (stream != nullptr) cudaStreamDestroy(stream);
  for (cudaEvent_t event : reduced_)
    if (event != nullptr) cudaEventDestroy(event);
  if (event_ != nullptr) cudaEventDestroy(event_);
}

Status CopyEngine::Open() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&Synchronize),
                             reinterpret_cast<const void*>(&Begin),
                             reinterpret_cast<const void*>(&End),
                             reinterpret_cast<const void*>(&ReduceOnly)})
    CXL_RETURN_IF_ERROR(CudaStatus(cudaFuncGetAttributes(&attributes, kernel),
                                   "loading the kernels"));
  // A turn that waits for a busy multiprocessor would hold up the link.
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  for (int line = 0; line < kLines; ++line) {
    for (cudaStream_t* stream : {&publishing_[line], &retrieving_[line]})
      CXL_RETURN_IF_ERROR(CudaStatus(
          cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest),
          "cudaStreamCreate"));
    CXL_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(&reduced_[line], cudaEventDisableTiming),
        "cudaEventCreate"));
  }
  return CudaStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                    "cudaEventCreate");
}

cudaError_t CopyEngine::Enqueue(const DeviceCall& call,
                                const HostProgram& program, const Shape& shape,
                                cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  auto check = [&](cudaError_t result) {
    if (error == cudaSuccess) error = result;
  };
  Begin<<<1, kLines, 0, stream>>>(call);
  check(cudaGetLastError());
  check(cudaEventRecord(event_, stream));
  for (int line = 0; line < kLines; ++line) {
    check(cudaStreamWaitEvent(publishing_[line], event_));
    check(cudaStreamWaitEvent(retrieving_[line], event_));
  }
  check(Walk(*this, call, program, stream).Run());
  for (int line = 0; line < kLines; ++line) {
    for (cudaStream_t side : {publishing_[line], retrieving_[line]}) {
      check(cudaEventRecord(event_, side));
      check(cudaStreamWaitEvent(stream, event_));
    }
  }
  End<<<1, shape.blocks, 0, stream>>>(call, call.base_round + program.rounds);
  check(cudaGetLastError());
  return error;
}

}  // namespace jax_cxl::cuda
