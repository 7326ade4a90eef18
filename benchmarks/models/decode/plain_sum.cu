// A custom call of XLA that calls ncclAllReduce of the libnccl that the program
// names, and nothing else: the least that a library with NCCL's interface costs
// inside a program.
//
//   nvcc -O2 -std=c++17 -Xcompiler -fPIC -shared -I JAX_FFI_INCLUDE_DIR \
//       plain_sum.cu -o libplain_sum.so -ldl
//
// decode.py loads the library. One process may use two libnccls: each has a
// number. The numbers after these are calls that sum nothing: one does nothing
// at all, and one launches a kernel that does nothing. They show what XLA needs
// for any custom call.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

struct UniqueId {
  char bytes[128];
};
constexpr int kBfloat16 = 9, kFloat32 = 7, kSum = 0;

struct Library {
  int (*all_reduce)(const void*, void*, size_t, int, int, void*,
                    cudaStream_t) = nullptr;
  int (*init_rank)(void**, int, UniqueId, int) = nullptr;
  int (*unique_id)(UniqueId*) = nullptr;
  void* communicator = nullptr;
  std::vector<float> host_us;
};
constexpr int64_t kLibraries = 2, kNothing = 2, kKernel = 3;
Library libraries[kLibraries];

__global__ void Nothing() {}

double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ffi::Error Run(cudaStream_t stream, int64_t number, ffi::AnyBuffer input,
               ffi::Result<ffi::AnyBuffer> output) {
  if (number == kKernel) Nothing<<<1, 32, 0, stream>>>();
  if (number >= kLibraries) return ffi::Error::Success();
  Library& library = libraries[number];
  const int type = input.element_type() == ffi::BF16 ? kBfloat16 : kFloat32;
  const double begin = NowUs();
  const int error = library.all_reduce(
      input.untyped_data(), output->untyped_data(), input.element_count(), type,
      kSum, library.communicator, stream);
  library.host_us.push_back(static_cast<float>(NowUs() - begin));
  if (error == 0) return ffi::Error::Success();
  return ffi::Error::Internal("ncclAllReduce returns " + std::to_string(error));
}

}  // namespace

// These return 0 on success.
extern "C" int plain_sum_load(int number, const char* path) {
  void* file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  Library& library = libraries[number];
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        dlsym(file, name));
    return function != nullptr;
  };
  return !(find(library.all_reduce, "ncclAllReduce") &&
           find(library.init_rank, "ncclCommInitRank") &&
           find(library.unique_id, "ncclGetUniqueId"));
}

extern "C" int plain_sum_unique_id(int number, char* out) {
  return libraries[number].unique_id(reinterpret_cast<UniqueId*>(out));
}

extern "C" int plain_sum_open(int number, const char* id, int size, int rank) {
  UniqueId copy;
  std::memcpy(&copy, id, sizeof(copy));
  Library& library = libraries[number];
  return library.init_rank(&library.communicator, size, copy, rank);
}

// Writes the host's times of the calls since the last time, in us. Returns how
// many there are.
extern "C" int plain_sum_times(int number, float* out, int most) {
  std::vector<float>& times = libraries[number].host_us;
  const int count = std::min<int>(most, static_cast<int>(times.size()));
  std::memcpy(out, times.data(), count * sizeof(float));
  times.clear();
  return count;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(PlainSum, Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("number")
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
