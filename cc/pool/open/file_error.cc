#include "cc/pool/open/file_error.h"

#include <cerrno>
#include <string>
#include <system_error>

namespace jax_cxl::pool {

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
