#include "net/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/connection.h"

namespace galley::net {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr std::chrono::milliseconds kTick{250};
constexpr int kAcceptsTogether = 64;

}  // namespace

class Server::Impl : public std::enable_shared_from_this<Server::Impl> {
 public:
  Impl(EventLoop& loop, ServerOptions options, Handler handler) : loop_(&loop) {
    host_.options = std::move(options);
    host_.handler = std::move(handler);
    host_.scratch.resize(kScratchBytes);
    host_.on_closed = [this](Connection& connection) {
      const auto found = connections_.find(&connection);
      // Not destroyed here: the caller may be one of its functions.
      if (found == connections_.end()) return;
      closed_.push_back(std::move(found->second));
      connections_.erase(found);
    };
  }

  void start(int fd, std::shared_ptr<TlsContext> tls) {
    tls_ = std::move(tls);
    listener_ = loop_->own(fd);
    wait_for_connections();
    schedule_tick();
  }

  void replace_tls(std::shared_ptr<TlsContext> tls) { tls_ = std::move(tls); }

  void replace_limits(int32_t connections_max, size_t body_bytes_max) {
    host_.options.connections_max = connections_max;
    host_.options.parser.body_bytes_max = body_bytes_max;
  }

  void drain() {
    host_.draining = true;
    listener_.reset();
    for (const auto& connection : snapshot()) {
      if (connection->idle()) connection->close();
    }
    closed_.clear();
  }

  void close() {
    listener_.reset();
    for (const auto& connection : snapshot()) connection->close();
    closed_.clear();
    ended_ = true;
  }

  ServerCounts counts() const {
    ServerCounts counts = host_.counts;
    counts.connections = static_cast<int64_t>(connections_.size());
    return counts;
  }

 private:
  std::vector<std::shared_ptr<Connection>> snapshot() const {
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections_.size());
    for (const auto& [key, connection] : connections_) all.push_back(connection);
    return all;
  }

  void schedule_tick() {
    loop_->after(kTick, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr || self->ended_) return;
      const auto now = Connection::Clock::now();
      for (const auto& connection : self->snapshot()) connection->check_time(now);
      self->closed_.clear();
      // Accepting stopped when descriptors ran out.
      if (self->listener_ != nullptr && !self->waits_) self->wait_for_connections();
      self->schedule_tick();
    });
  }

  void wait_for_connections() {
    waits_ = true;
    listener_->when_readable([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->waits_ = false;
      if (self->listener_ != nullptr && self->accept_some()) self->wait_for_connections();
    });
  }

  // False when the system has no descriptor left: the next tick tries again.
  bool accept_some() {
    closed_.clear();
    for (int i = 0; i < kAcceptsTogether; ++i) {
      const int fd = ::accept4(listener_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        const bool exhausted =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return !exhausted || close_longest_waiting();
      }
      ++host_.counts.accepted;
      const auto open = static_cast<int32_t>(connections_.size());
      if (open >= host_.options.connections_max && !close_longest_waiting()) {
        refuse(fd);
        continue;
      }
      auto connection = std::make_shared<Connection>(host_, loop_->own(fd), tls_.get());
      connections_.emplace(connection.get(), connection);
      connection->pump();
    }
    return true;
  }

  // Makes room for a new client at the cost of one that asks for nothing.
  bool close_longest_waiting() {
    std::shared_ptr<Connection> longest;
    const auto now = Connection::Clock::now();
    for (const auto& [key, connection] : connections_) {
      if (connection->can_make_room(now) &&
          (longest == nullptr || connection->since() < longest->since())) {
        longest = connection;
      }
    }
    if (longest == nullptr) return false;
    longest->close();
    return true;
  }

  void refuse(int fd) {
    ++host_.counts.refused;
    if (tls_ == nullptr) {
      HttpResponse response = {503, {}, "too many connections\n"};
      if (host_.options.failure) {
        response = host_.options.failure(503, "too many connections; try again in a moment");
      }
      const std::string text =
          response_head(response, {.keep_alive = false, .now_s = ::time(nullptr)}) + response.body;
      static_cast<void>(::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    ::close(fd);
  }

  EventLoop* loop_;
  ConnectionHost host_;
  std::shared_ptr<TlsContext> tls_;
  std::unique_ptr<Descriptor> listener_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Connection>> closed_;
  bool waits_ = false;
  bool ended_ = false;
};

Server::Server(EventLoop& loop, ServerOptions options, Handler handler)
    : impl_(std::make_shared<Impl>(loop, std::move(options), std::move(handler))) {
  std::signal(SIGPIPE, SIG_IGN);
}

Server::~Server() { impl_->close(); }

Result<void> Server::start(ListenSocket socket, std::shared_ptr<TlsContext> tls) {
  const int fd = TRY(socket.listen());
  impl_->start(fd, std::move(tls));
  return {};
}

void Server::replace_tls(std::shared_ptr<TlsContext> tls) { impl_->replace_tls(std::move(tls)); }
void Server::replace_limits(int32_t connections_max, size_t body_bytes_max) {
  impl_->replace_limits(connections_max, body_bytes_max);
}

void Server::drain() { impl_->drain(); }
void Server::close() { impl_->close(); }
ServerCounts Server::counts() const { return impl_->counts(); }

}  // namespace galley::net
