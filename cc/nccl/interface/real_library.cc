#include "cc/nccl/interface/real_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <sstream>

#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {
namespace {

constexpr char kName[] = "libnccl.so.2";

std::atomic<bool> loaded = false;

std::string OwnPath() {
  Dl_info info;
  return dladdr(reinterpret_cast<const void*>(&OwnPath), &info) != 0
             ? info.dli_fname
             : "";
}

// Returns true if the path is a library, and not this one under another name.
bool IsAnother(const std::string& path) {
  struct stat own, other;
  if (stat(path.c_str(), &other) != 0 || !S_ISREG(other.st_mode)) return false;
  return stat(OwnPath().c_str(), &own) != 0 || own.st_dev != other.st_dev ||
         own.st_ino != other.st_ino;
}

// Returns the text of DT_RUNPATH, or of DT_RPATH, of a loaded object.
std::string RunPathOf(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = object.dlpi_phdr[i];
    if (header.p_type != PT_DYNAMIC) continue;
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + header.p_vaddr);
    const char* strings = nullptr;
    std::vector<size_t> offsets;
    for (; entry->d_tag != DT_NULL; ++entry) {
      // In the kernel's own object (vdso), the address is still an offset,
      // because the loader does not change that object.
      if (entry->d_tag == DT_STRTAB)
        strings = reinterpret_cast<const char*>(
            entry->d_un.d_ptr < object.dlpi_addr
                ? object.dlpi_addr + entry->d_un.d_ptr
                : entry->d_un.d_ptr);
      if (entry->d_tag == DT_RUNPATH || entry->d_tag == DT_RPATH)
        offsets.push_back(entry->d_un.d_val);
    }
    if (strings != nullptr && !offsets.empty())
      return strings + offsets.front();
  }
  return "";
}

int AddCandidates(dl_phdr_info* object, size_t, void* candidates) {
  for (const std::string& folder :
       SearchFolders(RunPathOf(*object), object->dlpi_name))
    static_cast<std::vector<std::string>*>(candidates)
        ->push_back(folder + "/" + kName);
  return 0;
}

// Returns the path under which the loader finds the library by default. In a
// new namespace, the loader does not mistake this library, which has the same
// name, for NCCL.
std::string DefaultPath() {
  void* handle = dlmopen(LM_ID_NEWLM, kName, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return "";
  link_map* map = nullptr;
  const std::string path =
      dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
  dlclose(handle);
  return path;
}

// Looks where the framework of this process would find the library: among the
// objects loaded after this one, in the search paths of the loaded objects
// (frameworks and their wheels), and in the default places.
std::string FindPath() {
  const std::string& chosen = TheSettings().library;
  if (!chosen.empty()) return chosen;
  Dl_info info;
  if (void* next = dlsym(RTLD_NEXT, "ncclGetVersion");
      next != nullptr && dladdr(next, &info) != 0 && IsAnother(info.dli_fname))
    return info.dli_fname;
  std::vector<std::string> candidates;
  dl_iterate_phdr(AddCandidates, &candidates);
  for (const std::string& candidate : candidates)
    if (IsAnother(candidate)) return candidate;
  const std::string path = DefaultPath();
  return IsAnother(path) ? path : "";
}

}  // namespace

std::vector<std::string> SearchFolders(const std::string& run_path,
                                       const std::string& object) {
  const size_t slash = object.rfind('/');
  const std::string origin =
      slash == std::string::npos ? "." : object.substr(0, slash);
  std::vector<std::string> folders;
  std::istringstream parts(run_path);
  for (std::string part; std::getline(parts, part, ':');) {
    for (const char* name : {"${ORIGIN}", "$ORIGIN"})
      for (size_t at; (at = part.find(name)) != std::string::npos;)
        part.replace(at, std::strlen(name), origin);
    if (!part.empty()) folders.push_back(part);
  }
  return folders;
}

RealLibrary& RealLibrary::Loaded() {
  static RealLibrary& library = *new RealLibrary;
  loaded = true;
  return library;
}

bool RealLibrary::is_loaded() { return loaded; }

RealLibrary::RealLibrary() : path_(FindPath()) {
  if (path_.empty()) {
    status_ = Error(Code::kNotFound, "cannot find NVIDIA's ", kName,
                    ": install NCCL (pip install nvidia-nccl-cu13), or name "
                    "the library in JAX_CXL_NCCL_LIBRARY");
    return;
  }
  if (!IsAnother(path_)) {
    status_ = Error(Code::kNotFound, "JAX_CXL_NCCL_LIBRARY is ", path_,
                    ", which is not a library or is jax_cxl's own: name "
                    "NVIDIA's ",
                    kName);
    return;
  }
  // With RTLD_DEEPBIND, the library calls its own functions, and not those of
  // the same names here.
  handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle_ == nullptr)
    status_ = Error(Code::kNotFound, "cannot load NCCL: ", dlerror());
}

void* RealLibrary::Find(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace jax_cxl::nccl
