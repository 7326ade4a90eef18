#include <cuda.h>

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/driver.h"
#include "cc/base/cuda/streams.h"
#include "cc/engine/cuda/copy_engine.h"
#include "cc/engine/cuda/reduce.cuh"

namespace jax_cxl::cuda {
namespace {

constexpr uint32_t kReduceBlocks = 32;

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

__global__ void Trap() { __trap(); }

// Let a stream wait for words and store words between its copies, without a
// kernel and hence without a multiprocessor. A wait whose word never comes
// lasts until the device is stopped.
using WordOperation = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t,
                                   unsigned int);

cudaError_t Enqueue(WordOperation operation, cudaStream_t stream,
                    const uint64_t* word, uint64_t value, unsigned int flags) {
  if (operation == nullptr) return cudaErrorNotSupported;  // by the driver
  // CUresult and cudaError_t use the same numbers.
  return static_cast<cudaError_t>(
      operation(stream, reinterpret_cast<CUdeviceptr>(word), value, flags));
}

// `condition` compares the word with `value`.
cudaError_t AwaitWord(cudaStream_t stream, const uint64_t* word, uint64_t value,
                      CUstreamWaitValue_flags condition) {
  static const auto await = InDriver<WordOperation>("cuStreamWaitValue64");
  return Enqueue(await, stream, word, value, condition);
}

// A reader of the word sees all earlier work of the stream.
cudaError_t StoreWordOn(cudaStream_t stream, uint64_t* word, uint64_t value) {
  static const auto store = InDriver<WordOperation>("cuStreamWriteValue64");
  return Enqueue(store, stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

// Copies of one round, with no waits between them. CUDA accepts such copies as
// one batch, which avoids pauses of microseconds between them.
class Batch {
 public:
  void Add(void* to, const void* from, uint64_t bytes) {
    to_.push_back(to);
    from_.push_back(from);
    bytes_.push_back(bytes);
  }

  bool empty() const { return to_.empty(); }

  // Enqueues the added copies, and empties the batch.
  cudaError_t Enqueue(cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    if (to_.size() > 1)
      error = Together(stream);
    else if (!empty())
      error = cudaMemcpyAsync(to_[0], from_[0], bytes_[0], cudaMemcpyDefault,
                              stream);
    to_.clear();
    from_.clear();
    bytes_.clear();
    return error;
  }

 private:
  cudaError_t Together(cudaStream_t stream) {
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;  // index of the first copy with these attributes
    return cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(),
                                to_.size(), &attributes, &first, 1, stream);
  }

  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

}  // namespace

// Enqueues the steps of both directions of a GPU plan.
class CopyEngine::Walk {
 public:
  Walk(CopyEngine& engine, const DeviceCall& call,
       const CopyEnginePlan& gpu_plan, cudaStream_t stream)
      : engine_(engine),
        call_(call),
        gpu_plan_(gpu_plan),
        mine_(gpu_plan.members[call.self]),
        tag_(call.epoch << kValueBits),
        pipelines_(std::span(engine.pipelines_).first(gpu_plan.pipelines)),
        stream_(stream) {}

  cudaError_t Run(const CopyTimes& times) {
    begin_ = times.begin.get();
    Check(cudaEventRecord(begin_, stream_));
    Store(stream_, &call_.status->started, call_.call + 1);
    EnqueueSteps();
    const cudaStream_t end = engine_.end();
    const auto join = [&](cudaStream_t stream) {
      Record(engine_.event_, stream);
      AwaitEvent(end, engine_.event_);
    };
    join(stream_);  // it copies within the device's memory
    for (cudaStream_t side : begun_) join(side);
    Store(end, mine_.ended, tag_ | (call_.base_round + call_.rounds));
    Record(times.end, end);
    Store(end, &call_.status->finished, call_.call + 1);
    return error_;
  }

 private:
  // Returns `side`, a stream of a pipeline. At its first use, makes it wait for
  // the earlier work of `stream_`. Short calls use few of these streams.
  cudaStream_t Begun(const Stream& side) {
    if (std::ranges::find(begun_, side.get()) == begun_.end()) {
      Check(cudaStreamWaitEvent(side.get(), begin_));
      begun_.push_back(side.get());
    }
    return side.get();
  }
  cudaStream_t Publishing(uint64_t round) {
    return Begun(pipelines_[PipelineOf(round)].publishing);
  }
  cudaStream_t Retrieving(uint64_t round) {
    return Begun(pipelines_[PipelineOf(round)].retrieving);
  }
  cudaStream_t Reducing(uint64_t round) {
    return Begun(pipelines_[PipelineOf(round)].reducing);
  }

  // Enqueues both directions at about the same rate, so that neither starts
  // late.
  void EnqueueSteps() {
    const std::vector<DeviceStep>& sending = gpu_plan_.steps.sending;
    const std::vector<DeviceStep>& receiving = gpu_plan_.steps.receiving;
    size_t sent = 0, received = 0;
    while (sent < sending.size() || received < receiving.size()) {
      const bool receive =
          received < receiving.size() &&
          (sent == sending.size() || received < sending[sent].after ||
           receiving[received].round + 1 < sending[sent].round);
      if (receive)
        Receive(receiving[received++]);
      else
        Send(sending[sent++]);
    }
    EnqueuePuts();
    EnqueueGets();
  }

  // Enqueue the copies that have been collected for one round, if there are
  // any.
  void EnqueuePuts() {
    if (!puts_.empty()) Check(puts_.Enqueue(Publishing(putting_)));
  }
  void EnqueueGets() {
    if (!gets_.empty()) Check(gets_.Enqueue(Retrieving(getting_)));
  }

  void Send(const DeviceStep& step) {
    switch (step.kind) {
      case DeviceStepKind::kCopy:
        Check(cudaMemcpyAsync(call_.output + step.to, call_.input + step.from,
                              step.bytes, cudaMemcpyDefault, stream_));
        break;
      case DeviceStepKind::kZero:
        Check(cudaMemsetAsync(call_.output + step.to, 0, step.bytes, stream_));
        break;
      case DeviceStepKind::kPut: {
        if (putting_ != step.round) EnqueuePuts();
        putting_ = step.round;
        uint64_t& free = free_[PipelineOf(step.round)];
        if (free != step.round + 1)
          AwaitSlot(Publishing(step.round), step.round);
        free = step.round + 1;
        puts_.Add(mine_.slots[Slot(step.round)] + step.to,
                  call_.input + step.from, step.bytes);
        break;
      }
      case DeviceStepKind::kPublish:
        EnqueuePuts();
        // Wait for results that the receiving steps have put into the slot.
        if (step.after > 0)
          for (const Pipeline& source : pipelines_)
            AwaitEvent(Publishing(step.round),
                       source.reduced[PipelineOf(step.round)]);
        Publish(step.round);
        break;
      default:
        break;
    }
  }

  // Publishes the round. In the first round of a pipeline, first stores the
  // word that identifies the call. It replaces the word of an older call. This
  // store comes after the wait for a free slot, so the peers no longer need the
  // older word.
  void Publish(uint64_t round) {
    const int pipeline = PipelineOf(round);
    const cudaStream_t stream = Publishing(round);
    SendLine& send = mine_.send[pipeline];
    if (!named_[pipeline])
      Store(stream, &send.calls[call_.call % kCallWords],
            CallWord(call_.call, call_.hash));
    named_[pipeline] = true;
    Store(stream, &send.published, tag_ | (call_.base_round + round + 1));
  }

  void Receive(const DeviceStep& step) {
    Pipeline& pipeline = pipelines_[PipelineOf(step.round)];
    if (step.kind != DeviceStepKind::kGet || getting_ != step.round)
      EnqueueGets();
    switch (step.kind) {
      case DeviceStepKind::kGet:
        getting_ = step.round;
        Await(step);
        if (step.bytes == 0) break;
        gets_.Add(
            call_.output + step.to,
            gpu_plan_.members[step.first].slots[Slot(step.round)] + step.from,
            step.bytes);
        break;
      case DeviceStepKind::kReduce:
        Await(step);
        Reduce(step, pipeline);
        break;
      case DeviceStepKind::kReduceToSlot:
      case DeviceStepKind::kReduceToBoth:
        Await(step);
        AwaitSlot(Reducing(step.round), step.to_round);
        Reduce(step, pipeline);
        Record(pipeline.reduced[PipelineOf(step.to_round)],
               Reducing(step.round));
        break;
      case DeviceStepKind::kRelease:
        // This step releases all rounds up to its own, of both pipelines. The
        // last `num_slots` of them include the last round of every slot.
        for (uint64_t back = 0; back < call_.num_slots && back <= step.round;
             ++back)
          Release(step.round - back);
        break;
      default:
        break;
    }
  }

  // Publishes that `round`, and all earlier rounds of its pipeline, have been
  // read.
  void Release(uint64_t round) {
    const int pipeline = PipelineOf(round);
    if (released_[pipeline] > round) return;
    released_[pipeline] = round + 1;
    Store(Retrieving(round), &mine_.released[pipeline].word,
          tag_ | (call_.base_round + round + 1));
  }

  // Waits until the step's sources have published. The first time it also waits
  // until each source reports that it is in the same call. A source in another
  // call never reports that. Then the wait does not end, and the hosts of the
  // two members find the reason.
  void Await(const DeviceStep& step) {
    const int pipeline = PipelineOf(step.round);
    const cudaStream_t stream = Retrieving(step.round);
    for (int member = step.first; member < step.last; ++member) {
      if (member == call_.self) continue;
      uint64_t& awaited = awaited_[pipeline][member];
      if (awaited == step.round + 1) continue;
      const SendLine& send = gpu_plan_.members[member].send[pipeline];
      Check(AwaitWord(stream, &send.published,
                      tag_ | (call_.base_round + step.round + 1),
                      CU_STREAM_WAIT_VALUE_GEQ));
      if (awaited == 0)
        Check(AwaitWord(stream, &send.calls[call_.call % kCallWords],
                        CallWord(call_.call, call_.hash),
                        CU_STREAM_WAIT_VALUE_EQ));
      awaited = step.round + 1;
    }
  }

  // Waits until this member's slot for `round` is free: no peer reads its old
  // contents. If the slot was last used before the series, waits until all
  // calls before the series have ended, because a kernel may have used the
  // slot, with separate words for its stripes.
  void AwaitSlot(cudaStream_t stream, uint64_t round) {
    const uint64_t in_all = call_.base_round + round;
    const bool in_series = in_all >= gpu_plan_.series_begin + call_.num_slots;
    const uint64_t rounds =
        in_series ? in_all + 1 - call_.num_slots : gpu_plan_.series_begin;
    if (rounds == 0) return;
    for (int member = 0; member < call_.num_members; ++member) {
      if (member == call_.self) continue;
      const MemberView& view = gpu_plan_.members[member];
      Check(AwaitWord(
          stream,
          in_series ? &view.released[PipelineOf(round)].word : view.ended,
          tag_ | rounds, CU_STREAM_WAIT_VALUE_GEQ));
    }
  }

  // Copies the peers' operands and reduces them. A peer's slot is free as soon
  // as its operands are copied.
  void Reduce(const DeviceStep& step, Pipeline& pipeline) {
    const cudaStream_t retrieving = Retrieving(step.round);
    const cudaStream_t reducing = Reducing(step.round);
    const int buffer = pipeline.buffer;
    pipeline.buffer = 1 - buffer;
    std::byte* const staging =
        gpu_plan_.staging +
        (2 * PipelineOf(step.round) + buffer) * gpu_plan_.staging_bytes;
    AwaitEvent(retrieving, pipeline.emptied[buffer]);
    std::byte* to = staging;
    for (int member = step.first; member < step.last; ++member) {
      if (member == call_.self) continue;
      operands_.Add(
          to, gpu_plan_.members[member].slots[Slot(step.round)] + step.from,
          step.bytes);
      to += StagedBytes(step.bytes);
    }
    Check(operands_.Enqueue(retrieving));
    Record(pipeline.staged[buffer], retrieving);
    AwaitEvent(reducing, pipeline.staged[buffer]);
    const uint64_t units =
        (step.bytes + call_.unit_bytes - 1) / call_.unit_bytes;
    const auto blocks = static_cast<uint32_t>(
        std::bit_floor(std::clamp<uint64_t>(units, 1, kReduceBlocks)));
    ReduceOnly<<<blocks, kMaxThreads, 0, reducing>>>(call_, step, staging);
    Check(cudaGetLastError());
    Record(pipeline.emptied[buffer], reducing);
  }

  uint64_t Slot(uint64_t round) const {
    return (call_.base_round + round) % call_.num_slots;
  }
  int PipelineOf(uint64_t round) const {
    return static_cast<int>(Slot(round) % pipelines_.size());
  }

  void Store(cudaStream_t stream, uint64_t* word, uint64_t value) {
    Check(StoreWordOn(stream, word, value));
  }
  void Record(const Event& event, cudaStream_t stream) {
    Check(cudaEventRecord(event.get(), stream));
  }
  void AwaitEvent(cudaStream_t stream, const Event& event) {
    Check(cudaStreamWaitEvent(stream, event.get()));
  }
  void Check(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  CopyEngine& engine_;
  const DeviceCall& call_;
  const CopyEnginePlan& gpu_plan_;
  const MemberView& mine_;
  const uint64_t tag_;
  const std::span<Pipeline> pipelines_;
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  std::vector<cudaStream_t> begun_;  // streams of this call
  cudaError_t error_ = cudaSuccess;
  Batch puts_, gets_, operands_;
  uint64_t putting_ = 0, getting_ = 0;  // current rounds
  bool named_[kPipelines] = {};         // whether the call's word is stored
  // In the next three arrays, the rounds of this call count from 1, and 0 means
  // that there is none yet. `free_` is the last round for whose slot a pipeline
  // has waited. `released_` is the last round that a pipeline has released.
  // `awaited_` is the last publication of each member for which a pipeline has
  // waited.
  uint64_t free_[kPipelines] = {};
  uint64_t released_[kPipelines] = {};
  uint64_t awaited_[kPipelines][kMaxMembers] = {};
};

Status CopyEngine::Open() {
  CXL_RETURN_IF_ERROR(
      CudaStatus(LoadKernels(Trap, ReduceOnly), "loading the kernels"));
  // High priority: waiting for a busy multiprocessor would leave the link idle.
  for (Pipeline& pipeline : pipelines_) {
    for (Stream* stream :
         {&pipeline.publishing, &pipeline.retrieving, &pipeline.reducing}) {
      CXL_ASSIGN_OR_RETURN(*stream, MakeUrgentStream());
    }
    for (auto* events :
         {&pipeline.staged, &pipeline.emptied, &pipeline.reduced}) {
      for (Event& event : *events) {
        CXL_ASSIGN_OR_RETURN(event, MakeEvent());
      }
    }
  }
  CXL_ASSIGN_OR_RETURN(end_, MakeUrgentStream());
  CXL_ASSIGN_OR_RETURN(stopping_, MakeUrgentStream());
  CXL_ASSIGN_OR_RETURN(event_, MakeEvent());
  return OkStatus();
}

cudaError_t CopyEngine::Enqueue(const DeviceCall& call,
                                const CopyEnginePlan& gpu_plan,
                                const CopyTimes& times, cudaStream_t stream) {
  return Walk(*this, call, gpu_plan, stream).Run(times);
}

void CopyEngine::Stop() { Trap<<<1, 1, 0, stopping_.get()>>>(); }

}  // namespace jax_cxl::cuda
