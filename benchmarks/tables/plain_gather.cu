// Gathers rows of pinned memory by a plain kernel, as libraries for graphs and
// embeddings do. For benchmarks/tables/gather.py, which compiles it:
//   nvcc -O3 -shared -Xcompiler=-fPIC plain_gather.cu -o libplain_gather.so

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace {

// Each row of threads (threadIdx.y) of a block copies one row of the table.
__global__ void Gather(const uint4* table, const int32_t* ids, uint4* out,
                       size_t vectors, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= count) return;
  const uint4* from = table + ids[i] * vectors;
  for (size_t v = threadIdx.x; v < vectors; v += blockDim.x)
    out[i * vectors + v] = from[v];
}

bool Failed(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return false;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return true;
}

// Calls `enqueue` once to warm up, and then `repeats` times, with a stream and
// the number of the call. Returns the average milliseconds of the work that one
// call enqueues, or -1 if the work fails.
template <typename Enqueue>
double Milliseconds(int repeats, const Enqueue& enqueue) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  if (Failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreate"))
    return -1;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  enqueue(stream, 0);
  cudaEventRecord(begin, stream);
  for (int i = 0; i < repeats; ++i) enqueue(stream, i + 1);
  cudaEventRecord(end, stream);
  float ms = 0;
  const bool failed = Failed(cudaStreamSynchronize(stream), "gather");
  if (!failed) cudaEventElapsedTime(&ms, begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return failed ? -1 : static_cast<double>(ms) / repeats;
}

}  // namespace

// Returns the milliseconds of a gather of `count` rows of `table`, which is
// registered host memory, or -1 if it fails. `ids` has `sets` sets of `count`
// ids. The sets take turns, because a GPU's cache would keep the rows of a
// single small set. `copy` gets the rows of the last gather, unless it is null.
// `ids` and `copy` are in host memory.
extern "C" double plain_gather(int device, const void* table,
                               const int32_t* ids, size_t sets, size_t count,
                               size_t row_bytes, int repeats, void* copy) {
  if (row_bytes % 16 != 0 || Failed(cudaSetDevice(device), "cudaSetDevice"))
    return -1;
  void* out = nullptr;
  void* device_ids = nullptr;
  double ms = -1;
  if (!Failed(cudaMalloc(&out, count * row_bytes), "cudaMalloc") &&
      !Failed(cudaMalloc(&device_ids, sets * count * sizeof(*ids)),
              "cudaMalloc") &&
      !Failed(cudaMemcpy(device_ids, ids, sets * count * sizeof(*ids),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy")) {
    const size_t vectors = row_bytes / 16;
    unsigned lanes = 1;
    while (lanes < 32 && lanes < vectors) lanes *= 2;
    const dim3 block(lanes, 256 / lanes);
    const auto blocks = static_cast<unsigned>((count + block.y - 1) / block.y);
    ms = Milliseconds(repeats, [&](cudaStream_t stream, size_t turn) {
      Gather<<<blocks, block, 0, stream>>>(
          static_cast<const uint4*>(table),
          static_cast<const int32_t*>(device_ids) + turn % sets * count,
          static_cast<uint4*>(out), vectors, count);
    });
    if (copy != nullptr &&
        Failed(cudaMemcpy(copy, out, count * row_bytes, cudaMemcpyDeviceToHost),
               "cudaMemcpy"))
      ms = -1;
  }
  cudaFree(out);
  cudaFree(device_ids);
  return ms;
}

// Returns the milliseconds of a copy of registered host memory to the device,
// or -1 if it fails.
extern "C" double plain_copy(int device, const void* from, size_t bytes,
                             int repeats) {
  void* out = nullptr;
  if (Failed(cudaSetDevice(device), "cudaSetDevice") ||
      Failed(cudaMalloc(&out, bytes), "cudaMalloc"))
    return -1;
  const double ms = Milliseconds(repeats, [&](cudaStream_t stream, size_t) {
    cudaMemcpyAsync(out, from, bytes, cudaMemcpyHostToDevice, stream);
  });
  cudaFree(out);
  return ms;
}
