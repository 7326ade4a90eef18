#include "cc/store/cuda/staging.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"

namespace jax_cxl::comm {

Status Staging::Reserve(uint64_t bytes) {
  if (bytes <= bytes_) return OkStatus();
  if (bytes_ > 0)
    CXL_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaDeviceSynchronize(), "wait for residuals"));
  for (auto* buffers : {&outgoing_, &incoming_})
    for (StagingBuffer& buffer : *buffers) {
      buffer.position.reset();
      buffer.memory.reset();
      Result<DeviceMemory<std::byte>> memory = AllocateDevice<std::byte>(bytes);
      if (!memory.ok())
        return Error(Code::kResourceExhausted, "residuals of ", bytes,
                     " bytes need four times as much GPU memory besides the "
                     "memory that XLA reserves: decrease "
                     "XLA_PYTHON_CLIENT_MEM_FRACTION (",
                     memory.status().message(), ")");
      buffer.memory = std::move(*memory);
      for (cuda::Event* event : {&buffer.filled, &buffer.free}) {
        CXL_ASSIGN_OR_RETURN(*event, cuda::MakeEvent());
      }
    }
  bytes_ = bytes;
  return OkStatus();
}

StagingBuffer& Staging::NextOutgoing(const StoredValue& value) {
  turn_ = (turn_ + 1) % outgoing_.size();
  outgoing_[turn_].position = value.position;
  values_.push_back(value);
  return outgoing_[turn_];
}

std::optional<StoredValue> Staging::Expected() {
  if (values_.empty()) return std::nullopt;
  const StoredValue value = values_.back();
  values_.pop_back();
  return value;
}

StagingBuffer* Staging::Find(const StoredValue& value) {
  for (auto* buffers : {&outgoing_, &incoming_})
    for (StagingBuffer& buffer : *buffers)
      if (buffer.position == value.position) return &buffer;
  return nullptr;
}

std::optional<Staging::Fetch> Staging::NextFetch() {
  const size_t count = std::min(kAhead, values_.size());
  const auto next = values_.end() - static_cast<ptrdiff_t>(count);
  const auto wanted = [&](const StagingBuffer& buffer) {
    return std::any_of(next, values_.end(), [&](const StoredValue& value) {
      return buffer.position == value.position;
    });
  };
  const auto buffer = std::ranges::find_if_not(incoming_, wanted);
  if (buffer == incoming_.end()) return std::nullopt;
  for (size_t ahead = 1; ahead <= count; ++ahead) {
    const StoredValue& value = values_[values_.size() - ahead];
    if (Find(value) != nullptr) continue;
    buffer->position = value.position;
    return Fetch{value, &*buffer};
  }
  return std::nullopt;
}

void Staging::Forget(uint64_t head, uint64_t capacity) {
  while (!values_.empty() && head - values_.front().position > capacity)
    values_.pop_front();
}

}  // namespace jax_cxl::comm
