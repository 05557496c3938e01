#include "net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace galley::net {
namespace {

constexpr int kBacklog = 1024;
constexpr int32_t kPortMax = 65535;

std::string reason() { return std::strerror(errno); }

std::string address_text(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return text;
  }
  if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    return text;
  }
  return "local";
}

int32_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// Whether somebody answers on the socket file.
bool is_alive(const sockaddr_un& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool alive =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return alive;
}

}  // namespace

ListenSocket::ListenSocket(ListenSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      address_(std::move(other.address_)),
      port_(other.port_),
      local_(other.local_) {}

ListenSocket::~ListenSocket() {
  if (fd_ >= 0) ::close(fd_);
}

Result<ListenSocket> ListenSocket::bind_tcp(const std::string& host, int32_t port) {
  const std::string shown = host + ":" + std::to_string(port);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    return Error{ErrorCode::kInvalid, "cannot listen on " + shown + ": " + ::gai_strerror(code)};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Error{ErrorCode::kIo, "cannot listen on " + shown + ": " + reason()};
  ListenSocket socket(fd, shown, port, false);
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (found->ai_family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(fd, found->ai_addr, found->ai_addrlen) != 0) {
    const bool taken = errno == EADDRINUSE;
    return Error{
        taken ? ErrorCode::kExhausted : ErrorCode::kIo,
        "cannot listen on " + shown + ": " + reason() + (taken ? "; choose another port" : "")};
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  socket.port_ = port_of(bound);
  socket.local_ = is_loopback(bound);
  const std::string text = address_text(bound);
  socket.address_ =
      (bound.ss_family == AF_INET6 ? "[" + text + "]" : text) + ":" + std::to_string(socket.port_);
  return socket;
}

Result<ListenSocket> ListenSocket::bind_unix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kInvalid, "cannot listen on " + path +
                                          ": a socket file's path has 1 to " +
                                          std::to_string(sizeof address.sun_path - 1) + " bytes"};
  }
  path.copy(address.sun_path, path.size());
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return Error{ErrorCode::kInvalid,
                   "cannot listen on " + path + ": it exists, and is no socket"};
    }
    if (is_alive(address)) {
      return Error{ErrorCode::kExhausted,
                   "cannot listen on " + path + ": another server answers there"};
    }
    ::unlink(path.c_str());
  }
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Error{ErrorCode::kIo, "cannot listen on " + path + ": " + reason()};
  ListenSocket socket(fd, path, 0, true);
  // Owner only from the first moment on: the mode of the file follows the mask.
  const mode_t mask = ::umask(0177);
  const int bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::umask(mask);
  if (bound != 0) return Error{ErrorCode::kIo, "cannot listen on " + path + ": " + reason()};
  return socket;
}

Result<int> ListenSocket::listen() {
  if (::listen(fd_, kBacklog) != 0) {
    return Error{ErrorCode::kIo, "cannot listen on " + address_ + ": " + reason()};
  }
  return std::exchange(fd_, -1);
}

Result<std::pair<std::string, int32_t>> parse_endpoint(std::string_view text) {
  const Error wrong{ErrorCode::kInvalid,
                    std::string(text) + " is no HOST:PORT, such as 127.0.0.1:9090"};
  const size_t colon = text.rfind(':');
  std::string_view host = colon == std::string_view::npos ? "127.0.0.1" : text.substr(0, colon);
  const std::string_view port_text =
      colon == std::string_view::npos ? text : text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong;
  }
  int32_t port = 0;
  const char* end = port_text.data() + port_text.size();
  const auto [stopped, code] = std::from_chars(port_text.data(), end, port);
  if (code != std::errc() || stopped != end || port < 0 || port > kPortMax || host.empty()) {
    return wrong;
  }
  return std::pair{std::string(host), port};
}

std::string peer_address(int fd) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "?";
  return address_text(peer);
}

}  // namespace galley::net
