#include "cc/comm/cuda/host_path.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kAlignment = 4096;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t IndexBytes(const plan::Request& request) {
  return request.rows.taken * sizeof(int32_t);
}

Status CopyAsync(void* to, const void* from, uint64_t bytes,
                 cudaStream_t stream) {
  if (bytes == 0) return OkStatus();
  return cuda::CudaStatus(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
      "copying through the host");
}

}  // namespace

// The host's work in the middle of a call.
struct HostPath::Job {
  HostPath* path;
  std::vector<int32_t> members;
  std::unique_ptr<Call> call;
  const std::byte* table;
  Table layout;
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
  return cuda::CudaStatus(
      cudaEventCreateWithFlags(&last_done_, cudaEventDisableTiming),
      "cudaEventCreate");
}

Status HostPath::Reserve(const plan::Request& request) {
  const uint64_t entries =
      4 * request.num_ranks * request.ragged.slices * sizeof(int64_t) +
      IndexBytes(request) + request.rows.table;
  return ReserveBytes(Aligned(plan::InputBytes(request)) +
                      Aligned(plan::OutputBytes(request)) + Aligned(entries));
}

// The memory grows with the largest call. Only then does the host wait for the
// device.
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
  if (request.op == plan::Op::kTakeRows && request.count > 0) {
    const auto* indices = reinterpret_cast<const int32_t*>(job->table);
    const auto* published =
        reinterpret_cast<const uint8_t*>(job->table + IndexBytes(request));
    job->call->rows = std::make_shared<const cpu::TakenRows>(cpu::TakenRows::Of(
        request, {indices, request.rows.taken},
        {published, job->call->row_operands.published == nullptr
                        ? 0
                        : request.rows.table}));
  }
  std::vector<int64_t>& table = job->call->table;
  for (uint64_t i = 0; i < job->layout.count; ++i) {
    const std::byte* entry = job->table + i * job->layout.entry_bytes;
    table.push_back(job->layout.entry_bytes == sizeof(int32_t)
                        ? *reinterpret_cast<const int32_t*>(entry)
                        : *reinterpret_cast<const int64_t*>(entry));
  }
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
                         const Table& table, cudaStream_t stream) {
  const uint64_t input_bytes = plan::InputBytes(call.request);
  const uint64_t output_bytes = plan::OutputBytes(call.request);
  const bool takes_rows = call.request.op == plan::Op::kTakeRows;
  const uint64_t table_bytes =
      takes_rows ? IndexBytes(call.request) + call.request.rows.table
                 : table.count * table.entry_bytes;
  if (calls_ > 0 && stream != last_stream_)
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaStreamWaitEvent(stream, last_done_), "cudaStreamWaitEvent"));
  CXL_RETURN_IF_ERROR(ReserveBytes(
      Aligned(input_bytes) + Aligned(output_bytes) + Aligned(table_bytes)));
  std::byte* input = staging_.get();
  std::byte* output = input + Aligned(input_bytes);
  std::byte* entries = output + Aligned(output_bytes);

  auto job = std::make_unique<Job>();
  job->path = this;
  job->members = members;
  job->call = std::make_unique<Call>(call);
  // The calls of a group have the order of the stream on all ranks.
  job->call->identity = calls_of_group_[HashGroup(members)]++;
  job->call->input = input;
  job->call->output = output;
  job->table = entries;
  job->layout = table;
  job->number = ++calls_;

  CXL_RETURN_IF_ERROR(CopyAsync(input, call.input, input_bytes, stream));
  if (takes_rows) {
    const Call::RowOperands& operands = call.row_operands;
    CXL_RETURN_IF_ERROR(
        CopyAsync(entries, operands.indices, IndexBytes(call.request), stream));
    if (operands.published != nullptr)
      CXL_RETURN_IF_ERROR(CopyAsync(entries + IndexBytes(call.request),
                                    operands.published, call.request.rows.table,
                                    stream));
  } else {
    CXL_RETURN_IF_ERROR(CopyAsync(entries, table.entries, table_bytes, stream));
  }
  // Not every collective writes all of its output.
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
  return cuda::CudaStatus(cudaEventRecord(last_done_, stream),
                          "cudaEventRecord");
}

void HostPath::Abort() {
  if (status_ != nullptr)
    std::atomic_ref(status_.get()->abort).store(1, std::memory_order_release);
}

}  // namespace jax_cxl::comm
