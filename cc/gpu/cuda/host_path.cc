#include "cc/gpu/cuda/host_path.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/streams.h"
#include "cc/plan/slices.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kPartAlignment = 4096;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

uint64_t IndexBytes(const plan::Request& request) {
  return request.rows.taken * sizeof(int32_t);
}

// Returns the bytes of the operands that an operation has besides its input if
// it moves rows: indices and published rows, or slices.
uint64_t RowOperandBytes(const plan::Request& request) {
  return request.op == plan::Op::kTakeRows
             ? IndexBytes(request) + request.rows.table
             : plan::SliceEntries(request) * sizeof(int64_t);
}

Status CopyAsync(void* to, const void* from, uint64_t bytes,
                 cudaStream_t stream) {
  if (bytes == 0) return OkStatus();
  return cuda::CudaStatus(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
      "copying through the host");
}

}  // namespace

// The host's work for a call, between the copies to and from pinned memory.
struct HostPath::Job {
  HostPath* path;
  std::vector<int32_t> members;
  std::unique_ptr<Call> call;
  uint64_t number;  // number of the call, from 1
};

HostPath::HostPath(Endpoint* endpoint, std::function<void(const Status&)> fail)
    : endpoint_(endpoint), fail_(std::move(fail)) {}

HostPath::~HostPath() {
  if (last_done_ != nullptr) cudaEventDestroy(last_done_);
}

Status HostPath::Open() {
  CXL_ASSIGN_OR_RETURN(status_, AllocatePinned<cuda::DeviceStatus>(1));
  CXL_ASSIGN_OR_RETURN(finished_, AllocatePinned<uint64_t>(1));
  return cuda::MakeEvent(&last_done_);
}

Status HostPath::Reserve(const plan::Request& request) {
  return ReserveBytes(Aligned(plan::InputBytes(request)) +
                      Aligned(plan::OutputBytes(request)) +
                      Aligned(RowOperandBytes(request)));
}

// Makes sure that there are at least `bytes` bytes of staging memory. The
// memory grows when a call is larger than any earlier call. Only then does the
// host wait for the device.
Status HostPath::ReserveBytes(uint64_t bytes) {
  if (bytes <= staging_bytes_) return OkStatus();
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaEventSynchronize(last_done_),
                                       "cudaEventSynchronize"));
  staging_.reset();
  staging_bytes_ = 0;
  CXL_ASSIGN_OR_RETURN(staging_, AllocatePinned<std::byte>(bytes));
  staging_bytes_ = bytes;
  return OkStatus();
}

void HostPath::Run(void* argument) {
  std::unique_ptr<Job> job(static_cast<Job*>(argument));
  HostPath* path = job->path;
  const plan::Request& request = job->call->request;
  if (plan::MovesRows(request.op) && request.count > 0)
    SetRows(job->call.get());
  auto done = [path, number = job->number](const Status& status) {
    if (!status.ok()) {
      path->fail_(status);
      return;
    }
    std::atomic_ref(path->finished_[0])
        .store(number, std::memory_order_release);
  };
  job->call->done = done;
  const std::optional<Status> finished =
      path->endpoint_->StartCall(job->members, std::move(job->call));
  if (finished) done(*finished);
}

Status HostPath::Enqueue(const std::vector<int32_t>& members, const Call& call,
                         cudaStream_t stream) {
  const uint64_t input_bytes = plan::InputBytes(call.request);
  const uint64_t output_bytes = plan::OutputBytes(call.request);
  if (calls_ > 0 && stream != last_stream_)
    CXL_RETURN_IF_ERROR(cuda::StreamWait(stream, last_done_));
  CXL_RETURN_IF_ERROR(Reserve(call.request));
  std::byte* input = staging_.get();
  std::byte* output = input + Aligned(input_bytes);
  std::byte* row_operands = output + Aligned(output_bytes);

  auto job = std::make_unique<Job>();
  job->path = this;
  job->members = members;
  job->call = std::make_unique<Call>(call);
  // All ranks execute the calls of a group in the order of the stream. So the
  // number of earlier calls of the group identifies this call on all ranks.
  job->call->identity = calls_of_group_[HashGroup(members)]++;
  job->call->input = input;
  job->call->output = output;
  job->number = ++calls_;

  CXL_RETURN_IF_ERROR(CopyAsync(input, call.input, input_bytes, stream));
  const RowOperands& operands = call.row_operands;
  RowOperands& copied = job->call->row_operands;
  if (operands.indices != nullptr) {
    copied.indices = reinterpret_cast<const int32_t*>(row_operands);
    CXL_RETURN_IF_ERROR(CopyAsync(row_operands, operands.indices,
                                  IndexBytes(call.request), stream));
  }
  if (operands.published != nullptr) {
    std::byte* published = row_operands + IndexBytes(call.request);
    copied.published = reinterpret_cast<const uint8_t*>(published);
    CXL_RETURN_IF_ERROR(CopyAsync(published, operands.published,
                                  call.request.rows.table, stream));
  }
  if (operands.slices != nullptr) {
    copied.slices = row_operands;
    CXL_RETURN_IF_ERROR(CopyAsync(
        row_operands, operands.slices,
        plan::SliceEntries(call.request) * operands.slice_entry_bytes, stream));
  }
  // A collective may not write all of its output. So copy the output's old
  // contents to pinned memory too, because the whole output is copied back.
  CXL_RETURN_IF_ERROR(CopyAsync(output, call.output, output_bytes, stream));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaLaunchHostFunc(stream, &HostPath::Run, job.get()),
                       "cudaLaunchHostFunc"));
  job.release();  // Run owns it
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cuda::LaunchWait(finished_.get(), calls_, status_.get(), stream),
      "waiting for the host"));
  CXL_RETURN_IF_ERROR(CopyAsync(call.output, output, output_bytes, stream));
  last_stream_ = stream;
  return cuda::Record(last_done_, stream);
}

void HostPath::Abort() {
  if (status_ != nullptr)
    std::atomic_ref(status_.get()->abort).store(1, std::memory_order_release);
}

}  // namespace jax_cxl::comm
