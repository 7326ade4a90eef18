#ifndef JAX_CXL_POOL_MEDIA_MEDIUM_H_
#define JAX_CXL_POOL_MEDIA_MEDIUM_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/interposer.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/media/dax.h"
#include "cc/pool/open/file.h"

// The kinds of memory that hold a pool, and everything that differs from one
// kind to another. Once a pool is mapped, its medium makes no difference.
//
// docs/extending.md shows how to add one.
namespace jax_cxl::pool {

enum class Medium : uint8_t {
  kShm,   // a file in /dev/shm, whose name a job reserves
  kFile,  // other files
  kDax,   // CXL memory, as /dev/dax*
};

// The part of a pool URI before the colon, in the order of Medium.
inline constexpr std::string_view kMediumNames[] = {"shm", "file", "dax"};

Result<Medium> ParseMedium(std::string_view name);

// Where a pool lies.
struct PoolSpec {
  Medium medium = Medium::kShm;
  // kShm: one name, without a slash. Other media: one path per pool device.
  std::vector<std::string> paths;
  // Bytes of the pool in each path. 0 means the rest of a device or of an
  // existing file, and AutomaticPathBytes for a new file.
  uint64_t bytes = 0;
  int devices_per_path = 1;  // files: equal extents in each path
  uint64_t offset = 0;       // where the pool starts in each path, in bytes
  CoherenceMode coherence = CoherenceMode::kCoherent;
  // If this is not 0, Create reserves only the control pages and this many
  // bytes of each arena, and Pool::Reserve the rest. Only kShm supports this.
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
  // For tests: dax devices that are regular files.
  const DaxSystem* dax = &DaxSystem::Machine();

  // Returns true if other jobs, including jobs on other hosts, can open the
  // memory. A job may then take the memory only if the heartbeats of the job in
  // it have stopped. Such memory may outlive its job.
  bool shared() const { return medium != Medium::kShm; }
  // Returns true if the paths are devices. They must exist and already have all
  // of their memory. Missing files are created, and their memory is allocated
  // when a pool takes them.
  bool on_devices() const { return medium == Medium::kDax; }
};

// Checks everything about `spec` that can be checked without opening a path,
// except the form of paths in the file system, which ParsePoolUri (uri.h)
// checks.
Status CheckSpec(const PoolSpec& spec);

// Opens a file or a device, which `path` names in the file system. `creating`
// is true in the process that creates the pool, and false in all other
// processes of the job.
Result<PoolFile> OpenPath(const PoolSpec& spec, const std::string& path,
                          bool creating);

// Returns how many bytes of each path a pool with the open `files` uses. 0
// means that TakePart determines the size for each path, because devices may
// differ in size.
Result<uint64_t> PathBytes(const PoolSpec& spec,
                           const std::vector<PoolFile>& files, int world_size,
                           bool creating);

// Returns the part of an open path that `spec` names. If spec.bytes is 0, it is
// the rest of the path. Locks a part of a device, which several pools can
// share.
Result<MapPiece> TakePart(PoolFile& file, const PoolSpec& spec, bool creating);

// Returns the part that `spec` names of its first device, in which pools may
// lie side by side. The part has no descriptor.
Result<MapPiece> DevicePartOf(const PoolSpec& spec);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_MEDIUM_H_
