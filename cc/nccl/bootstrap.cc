#include "cc/nccl/bootstrap.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

namespace jax_cxl::nccl {
namespace {

using pool::UniqueFd;

constexpr uint64_t kMagic = 0x6a61785f63786c62;
constexpr uint32_t kMostBlockBytes = 4096;
constexpr int kMostRanks = 1 << 16;
// A connection that says nothing must not delay the others for longer.
constexpr double kHelloTime = 5;
constexpr double kConnectTime = 20;
constexpr double kCancelPoll = 0.05;

// What a rank sends first.
struct Hello {
  uint64_t magic;
  uint64_t high;
  uint64_t low;
  int32_t rank;
  int32_t size;
};

// 0 waits forever.
void LimitWaits(int fd, double seconds) {
  timeval limit = {};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_usec =
      static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// These return false at the end of the connection, and after the limit of
// waits (errno is EAGAIN), unless `waits_on` returns true.
bool Receive(
    int fd, void* data, size_t bytes,
    const std::function<bool()>& waits_on = [] { return false; }) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got =
        recv(fd, static_cast<std::byte*>(data) + done, bytes - done, 0);
    if (got == 0) errno = ECONNRESET;
    if (got == 0) return false;
    if (got < 0 && errno != EINTR && !(errno == EAGAIN && waits_on()))
      return false;
    if (got > 0) done += got;
  }
  return true;
}

bool Send(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t sent = send(fd, static_cast<const std::byte*>(data) + done,
                              bytes - done, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return false;
    if (sent > 0) done += sent;
  }
  return true;
}

// Gathers blocks of the ranks of one communicator until one of them leaves.
void ServeRanks(const std::vector<UniqueFd>& ranks) {
  for (;;) {
    std::vector<std::byte> all;
    for (const UniqueFd& rank : ranks) {
      uint32_t bytes = 0;
      if (!Receive(rank.get(), &bytes, sizeof(bytes)) ||
          bytes > kMostBlockBytes)
        return;
      all.resize(all.size() + bytes);
      if (!Receive(rank.get(), all.data() + all.size() - bytes, bytes)) return;
    }
    for (const UniqueFd& rank : ranks)
      if (!Send(rank.get(), all.data(), all.size())) return;
  }
}

// Accepts ranks of all communicators whose ids this process has made.
void ServeProcess(const UniqueFd& listener) {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<UniqueFd>> waiting;
  for (;;) {
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    LimitWaits(fd.get(), kHelloTime);
    Hello hello;
    if (!Receive(fd.get(), &hello, sizeof(hello)) || hello.magic != kMagic ||
        hello.size < 1 || hello.size > kMostRanks || hello.rank < 0 ||
        hello.rank >= hello.size)
      continue;
    LimitWaits(fd.get(), 0);
    std::vector<UniqueFd>& ranks = waiting[{hello.high, hello.low}];
    if (ranks.empty()) ranks.resize(hello.size);
    if (static_cast<int>(ranks.size()) != hello.size) continue;
    ranks[hello.rank] = std::move(fd);
    if (std::ranges::any_of(ranks,
                            [](const UniqueFd& each) { return !each.valid(); }))
      continue;
    std::thread(ServeRanks, std::move(ranks)).detach();
    waiting.erase({hello.high, hello.low});
  }
}

// Returns the address of this machine that processes in other containers can
// most probably reach.
in_addr_t ChooseAddress(const std::string& interfaces) {
  in_addr_t best = htonl(INADDR_NONE);
  int best_score = -1;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return best;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET ||
        (each->ifa_flags & IFF_UP) == 0 ||
        !AllowsInterface(interfaces, each->ifa_name))
      continue;
    const bool bridge = std::strncmp(each->ifa_name, "docker", 6) == 0;
    const int score = (each->ifa_flags & IFF_LOOPBACK) != 0 ? 0
                      : bridge                              ? 1
                                                            : 2;
    if (score <= best_score) continue;
    best_score = score;
    best =
        reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr;
  }
  freeifaddrs(all);
  return best;
}

BootstrapAddress StartServer(const std::string& interfaces) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ChooseAddress(interfaces);
  socklen_t bytes = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (address.sin_addr.s_addr == htonl(INADDR_NONE) ||
      bind(listener.get(), raw, sizeof(address)) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), raw, &bytes) != 0)
    return {};
  std::thread(ServeProcess, std::move(listener)).detach();
  return {address.sin_addr.s_addr, address.sin_port};
}

}  // namespace

bool AllowsInterface(const std::string& interfaces, const std::string& name) {
  const bool others = interfaces.starts_with('^');
  const bool whole = interfaces.substr(others).starts_with('=');
  std::istringstream parts(interfaces.substr(others + whole));
  bool listed = interfaces.empty();
  for (std::string part; std::getline(parts, part, ',');)
    listed = listed || (whole ? name == part : name.starts_with(part));
  return listed != others;
}

BootstrapAddress OwnBootstrap(const std::string& interfaces) {
  static std::mutex mutex;
  static pid_t process = 0;  // a fork has no thread that serves
  static BootstrapAddress address;
  std::lock_guard lock(mutex);
  if (process != getpid()) {
    process = getpid();
    address = StartServer(interfaces);
  }
  return address;
}

Status AbortedWhileMeeting() {
  return Error(
      Code::kFailedPrecondition,
      "the communicator was aborted while its ranks met; make a new one");
}

Result<std::unique_ptr<Bootstrap>> Bootstrap::Join(
    const PoolToken& token, int rank, int size, double timeout_s,
    const std::atomic<bool>& cancel) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = token.bootstrap.ip;
  address.sin_port = static_cast<in_port_t>(token.bootstrap.port);
  const Hello hello = {kMagic, token.high, token.low, rank, size};
  UniqueFd fd;
  bool connected = false;
  do {  // A signal may interrupt connect, for example that of a profiler.
    fd = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    LimitWaits(fd.get(), kConnectTime);  // also of connect
    connected = connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                        sizeof(address)) == 0;
  } while (!connected && errno == EINTR);
  if (!connected || !Send(fd.get(), &hello, sizeof(hello))) {
    const std::string why = std::generic_category().message(errno);
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    return Error(Code::kPeerLost, "cannot connect with ", text, ":",
                 ntohs(address.sin_port),
                 ", where the process that made the unique id listens: ", why,
                 "; check that it still runs, or choose a network in "
                 "NCCL_SOCKET_IFNAME");
  }
  LimitWaits(fd.get(), kCancelPoll);
  return std::unique_ptr<Bootstrap>(
      new Bootstrap(std::move(fd), size, timeout_s, cancel));
}

Result<std::vector<std::byte>> Bootstrap::AllGather(
    std::span<const std::byte> block) {
  const auto bytes = static_cast<uint32_t>(block.size());
  std::vector<std::byte> all(block.size() * size_);
  const auto start = std::chrono::steady_clock::now();
  const auto waits_on = [&] {
    const std::chrono::duration<double> waited =
        std::chrono::steady_clock::now() - start;
    return !cancel_ && waited.count() < timeout_s_;
  };
  if (Send(fd_.get(), &bytes, sizeof(bytes)) &&
      Send(fd_.get(), block.data(), bytes) &&
      Receive(fd_.get(), all.data(), all.size(), waits_on))
    return all;
  if (cancel_) return AbortedWhileMeeting();
  if (errno == EAGAIN)
    return Error(Code::kDeadlineExceeded, "not all of the ", size_,
                 " ranks of the communicator joined within ", timeout_s_,
                 " s (JAX_CXL_TIMEOUT); look at the output of the others");
  return Error(Code::kPeerLost,
               "a rank of the communicator ended while its ranks met: ",
               std::generic_category().message(errno),
               "; look at the output of the other ranks");
}

Status Bootstrap::Agree(const Status& mine) {
  struct Report {
    int32_t code = 0;
    char text[1020] = {};
  } report;
  report.code = static_cast<int32_t>(mine.code());
  mine.message().copy(report.text, sizeof(report.text) - 1);
  CXL_ASSIGN_OR_RETURN(const std::vector<std::byte> all,
                       AllGather(std::as_bytes(std::span(&report, 1))));
  for (int rank = 0; rank < size_; ++rank) {
    std::memcpy(&report, all.data() + rank * sizeof(report), sizeof(report));
    if (report.code == static_cast<int32_t>(Code::kOk)) continue;
    report.text[sizeof(report.text) - 1] = '\0';
    agreed_to_fail_ = true;
    return Error(ErrorCode(report.code), "rank ", rank, ": ", report.text);
  }
  return OkStatus();
}

}  // namespace jax_cxl::nccl
