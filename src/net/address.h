// Where a server listens: names and ports to sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace galley::net {

// A bound socket that does not listen yet, so that its address can be judged first.
class ListenSocket {
 public:
  // A name or an address; port 0 lets the system choose.
  static Result<ListenSocket> bind_tcp(const std::string& host, int32_t port);
  // A socket file that only its owner may use. One left behind by a dead server is replaced.
  static Result<ListenSocket> bind_unix(const std::string& path);

  ListenSocket(ListenSocket&& other) noexcept;
  ListenSocket& operator=(ListenSocket&&) = delete;
  ~ListenSocket();

  // "127.0.0.1:8000", "[::1]:8000" or the path.
  const std::string& address() const { return address_; }
  int32_t port() const { return port_; }
  // Only this machine can reach it.
  bool is_local() const { return local_; }

  // Hands the descriptor over, listening.
  Result<int> listen();

 private:
  ListenSocket(int fd, std::string address, int32_t port, bool local)
      : fd_(fd), address_(std::move(address)), port_(port), local_(local) {}

  int fd_;
  std::string address_;
  int32_t port_;
  bool local_;
};

// "HOST:PORT", "[V6]:PORT" or a bare port, which means this machine only.
Result<std::pair<std::string, int32_t>> parse_endpoint(std::string_view text);

// The other side of a connected socket as text; "local" for a socket file.
std::string peer_address(int fd);

}  // namespace galley::net
