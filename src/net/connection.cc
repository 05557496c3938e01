#include "net/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace galley::net {
namespace {

constexpr std::chrono::milliseconds kLingerTime{2000};
// For a handshake or a head, when others wait for a connection.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr size_t kKeptBufferBytes = 4096;
// What one connection may do before the others have their turn: a client that sends without end
// would have the loop for itself.
constexpr int kRoundsTogether = 16;  // about one request each
constexpr size_t kBytesTogether = size_t{256} << 10;

int64_t wall_seconds() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Gives the memory of a large buffer back, so that an idle connection holds none.
void reset(std::string& buffer) {
  buffer.clear();
  if (buffer.capacity() > kKeptBufferBytes) std::string().swap(buffer);
}

}  // namespace

// The side of an exchange that the handler holds. It may outlive the connection.
class Connection::Answer : public Exchange {
 public:
  Answer(Connection& connection, HttpRequest request)
      : connection_(&connection), request_(std::move(request)) {}

  HttpRequest& request() override { return request_; }

  void respond(HttpResponse response) override {
    if (!open(State::kWaiting)) return;
    state_ = State::kDone;
    connection_->send_head(response, BodyFraming::kLength);
    if (!connection_->head_only_) connection_->send(response.body);
    connection_->answered();
  }

  void begin_stream(HttpResponse head) override {
    if (!open(State::kWaiting)) return;
    state_ = State::kStream;
    const bool chunked = connection_->can_stream_;
    connection_->send_head(head, chunked ? BodyFraming::kChunked : BodyFraming::kUntilClose);
    connection_->pump();
  }

  void write(std::string_view bytes) override {
    if (!open(State::kStream) || bytes.empty()) return;
    if (connection_->chunked_) {
      std::string chunk;
      chunk.reserve(bytes.size() + 16);
      append_chunk(bytes, chunk);
      connection_->send(chunk);
    } else {
      connection_->send(bytes);
    }
    connection_->pump();
  }

  void end_stream() override {
    if (!open(State::kStream)) return;
    state_ = State::kDone;
    if (connection_->chunked_) connection_->send(kLastChunk);
    connection_->answered();
  }

  void abort_stream() override {
    if (connection_ == nullptr) return;
    state_ = State::kDone;
    on_gone_ = nullptr;
    connection_->close();
  }

  bool has_room() const override {
    return connection_ == nullptr || connection_->output_.size() - connection_->output_begin_ <
                                         connection_->host_->options.stream_bytes_max;
  }

  void on_room(std::function<void()> then) override { on_room_ = std::move(then); }
  void on_gone(std::function<void()> then) override {
    if (gone_) {
      then();
    } else {
      on_gone_ = std::move(then);
    }
  }
  bool gone() const override { return gone_; }

  // The connection's side.
  void room_came() {
    if (on_room_) std::exchange(on_room_, nullptr)();
  }
  void detach(bool finished) {
    connection_ = nullptr;
    on_room_ = nullptr;
    gone_ = !finished;
    const auto then = std::exchange(on_gone_, nullptr);
    if (gone_ && then) then();
  }

 private:
  enum class State : uint8_t { kWaiting, kStream, kDone };

  // What is said after the client left is lost; an answer out of order is a bug.
  bool open(State wanted) const {
    if (connection_ == nullptr) return false;
    CHECK(state_ == wanted);
    return true;
  }

  Connection* connection_;  // null once finished or gone
  HttpRequest request_;
  State state_ = State::kWaiting;
  bool gone_ = false;
  std::function<void()> on_room_;
  std::function<void()> on_gone_;
};

Connection::Connection(ConnectionHost& host, std::unique_ptr<Descriptor> descriptor,
                       const TlsContext* tls)
    : host_(&host),
      descriptor_(std::move(descriptor)),
      transport_(descriptor_->fd(), tls),
      phase_(tls != nullptr ? Phase::kHandshake : Phase::kIdle),
      since_(Clock::now()),
      write_since_(since_) {
  const int on = 1;
  // A token must not wait for the next one; fails harmlessly on a socket file.
  ::setsockopt(descriptor_->fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Connection::~Connection() = default;

bool Connection::can_make_room(Clock::time_point now) const {
  if (phase_ == Phase::kHandshake || phase_ == Phase::kHead) return now - since_ > kPatience;
  return idle();
}

void Connection::enter(Phase phase) {
  phase_ = phase;
  since_ = Clock::now();
}

void Connection::pump() {
  if (pumping_) {
    again_ = true;
    return;
  }
  const std::shared_ptr<Connection> self = shared_from_this();
  pumping_ = true;
  bytes_left_ = kBytesTogether;
  int rounds = 0;
  do {
    again_ = false;
    advance();
  } while (again_ && phase_ != Phase::kClosed && ++rounds < kRoundsTogether);
  pumping_ = false;
  if (phase_ != Phase::kClosed) arm();
}

void Connection::advance() {
  if (phase_ == Phase::kHandshake) {
    const IoResult result = transport_.handshake();
    read_wants_write_ = result.status == IoStatus::kWantWrite;
    if (result.status == IoStatus::kEnded) return close();
    if (result.status != IoStatus::kDone) return;
    enter(Phase::kIdle);
  }
  flush();
  if (phase_ == Phase::kAnswer && answer_done_ && output_.empty()) finish_answer();
  if (phase_ == Phase::kLinger && output_.empty() && !writing_finished_) {
    writing_finished_ = true;
    transport_.finish_writing();
  }
  if (phase_ != Phase::kClosed && wants_input()) receive();
}

void Connection::flush() {
  while (output_begin_ < output_.size()) {
    const IoResult result = transport_.write(std::string_view(output_).substr(output_begin_));
    if (result.status == IoStatus::kEnded) return close();
    if (result.status != IoStatus::kDone) break;
    output_begin_ += result.bytes;
    write_since_ = Clock::now();
  }
  if (output_begin_ == output_.size()) {
    reset(output_);
    output_begin_ = 0;
  } else if (output_begin_ > output_.size() / 2) {
    output_.erase(0, output_begin_);
    output_begin_ = 0;
  }
  const bool roomy = output_.size() - output_begin_ < host_->options.stream_bytes_max / 2;
  // The answer may be finished by what it is told.
  const std::shared_ptr<Answer> answer = answer_;
  if (answer != nullptr && roomy && !answer_done_) answer->room_came();
}

bool Connection::wants_input() const {
  if (input_ended_) return false;
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kHead:
    case Phase::kBody:
    case Phase::kLinger:
      return true;
    case Phase::kAnswer:
      // To notice that the client leaves; what it sends ahead is kept.
      return input_.size() < host_->options.pipelined_bytes_max;
    case Phase::kHandshake:
    case Phase::kClosed:
      return false;
  }
  return false;
}

void Connection::receive() {
  if (!input_.empty() && phase_ != Phase::kAnswer && phase_ != Phase::kLinger) consume();
  while (wants_input()) {
    if (bytes_left_ == 0) {
      again_ = true;
      return;
    }
    const IoResult result = transport_.read(host_->scratch);
    read_wants_write_ = result.status == IoStatus::kWantWrite;
    if (result.status == IoStatus::kWantRead || result.status == IoStatus::kWantWrite) return;
    if (result.status == IoStatus::kEnded) {
      input_ended_ = true;
      // An answer that is only being written still reaches a client that has closed its half.
      if (phase_ != Phase::kAnswer || !answer_done_) close();
      return;
    }
    bytes_left_ -= std::min(bytes_left_, result.bytes);
    if (phase_ == Phase::kLinger) continue;
    input_.append(host_->scratch, 0, result.bytes);
    if (phase_ != Phase::kAnswer) consume();
  }
}

void Connection::consume() {
  if (phase_ == Phase::kIdle) {
    // Empty lines before a request are allowed (RFC 9112 2.2).
    input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
    if (input_.empty()) return;
    enter(Phase::kHead);
    parser_ = std::make_unique<RequestParser>(host_->options.parser);
    continue_sent_ = false;
  }
  if (const auto failure = parser_->take(input_)) return refuse(*failure);
  if (!parser_->head_done()) return;
  if (phase_ == Phase::kHead) enter(Phase::kBody);
  const size_t body = parser_->body_bytes();
  if (body > body_held_ &&
      host_->bodies_bytes + (body - body_held_) > host_->options.bodies_bytes_max) {
    return refuse({503, "the requests in progress hold too much memory; try again in a moment"});
  }
  hold_body(body);
  if (parser_->done()) return dispatch();
  if (parser_->wants_continue() && !continue_sent_) {
    continue_sent_ = true;
    send("HTTP/1.1 100 Continue\r\n\r\n");
    again_ = true;
  }
}

void Connection::hold_body(size_t bytes) {
  host_->bodies_bytes = host_->bodies_bytes - body_held_ + bytes;
  body_held_ = bytes;
}

void Connection::dispatch() {
  HttpRequest request = parser_->release();
  parser_.reset();
  request.peer = peer_address(descriptor_->fd());
  keep_alive_ = request.keep_alive;
  can_stream_ = request.can_stream;
  head_only_ = request.method == "HEAD";
  answer_done_ = false;
  enter(Phase::kAnswer);
  ++host_->counts.answering;
  answer_ = std::make_shared<Answer>(*this, std::move(request));
  const std::shared_ptr<Answer> answer = answer_;
  host_->handler(answer);
}

void Connection::send_head(const HttpResponse& response, BodyFraming framing) {
  keep_alive_ = keep_alive_ && !host_->draining && framing != BodyFraming::kUntilClose;
  chunked_ = framing == BodyFraming::kChunked;
  send(response_head(response,
                     {.framing = framing, .keep_alive = keep_alive_, .now_s = wall_seconds()}));
}

void Connection::send(std::string_view bytes) {
  if (output_.empty()) write_since_ = Clock::now();
  output_ += bytes;
}

void Connection::answered() {
  answer_done_ = true;
  pump();
}

void Connection::finish_answer() {
  --host_->counts.answering;
  const std::shared_ptr<Answer> answer = std::exchange(answer_, nullptr);
  answer->detach(true);
  hold_body(0);
  if (!keep_alive_ || host_->draining || input_ended_) return linger();
  enter(Phase::kIdle);
  if (input_.empty()) reset(input_);
  again_ = true;  // what was sent ahead, or lies in the TLS layer
}

void Connection::refuse(const ParseFailure& failure) {
  ++host_->counts.malformed;
  parser_.reset();
  hold_body(0);
  keep_alive_ = false;
  HttpResponse response = {failure.status, {}, failure.message + "\n"};
  if (host_->options.failure) response = host_->options.failure(failure.status, failure.message);
  send_head(response, BodyFraming::kLength);
  send(response.body);
  enter(Phase::kLinger);
  input_.clear();
  again_ = true;
}

// Says that no more comes, and waits for the client to say so too: a close while its bytes are
// on the way would take the answer from it.
void Connection::linger() {
  if (input_ended_) return close();
  enter(Phase::kLinger);
  reset(input_);
  again_ = true;
}

void Connection::arm() {
  if ((wants_input() || phase_ == Phase::kHandshake) && !waits_readable_) {
    waits_readable_ = true;
    descriptor_->when_readable([self = shared_from_this()] {
      self->waits_readable_ = false;
      self->pump();
    });
  }
  // With something left to do now it waits for a socket that is writable, as most are: its turn
  // comes after the others'. When it is not, the client has to take its answers first.
  if ((!output_.empty() || read_wants_write_ || again_) && !waits_writable_) {
    waits_writable_ = true;
    descriptor_->when_writable([self = shared_from_this()] {
      self->waits_writable_ = false;
      self->pump();
    });
  }
}

void Connection::check_time(Clock::time_point now) {
  const ServerOptions& options = host_->options;
  const auto waited = now - since_;
  bool late = !output_.empty() && now - write_since_ > options.write_timeout;
  bool is_idle = false;
  switch (phase_) {
    case Phase::kHandshake:
      late = late || waited > options.handshake_timeout;
      break;
    case Phase::kIdle:
      is_idle = waited > options.idle_timeout;
      break;
    case Phase::kHead:
      late = late || waited > options.head_timeout;
      break;
    case Phase::kBody: {
      const std::chrono::seconds allowance(static_cast<int64_t>(body_held_) /
                                           options.body_rate_min);
      late = late || waited > options.body_timeout + allowance;
      break;
    }
    case Phase::kLinger:
      is_idle = waited > kLingerTime && output_.empty();
      break;
    case Phase::kAnswer:
    case Phase::kClosed:
      break;
  }
  if (late) ++host_->counts.timed_out;
  if (late && (phase_ == Phase::kHead || phase_ == Phase::kBody)) {
    refuse({408, "the request took too long to arrive"});
    return pump();
  }
  if (late || is_idle) close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  phase_ = Phase::kClosed;
  descriptor_->close();
  hold_body(0);
  if (answer_ != nullptr) {
    --host_->counts.answering;
    std::exchange(answer_, nullptr)->detach(false);
  }
  host_->on_closed(*this);
}

}  // namespace galley::net
