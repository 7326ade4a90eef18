#include "cc/pool/open/file_error.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace jax_cxl::pool {
namespace {

// Returns true if the file system of a path has free blocks, but no free inode.
bool LacksInodes(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  struct statvfs info = {};
  return statvfs(folder.empty() ? "." : folder.c_str(), &info) == 0 &&
         info.f_files > 0 && info.f_favail == 0 && info.f_bavail > 0;
}

}  // namespace

Status FileError(int error, const std::string& action,
                 const std::string& path) {
  const std::string text = "cannot " + action + " " + path + ": " +
                           std::generic_category().message(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      if (path.starts_with("/dev/") && !path.starts_with("/dev/shm/"))
        return Error(Code::kNotFound, text,
                     "; this host has no such device: python -m jax_cxl doctor "
                     "lists its dax devices");
      return Error(Code::kNotFound, text,
                   "; check the path, and create its directory first");
    case ENXIO:
    case ENODEV:
      return Error(Code::kNotFound, text,
                   "; check that the device is online (daxctl list)");
    case EACCES:
    case EPERM:
    case EROFS:
      return Error(Code::kPermissionDenied, text,
                   "; run as a user who may write there, or name another path");
    case ELOOP:
      return Error(Code::kPermissionDenied, text,
                   "; symbolic links are refused: name the file itself");
    case EEXIST:
      return Error(Code::kAlreadyExists, text, "; name another path");
    case EISDIR:
    case ENAMETOOLONG:
    case EINVAL:
      return Error(Code::kInvalidArgument, text, "; name a file");
    case EMFILE:
    case ENFILE:
      return Error(Code::kResourceExhausted, text,
                   "; raise the limit on open files (ulimit -n)");
    case ENOSPC:
      if (LacksInodes(path))
        return Error(Code::kResourceExhausted, text,
                     "; its file system has space, but no inode for another "
                     "file (df -i): remove files, or name another path");
      [[fallthrough]];
    case EDQUOT:
    case ENOMEM:
      return Error(Code::kResourceExhausted, text,
                   "; free some space or name another path");
    default:
      return Error(Code::kInternal, text);
  }
}

bool IsRefusal(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL ||
         error == ENOTTY || error == ENOLCK || error == EPERM;
}

}  // namespace jax_cxl::pool
