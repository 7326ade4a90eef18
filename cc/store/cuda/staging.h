#ifndef JAX_CXL_STORE_CUDA_STAGING_H_
#define JAX_CXL_STORE_CUDA_STAGING_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"

namespace jax_cxl::comm {

// A value in the ring.
struct StoredValue {
  uint64_t position = 0;
  uint64_t bytes = 0;
};

// Memory of a GPU, through which values pass between the program and the store.
// Its events show when a value is there, and when the memory is free again.
struct StagingBuffer {
  DeviceMemory<std::byte> memory;
  cuda::Event filled;                // by the program, or by a copy engine
  cuda::Event free;                  // the value is no longer needed
  std::optional<uint64_t> position;  // of the value that it has
};

// The buffers of one named value of a layer. The program copies each value that
// it puts to an outgoing buffer, and goes on. A copy engine then copies the
// value from the buffer to the store. The backward pass needs the values in the
// opposite order. So the values that it needs next are fetched to incoming
// buffers ahead of time. If the backward pass needs another value, the kernel
// detects this and reads the value from the store itself.
//
// The GPU must no longer use the buffers when the object is destroyed. Not
// thread-safe.
class Staging {
 public:
  // Makes buffers of at least `bytes` bytes on the current device. Waits for
  // the device if it replaces smaller buffers.
  Status Reserve(uint64_t bytes);

  StagingBuffer& NextOutgoing(const StoredValue& value);

  // Removes and returns the last value that was put and not got. The program is
  // probably getting this value now.
  std::optional<StoredValue> Expected();
  StagingBuffer* Find(const StoredValue& value);
  // A value that should be fetched now, and the buffer for it.
  struct Fetch {
    StoredValue value;
    StagingBuffer* buffer = nullptr;
  };
  std::optional<Fetch> NextFetch();

  // Forgets the values that the ring has overwritten. `head` is the number of
  // bytes that all values so far have taken, and `capacity` is the size of the
  // ring in bytes.
  void Forget(uint64_t head, uint64_t capacity);

 private:
  // How many values are fetched while another value is in use.
  static constexpr size_t kAhead = 2;

  std::array<StagingBuffer, 2> outgoing_;
  std::array<StagingBuffer, kAhead> incoming_;
  size_t turn_ = 0;
  uint64_t bytes_ = 0;
  std::deque<StoredValue> values_;  // that were put and not got, in order
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_STORE_CUDA_STAGING_H_
