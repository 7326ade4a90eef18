#include "cc/nccl/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>

#include "cc/base/cuda/cuda_status.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/premultiplied/premultiplied.h"
#include "cc/engine/cuda/transfers/transfers.h"
#include "cc/gpu/cuda/channel/device_connection.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::nccl {
namespace {

using comm::CountedCall;
using comm::CountedChannel;
using cuda::CudaStatus;

constexpr auto kPollInterval = std::chrono::microseconds(100);
// How long a process that exits waits until its peers have its last data.
constexpr auto kExitTime = std::chrono::seconds(1);

constexpr uint64_t kLeastSlotBytes = uint64_t{64} << 10;
constexpr uint64_t kMostPairSlotBytes = uint64_t{2} << 20;
constexpr int kPairSlots = 4;
// On two H200s, collectives were faster with 32 thread blocks than with 64. And
// sends of 512 KiB and 1 MiB were faster in chunks of 256 KiB than of 512 KiB.
constexpr uint64_t kBlocks = 32;
constexpr uint64_t kPairChunkBytes = uint64_t{256} << 10;
// Sends of 128 KiB are faster with flags, and sends of 256 KiB without.
constexpr uint64_t kPairFlaggedBytes = uint64_t{128} << 10;
constexpr uint64_t kPairSalt = 0x70616972;
constexpr uint32_t kMostPairBlocks = 32;
constexpr uint32_t kPairThreads = 256;  // in each direction

constexpr uint64_t Or(uint64_t value, uint64_t otherwise) {
  return value > 0 ? value : otherwise;
}

// Reads the table that JAX_CXL_TUNING names, if there is one. That of rank 0
// counts.
Result<comm::Tuning> ReadTable() {
  const char* path = std::getenv("JAX_CXL_TUNING");
  if (path == nullptr || *path == '\0') return comm::Tuning();
  const std::ifstream file(path);
  if (!file)
    return Error(Code::kNotFound, "cannot read JAX_CXL_TUNING=", path,
                 " on rank 0; correct the path, or unset the variable");
  std::ostringstream text;
  text << file.rdbuf();
  Result<comm::Tuning> table = comm::ParseTuning(text.str());
  if (!table.ok())
    return Error(table.status().code(), "JAX_CXL_TUNING=", path, ": ",
                 table.status().message());
  return table;
}

// Returns the folder of a GPU in /sys, or an empty text.
std::string FolderOf(int ordinal) {
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, sizeof(bus), ordinal) != cudaSuccess)
    return "";
  std::string folder = std::string("/sys/bus/pci/devices/") + bus;
  std::ranges::transform(folder, folder.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  return folder;
}

// Finds out what the other ranks have to know about a GPU.
Status Describe(int ordinal, int rank, Facts* facts) {
  cudaDeviceProp properties;
  CXL_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal),
                                 "cudaGetDeviceProperties"));
  facts->multiprocessors = properties.multiProcessorCount;
  facts->link_mb_per_s = LinkOf(FolderOf(ordinal));
  if (rank == 0) {
    CXL_ASSIGN_OR_RETURN(facts->tuning, ReadTable());
  }
  static_assert(sizeof(facts->gpu) == sizeof(properties.uuid));
  std::memcpy(facts->gpu, &properties.uuid, sizeof(facts->gpu));
  return OkStatus();
}

std::vector<cudaStream_t> StreamsOf(std::span<const Transfer> transfers) {
  std::vector<cudaStream_t> streams;
  for (const Transfer& transfer : transfers) {
    auto* stream = static_cast<cudaStream_t>(transfer.stream);
    if (std::ranges::find(streams, stream) == streams.end())
      streams.push_back(stream);
  }
  return streams;
}

}  // namespace

CudaDevice::CudaDevice(Job* job, int ordinal, const Settings& settings)
    : job_(job), ordinal_(ordinal), settings_(settings) {
  options_.timeout_s = settings.timeout_s;
  options_.warn_after_s = settings.warn_after_s;
  options_.gpu_writes_memory =
      settings.shared_memory && settings.shared_memory->gpu_writes_memory;
}

Result<std::unique_ptr<Device>> CudaDevice::Make(
    Job* job, int ordinal, const Settings& settings,
    const std::atomic<bool>& cancel) {
  const OnDevice on_device(ordinal);
  std::unique_ptr<CudaDevice> device(new CudaDevice(job, ordinal, settings));
  CXL_RETURN_IF_ERROR(device->Open(cancel));
  return std::unique_ptr<Device>(std::move(device));
}

CudaDevice::~CudaDevice() {
  const OnDevice on_device(ordinal_);
  // Kernels use the objects destroyed below. After Abort they end soon.
  static_cast<void>(order_.Drain());
  AwaitRelay();
  relay_.reset();
  pairs_.clear();
  channel_.reset();
}

// All ranks learn why one of them cannot take part.
Status CudaDevice::Agree() {
  Facts mine;
  mine.rank_bytes = job_->rank_bytes();
  mine.coherence = static_cast<uint32_t>(job_->pool()->coherence().mode());
  mine.gpu_writes_memory = options_.gpu_writes_memory;
  // Registered memory is memory that is taken. So if the pool takes it later,
  // only find out whether this GPU can use the pool at all.
  Status problem = Register(job_->pool()->reserved()
                                ? job_->pool()->total_bytes()
                                : pool::RecorderOffset(0, job_->size()));
  if (problem.ok()) problem = Describe(ordinal_, job_->rank(), &mine);
  for (const auto preload :
       {cuda::Preload, cuda::PreloadFlagged, cuda::PreloadPremultiplied,
        cuda::PreloadTransfers})
    if (problem.ok()) problem = CudaStatus(preload(), "loading kernels");
  problem.message().copy(mine.problem, sizeof(mine.problem) - 1);
  CXL_ASSIGN_OR_RETURN(const std::vector<std::byte> blocks,
                       job_->AllGather(std::as_bytes(std::span(&mine, 1))));
  std::vector<Facts> facts(job_->size());
  std::memcpy(facts.data(), blocks.data(), blocks.size());
  CXL_ASSIGN_OR_RETURN(const int least, LeastMultiprocessors(facts));
  Choose(facts);
  // The blocks of all transfers that run side by side have to fit on the
  // device at the same time, with room for other kernels.
  const int budget = std::max(2, least * 3 / 4);
  const int distances = std::clamp(
      job_->size() - 1, 1, std::min<int>(cuda::kMostTransfers, budget) / 2);
  most_transfers_ = 2 * distances;
  pair_options_.shape.blocks = std::bit_floor(std::min(
      static_cast<uint32_t>(budget / most_transfers_), kMostPairBlocks));
  return OkStatus();
}

// Chooses what depends on the speed of the links. All ranks choose the same.
// The built-in numbers were measured on links of kMeasuredLink. A wait takes
// about as long on other links, but a slower link moves fewer bytes in that
// time.
void CudaDevice::Choose(std::span<const Facts> ranks) {
  const comm::Tuning& table = ranks[0].tuning;
  const uint32_t link =
      std::ranges::min_element(ranks, {}, &Facts::link_mb_per_s)->link_mb_per_s;
  const auto scaled = [&](uint64_t bytes) {
    return std::max(
        kLeastSlotBytes,
        std::bit_floor(bytes * std::min(link, kMeasuredLink) / kMeasuredLink));
  };
  const uint64_t size = job_->size();
  options_.shape.blocks =
      std::bit_floor(static_cast<uint32_t>(Or(table.nccl_blocks, kBlocks)));
  // Only kernels execute these calls.
  options_.slot_bytes = comm::KernelSlotBytes(options_, static_cast<int>(size));
  options_.kernel_min_chunk_bytes =
      Or(table.nccl_chunk_bytes, scaled(options_.kernel_min_chunk_bytes));
  options_.flagged_slot_bytes =
      Or(table.nccl_flagged_bytes, scaled(options_.flagged_slot_bytes));
  pair_options_ = options_;
  pair_options_.channel_salt = kPairSalt;
  pair_options_.num_slots = kPairSlots;
  const uint64_t channels = std::max<uint64_t>(2 * (size - 1), 2);
  const uint64_t flagged =
      Or(table.nccl_send_flagged_bytes, scaled(kPairFlaggedBytes));
  const bool fits =
      channels * cuda::FlaggedRingBytes(flagged) <= job_->rank_bytes() / 4;
  pair_options_.flagged_slot_bytes = fits ? flagged : plan::kFlaggedBytes;
  pair_options_.slot_bytes =
      std::clamp(std::bit_floor(job_->rank_bytes() / 2 / channels / kPairSlots),
                 kLeastSlotBytes, kMostPairSlotBytes);
  pair_options_.kernel_min_chunk_bytes =
      Or(table.nccl_send_chunk_bytes, scaled(kPairChunkBytes));
  pair_options_.shape.sending_threads = kPairThreads;
  pair_options_.shape.receiving_threads = kPairThreads;
}

Status CudaDevice::Open(const std::atomic<bool>& cancel) {
  CXL_RETURN_IF_ERROR(Agree());
  const pool::Coherence& coherence = job_->pool()->coherence();
  if (coherence.cache() != nullptr)
    relay_ = std::make_unique<comm::Relay>(
        coherence, comm::DefaultFlushThreads(/*gpus=*/1),
        options_.flush_piece_bytes);
  CXL_RETURN_IF_ERROR(order_.Open());
  std::vector<int32_t> members(job_->size());
  std::iota(members.begin(), members.end(), 0);
  CXL_ASSIGN_OR_RETURN(channel_, MakeChannel(members, options_));
  for (;;) {
    CXL_ASSIGN_OR_RETURN(const bool connected, channel_->TryConnect());
    if (connected) return OkStatus();
    if (cancel) return AbortedWhileMeeting();
    std::this_thread::sleep_for(kPollInterval);
  }
}

Result<std::unique_ptr<CountedChannel>> CudaDevice::MakeChannel(
    const std::vector<int32_t>& members, const comm::DeviceOptions& options) {
  CXL_ASSIGN_OR_RETURN(comm::Group group, job_->endpoint()->GroupOf(members));
  // A rank alone needs no relay, and could be too fast for one (DeviceJournal).
  auto channel = std::make_unique<CountedChannel>(
      job_->pool(), job_->peers(), options, std::move(group), &plans_,
      members.size() > 1 ? relay_.get() : nullptr);
  CXL_RETURN_IF_ERROR(
      channel->Open(job_->endpoint()->arena(), job_->endpoint()->recorder()));
  std::lock_guard lock(watched_mutex_);
  watched_.push_back(channel.get());
  return channel;
}

Status CudaDevice::Register(uint64_t end) {
  CXL_ASSIGN_OR_RETURN(
      registrations_.emplace_back(),
      comm::PoolRegistration::Create(job_->pool()->base() + registered_,
                                     end - registered_, {ordinal_}));
  registered_ = end;
  return OkStatus();
}

// CUDA allows a registration to wait for kernels, as allocations may. No other
// rank waits for this one meanwhile, except for its kernels.
Status CudaDevice::MakeRoom() {
  const uint64_t total = job_->pool()->total_bytes();
  if (registered_ == total && !plans_.lacks_room()) return OkStatus();
  const OnDevice on_device(ordinal_);
  if (registered_ < total) CXL_RETURN_IF_ERROR(Register(total));
  return plans_.lacks_room() ? plans_.MakeRoom() : OkStatus();
}

Status CudaDevice::OpenPair(int source, int destination) {
  std::unique_ptr<CountedChannel>& channel = pairs_[{source, destination}];
  if (channel != nullptr) return OkStatus();
  const OnDevice on_device(ordinal_);
  Result<std::unique_ptr<CountedChannel>> made =
      MakeChannel({source, destination}, pair_options_);
  if (made.status().code() == Code::kResourceExhausted)
    return Error(Code::kResourceExhausted,
                 "sends between many ranks need more memory; raise "
                 "JAX_CXL_NCCL_RANK_BYTES on all ranks (",
                 made.status().message(), ")");
  if (made.ok()) channel = *std::move(made);
  return made.status();
}

Result<bool> CudaDevice::TryConnectPair(int source, int destination) {
  const OnDevice on_device(ordinal_);
  return pairs_[{source, destination}]->TryConnect();
}

Status CudaDevice::Enqueue(const Collective& collective, Stream stream) {
  const comm::Call& call = collective.call;
  const OnDevice on_device(ordinal_);
  CXL_ASSIGN_OR_RETURN(
      const CountedCall counted,
      channel_->Prepare(call, collective.divisor, collective.factor));
  const std::vector<cudaStream_t> streams = {static_cast<cudaStream_t>(stream)};
  CXL_RETURN_IF_ERROR(order_.Before(streams));
  CXL_RETURN_IF_ERROR(CudaStatus(channel_->Launch(counted, streams[0]),
                                 "launching a collective"));
  return order_.After(streams);
}

Status CudaDevice::SendAndReceive(std::span<const Transfer> transfers) {
  const OnDevice on_device(ordinal_);
  std::vector<cuda::DeviceTransfer> calls;
  std::vector<const Transfer*> copies;  // that are not among the calls
  for (const Transfer& transfer : transfers) {
    const auto bytes = static_cast<uint32_t>(transfer.bytes);
    if (transfer.local()) {
      if (calls.size() < cuda::kMostTransfers &&
          transfer.bytes <= cuda::kMostCopiedByKernel)
        calls.push_back(cuda::MakeCopy(transfer.output, transfer.input, bytes));
      else
        copies.push_back(&transfer);
      continue;
    }
    CountedChannel& channel = *pairs_[{transfer.source, transfer.destination}];
    comm::Call call = CallOf(transfer, job_->rank());
    // At the source, the output is the input buffer, which the call does not
    // change.
    if (call.output == nullptr)
      call.output = const_cast<std::byte*>(call.input);
    CXL_ASSIGN_OR_RETURN(const CountedCall counted, channel.Prepare(call, 0));
    if (counted.plan->flagged)
      calls.push_back({counted.device, cuda::Way::kFlagged, bytes});
    else
      calls.push_back({counted.device, cuda::Way::kSlots});
  }
  const std::vector<cudaStream_t> streams = StreamsOf(transfers);
  CXL_RETURN_IF_ERROR(order_.Before(streams));
  for (const Transfer* copy : copies)
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(copy->output, copy->input, copy->bytes,
                                   cudaMemcpyDeviceToDevice, streams[0]),
                   "copying a send to the rank itself"));
  if (!calls.empty())
    CXL_RETURN_IF_ERROR(CudaStatus(
        cuda::LaunchTransfers(calls, pair_options_.shape, streams[0]),
        "launching sends and receives"));
  return order_.After(streams);
}

Status CudaDevice::Drain() {
  const OnDevice on_device(ordinal_);
  CXL_RETURN_IF_ERROR(order_.Drain());
  AwaitRelay();
  return OkStatus();
}

bool CudaDevice::RelayIsDone() {
  std::lock_guard lock(watched_mutex_);
  return std::ranges::all_of(watched_, [](const CountedChannel* channel) {
    return channel->RelayIsDone();
  });
}

// Does not hold the mutex while it waits, because Abort needs it.
void CudaDevice::AwaitRelay(comm::Clock::time_point deadline) {
  while (relay_ != nullptr && !RelayIsDone() && comm::Clock::now() < deadline)
    std::this_thread::sleep_for(kPollInterval);
}

void CudaDevice::EndThreads() {
  AwaitRelay(comm::Clock::now() + kExitTime);
  relay_.reset();
}

Status CudaDevice::Check(comm::Clock::time_point now) {
  // Before the first call, the memory of the channels may not be there yet.
  if (registered_ < job_->pool()->total_bytes()) return OkStatus();
  std::lock_guard lock(watched_mutex_);
  for (CountedChannel* channel : watched_)
    CXL_RETURN_IF_ERROR(channel->Check(now));
  return OkStatus();
}

void CudaDevice::Abort() {
  std::lock_guard lock(watched_mutex_);
  for (CountedChannel* channel : watched_) channel->Abort();
}

}  // namespace jax_cxl::nccl
