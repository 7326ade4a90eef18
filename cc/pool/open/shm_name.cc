#include "cc/pool/open/shm_name.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "cc/base/process_identity.h"

namespace jax_cxl::pool {
namespace {

constexpr size_t kMaxNameBytes = 64;

// Returns the credentials of the process that listens on the socket at
// `address`. The pid is 0 if the process is unknown. Never waits.
ucred Listener(const sockaddr_un& address, socklen_t length) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return {};
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) !=
      0) {
    return {};
  }
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return {};
  }
  return peer;
}

}  // namespace

Status CheckShmName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= kMaxNameBytes &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                             c == '-';
                    });
  if (good) return OkStatus();
  return Error(Code::kInvalidArgument, "shm pool name '", name,
               "' is not 1 to ", kMaxNameBytes,
               " letters, digits, '.', '_' or '-'; write for example "
               "shm:my_job");
}

std::string ShmPath(const std::string& name) {
  return std::string(kShmDirectory) + "/" + std::string(kShmPrefix) + name;
}

Result<UniqueFd> ClaimShmName(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // The leading zero byte puts the name into the abstract namespace.
  std::string text(1, '\0');
  text += std::string(kShmPrefix) + std::to_string(geteuid()) + "." + name;
  if (text.size() > sizeof(address.sun_path)) {
    return Error(Code::kInvalidArgument, "shm pool name '", name,
                 "' is too long; use a shorter one");
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  const socklen_t length = offsetof(sockaddr_un, sun_path) + text.size();

  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return Error(Code::kResourceExhausted, "cannot open a socket: ",
                 std::generic_category().message(errno),
                 "; raise the limit on open files (ulimit -n)");
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) !=
      0) {
    if (errno != EADDRINUSE) {
      return Error(Code::kInternal, "cannot bind the socket that guards pool '",
                   name, "': ", std::generic_category().message(errno),
                   "; name a file instead (file:/path)");
    }
    const ucred holder = Listener(address, length);
    if (holder.pid != 0 && holder.uid != geteuid())
      return Error(Code::kAlreadyExists, "the name of pool shm:", name,
                   " is taken by ", DescribeProcess(holder.pid), " of user ",
                   holder.uid,
                   "; give this job another pool name, or none (shm:)");
    return Error(Code::kAlreadyExists, "pool shm:", name, " is in use by ",
                 DescribeProcess(holder.pid),
                 "; give this job another pool name or stop that process");
  }
  // Listen, so that other processes can connect and learn the id of this
  // process. This process never accepts a connection.
  if (listen(fd.get(), 64) != 0) {
    return Error(Code::kInternal, "cannot listen on the socket of pool '", name,
                 "': ", std::generic_category().message(errno),
                 "; name a file instead (file:/path)");
  }
  return fd;
}

}  // namespace jax_cxl::pool
