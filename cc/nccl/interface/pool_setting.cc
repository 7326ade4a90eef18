#include "cc/nccl/interface/pool_setting.h"

#include "cc/pool/media/medium.h"

namespace jax_cxl::nccl {

Result<pool::PoolUri> ReadSharedMemory(const std::string& uri) {
  const auto wrong = [&](Code code, const char* problem) {
    return Error(code, "JAX_CXL_NCCL_POOL is '", uri, "'; ", problem);
  };
  Result<pool::PoolUri> memory = pool::ParsePoolUri(uri);
  if (!memory.ok())
    return Error(memory.status().code(),
                 "JAX_CXL_NCCL_POOL: ", memory.status().message());
  const pool::PoolSpec& spec = memory->spec;
  if (spec.medium == &pool::Medium::Shm())
    return wrong(Code::kUnimplemented,
                 "name memory that several machines can map, by dax: or file:, "
                 "such as dax:/dev/dax0.0. Without JAX_CXL_NCCL_POOL, pools "
                 "lie in /dev/shm");
  if (spec.paths.size() > 1 || spec.devices_per_path > 1)
    return wrong(Code::kUnimplemented,
                 "collectives of NCCL use one device: name one path, and leave "
                 "devices= out");
  if (spec.medium == &pool::Medium::File() &&
      (spec.bytes > 0 || spec.offset > 0))
    return wrong(Code::kInvalidArgument,
                 "each communicator has a file of its own, whose size follows "
                 "from JAX_CXL_NCCL_RANK_BYTES: leave size= and offset= out");
  return memory;
}

}  // namespace jax_cxl::nccl
