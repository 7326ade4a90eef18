#ifndef JAX_CXL_POOL_MEDIA_MEDIUM_H_
#define JAX_CXL_POOL_MEDIA_MEDIUM_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/open/file.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

struct PoolSpec;

// The kind of memory that holds a pool. This class contains everything that
// differs from one medium to another: names, permissions, locks and sizes. Once
// a pool is mapped, all media are the same.
//
// A new medium is a class of its own, an entry of All, and a kind in
// jax_cxl/_job/pool/pool_uri.py. Immutable.
class Medium {
 public:
  virtual ~Medium() = default;

  static const Medium& Shm();   // a file in /dev/shm
  static const Medium& File();  // other files
  static const Medium& Dax();   // CXL memory, as /dev/dax*
  static std::vector<const Medium*> All() { return {&Shm(), &File(), &Dax()}; }
  // Returns the medium with this name. Fails with kInvalidArgument.
  static Result<const Medium*> Find(std::string_view name);

  // What comes before the colon of a pool URI.
  virtual std::string_view name() const = 0;
  // Returns true if other jobs, including jobs on other hosts, can open the
  // memory. Their heartbeats then decide who may take it, and memory may
  // outlive its job.
  virtual bool shared() const = 0;
  // Returns true if the medium creates missing paths, and allocates memory when
  // a pool takes it. For other media, the paths must exist and already have all
  // of their memory.
  virtual bool allocates() const = 0;
  // Sizes and offsets must be multiples of this. It is the unit that is known
  // before a path is open; an open device may need a larger unit.
  virtual uint64_t unit_bytes() const = 0;
  // Checks `spec.paths` and `spec.devices_per_path`; opens nothing.
  virtual Status Check(const PoolSpec& spec) const = 0;

  // Reserves the names of the pool for this job while the result is open. The
  // result is invalid if the medium need not do that.
  virtual Result<UniqueFd> ReserveNames(const PoolSpec& spec) const;
  // Returns the path in the file system of one of `spec.paths`.
  virtual std::string PathOf(const std::string& given) const { return given; }
  // Open a path for the job's first process, and for its others.
  virtual Result<PoolFile> OpenForCreate(const std::string& path,
                                         uint64_t offset) const = 0;
  virtual Result<PoolFile> OpenForAttach(const std::string& path) const = 0;
  // Returns the bytes in each path, for a pool with the open `files`. 0 means
  // that Take determines them for each path.
  virtual Result<uint64_t> PathBytes(const PoolSpec& spec,
                                     const std::vector<PoolFile>& files,
                                     int world_size, bool creating) const = 0;
  // Returns the part of an open path that `spec` names; 0 bytes stand for the
  // rest of the path. Locks the part if pools share the path.
  virtual Result<MapPiece> Take(PoolFile& file, const PoolSpec& spec,
                                bool creating) const = 0;

  // Returns the coherence mode for memory that outlives its jobs.
  virtual CoherenceMode DurableMode(CoherenceMode mode) const { return mode; }
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_MEDIUM_H_
