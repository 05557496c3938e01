// One connection: reads a request, has it answered, writes the answer, again.
//
// A state machine that one function advances as far as the socket lets it; it
// then waits for what is missing. An idle connection holds no buffers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "net/event_loop.h"
#include "net/exchange.h"
#include "net/request_parser.h"
#include "net/server.h"
#include "net/transport.h"

namespace galley::net {

class Connection;

// What the connections of one server share.
struct ConnectionHost {
  using Clock = std::chrono::steady_clock;

  ServerOptions options;
  Handler handler;
  std::string scratch;      // one read of any connection
  size_t bodies_bytes = 0;  // held by requests in progress
  bool draining = false;
  ServerCounts counts;
  std::function<void(Connection&)> on_closed;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = ConnectionHost::Clock;

  // The host outlives the connection.
  Connection(ConnectionHost& host, std::unique_ptr<Descriptor> descriptor, const TlsContext* tls);
  ~Connection();

  // Goes on without waiting, for as long as a turn lasts.
  void pump();
  // Ends what takes too long.
  void check_time(Clock::time_point now);
  void close();

  bool idle() const { return phase_ == Phase::kIdle; }
  // Asks for nothing, or takes its time to: may go when somebody else needs its place.
  bool can_make_room(Clock::time_point now) const;
  Clock::time_point since() const { return since_; }

 private:
  class Answer;
  enum class Phase : uint8_t {
    kHandshake,
    kIdle,    // between requests, no byte of the next
    kHead,    // some bytes of a head
    kBody,    // its body is on the way
    kAnswer,  // handed out; the answer is being made or written
    kLinger,  // the last answer is written; waits for the client to see it
    kClosed,
  };

  void enter(Phase phase);
  void advance();
  void flush();
  void receive();
  void consume();
  void dispatch();
  void finish_answer();
  void refuse(const ParseFailure& failure);
  void linger();
  void arm();
  void hold_body(size_t bytes);
  bool wants_input() const;

  void send_head(const HttpResponse& response, BodyFraming framing);
  void send(std::string_view bytes);
  void answered();

  ConnectionHost* host_;
  std::unique_ptr<Descriptor> descriptor_;
  Transport transport_;
  Phase phase_ = Phase::kHandshake;
  Clock::time_point since_;        // the phase began
  Clock::time_point write_since_;  // the last byte was taken, or output began to wait

  std::unique_ptr<RequestParser> parser_;  // only while a request is read
  std::string input_;                      // not yet taken by the parser
  std::string output_;                     // from output_begin_ on not yet taken by the client
  size_t output_begin_ = 0;
  size_t body_held_ = 0;  // of host_->bodies_bytes

  std::shared_ptr<Answer> answer_;
  bool answer_done_ = false;
  bool keep_alive_ = true;
  bool can_stream_ = true;
  bool chunked_ = false;
  bool head_only_ = false;  // HEAD: the answer has no body
  bool input_ended_ = false;
  bool continue_sent_ = false;
  bool writing_finished_ = false;

  bool pumping_ = false;
  bool again_ = false;
  size_t bytes_left_ = 0;  // to be read in this turn
  bool waits_readable_ = false;
  bool waits_writable_ = false;
  bool read_wants_write_ = false;  // TLS
};

}  // namespace galley::net
