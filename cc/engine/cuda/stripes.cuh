#ifndef JAX_CXL_ENGINE_CUDA_STRIPES_CUH_
#define JAX_CXL_ENGINE_CUDA_STRIPES_CUH_

#include <cstdint>

namespace jax_cxl::cuda {

// The 16-byte vectors of slot bytes [at, at + bytes) that lie in a block's
// stripes (see Stripes), counted from 0.
class StripeVectors {
 public:
  __device__ StripeVectors(uint64_t at, uint64_t bytes, uint32_t unit_bytes,
                           uint32_t block, uint32_t num_blocks)
      : at_(at), bytes_(bytes), block_stride_(num_blocks) {
    unit_shift_ = 31 - __clz(unit_bytes);
    const uint64_t first = at >> unit_shift_;
    const uint64_t end = (at + bytes + unit_bytes - 1) >> unit_shift_;
    first_unit_ = first + ((block - first) & (num_blocks - 1));
    const uint64_t units = bytes == 0 || first_unit_ >= end
                               ? 0
                               : (end - 1 - first_unit_) / num_blocks + 1;
    size_ = static_cast<uint32_t>(units << (unit_shift_ - 4));
  }

  __device__ uint32_t size() const { return size_; }

  // Returns the number of bytes from `at` to vector i. For a vector outside the
  // range, returns at least `bytes`.
  __device__ uint64_t Offset(uint32_t i) const {
    const uint32_t per_unit_shift = unit_shift_ - 4;
    const uint64_t unit =
        first_unit_ + uint64_t{i >> per_unit_shift} * block_stride_;
    const uint64_t x =
        (unit << unit_shift_) + ((i & ((1u << per_unit_shift) - 1)) << 4);
    return x >= at_ ? x - at_ : bytes_;
  }

 private:
  uint64_t at_;
  uint64_t bytes_;
  uint32_t block_stride_;
  uint32_t unit_shift_;
  uint64_t first_unit_;
  uint32_t size_;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_STRIPES_CUH_
