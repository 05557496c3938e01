// Listens on one socket and hands each request to one function.
//
// Everything has a bound: connections, bytes of a head and of a body, bytes of
// all bodies together, what waits to be written to one client, and the time of
// each of these. Knows nothing of paths or bodies. Belongs to the loop's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "net/address.h"
#include "net/event_loop.h"
#include "net/exchange.h"
#include "net/request_parser.h"
#include "net/transport.h"

namespace galley::net {

struct ServerOptions {
  ParserLimits parser;
  int32_t connections_max = 4096;
  size_t bodies_bytes_max = size_t{256} << 20;  // of all requests in progress
  size_t pipelined_bytes_max = size_t{64} << 10;
  size_t stream_bytes_max = size_t{64} << 10;  // waiting for one client; then has_room() is false
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};   // plus its declared length at body_rate_min
  int64_t body_rate_min = int64_t{64} << 10;        // bytes a second
  std::chrono::milliseconds write_timeout{30'000};  // without a byte taken by the client
  // The answer to what is no request, or cannot be taken.
  std::function<HttpResponse(int status, const std::string& message)> failure = nullptr;
};

struct ServerCounts {
  int64_t connections = 0;  // open now
  int64_t answering = 0;    // requests in progress
  int64_t accepted = 0;     // connections ever
  int64_t refused = 0;      // connections, for want of room
  int64_t malformed = 0;    // answered by `failure`
  int64_t timed_out = 0;    // connections cut by a limit of time, idle ones not counted
};

class Server {
 public:
  // The loop outlives the server. Ignores SIGPIPE for the whole process: a client that is
  // gone is an error of its write, not the end of the program.
  Server(EventLoop& loop, ServerOptions options, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Starts to accept. Plain without a context.
  Result<void> start(ListenSocket socket, std::shared_ptr<TlsContext> tls = nullptr);
  // For connections from now on.
  void replace_tls(std::shared_ptr<TlsContext> tls);

  // For connections and requests from now on.
  void replace_limits(int32_t connections_max, size_t body_bytes_max);

  // No new connection; idle ones are closed, others after the answer they wait for.
  void drain();
  // Closes everything at once.
  void close();

  ServerCounts counts() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace galley::net
