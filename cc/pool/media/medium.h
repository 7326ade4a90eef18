#ifndef JAX_CXL_POOL_MEDIA_MEDIUM_H_
#define JAX_CXL_POOL_MEDIA_MEDIUM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/interposer.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/open/file.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

struct PoolSpec;

// The part of a device in which pools may lie. Offsets and sizes of pools are
// multiples of `align`.
struct DevicePart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t align = 1;
};

// The kind of memory that holds a pool. This class contains everything that
// differs from one medium to another: names, permissions, locks and sizes. Once
// a pool is mapped, its medium makes no difference.
//
// docs/extending.md shows how to add one.
//
// Immutable.
class Medium {
 public:
  virtual ~Medium() = default;

  static const Medium& Shm();   // a file in /dev/shm
  static const Medium& File();  // other files
  static const Medium& Dax();   // CXL memory, as /dev/dax*
  static std::vector<const Medium*> All() { return {&Shm(), &File(), &Dax()}; }
  // Returns the medium with this name. Fails with kInvalidArgument if there is
  // none.
  static Result<const Medium*> Find(std::string_view name);

  // The part of a pool URI before the colon.
  virtual std::string_view name() const = 0;
  // Returns true if other jobs, including jobs on other hosts, can open the
  // memory. A job may then take the memory only if the heartbeats of the job in
  // it have stopped. Such memory may outlive its job.
  virtual bool shared() const = 0;
  // Returns true if the medium creates missing paths, and allocates their
  // memory when a pool takes them. For other media, the paths must exist and
  // already have all of their memory.
  virtual bool allocates() const = 0;
  // Checks the requirements that only this medium has for `spec.paths` and
  // `spec.devices_per_path`. Opens nothing.
  virtual Status Check(const PoolSpec&) const { return OkStatus(); }

  // Reserves the names of the pool for this job, as long as the returned
  // descriptor is open. The descriptor is invalid if the medium need not
  // reserve names.
  virtual Result<UniqueFd> ReserveNames(const PoolSpec&) const {
    return UniqueFd();
  }
  // Returns the path in the file system for `given`, one of PoolSpec::paths.
  virtual std::string PathOf(const std::string& given) const { return given; }
  // Opens a path. `creating` is true in the process that creates the pool, and
  // false in all other processes of the job.
  virtual Result<PoolFile> Open(const std::string& path, uint64_t offset,
                                bool creating) const = 0;
  // Returns how many bytes of each path a pool with the open `files` uses. 0
  // means that Take determines the size for each path.
  virtual Result<uint64_t> PathBytes(const PoolSpec& spec,
                                     const std::vector<PoolFile>& files,
                                     int world_size, bool creating) const = 0;
  // Returns the part of an open path that `spec` names. If spec.bytes is 0, it
  // is the rest of the path. Locks the part if several pools can share the
  // path.
  virtual Result<MapPiece> Take(PoolFile& file, const PoolSpec& spec,
                                bool creating) const = 0;

  // Returns the part of the first path that `spec` names, in which several
  // pools may lie side by side. Returns nothing if a path holds only one pool.
  virtual Result<std::optional<DevicePart>> PartOf(const PoolSpec&) const {
    return std::optional<DevicePart>();
  }

  // Returns the coherence mode for memory that outlives its jobs, if the mode
  // for a pool would be `mode`.
  virtual CoherenceMode DurableMode(CoherenceMode mode) const { return mode; }
};

// Where a pool lies.
struct PoolSpec {
  const Medium* medium = &Medium::Shm();
  // Shm: one name, without a slash. Other media: one path per pool device.
  std::vector<std::string> paths;
  // Bytes of the pool in each path. 0 means the rest of a device or of an
  // existing file, and AutomaticPathBytes for a new file.
  uint64_t bytes = 0;
  int devices_per_path = 1;  // files: equal extents in each path
  uint64_t offset = 0;       // where the pool starts in each path, in bytes
  CoherenceMode coherence = CoherenceMode::kCoherent;
  // If this is not 0, Create reserves only the control pages and this many
  // bytes of each arena, and Pool::Reserve the rest. Only Shm supports this.
  uint64_t idle_arena_bytes = 0;
  // The token by which processes recognize the pool that they attach, if they
  // must know the token before the pool is created. 0: Create chooses a random
  // token.
  uint64_t token = 0;
  // Applies to media that jobs share. The memory of another job, perhaps on
  // another host, is taken only after that job's heartbeats have stopped for
  // this long.
  double dead_after_s = 5;
  // For tests: makes a layer between the process and the mapping.
  MakeInterposer make_interposer = nullptr;
};

// Checks everything about `spec` that can be checked without opening a path.
Status CheckSpec(const PoolSpec& spec);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_MEDIUM_H_
