// One request and its answer, whole or as a stream.
//
// For the loop's thread only. Whoever answers holds it; the connection may be
// gone before the answer is ready, and then nothing that is written matters.
// Any call that writes may find that out, and then calls on_gone before it returns.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "net/http_message.h"

namespace galley::net {

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual HttpRequest& request() = 0;

  // The whole answer; once, and instead of a stream.
  virtual void respond(HttpResponse response) = 0;

  // A stream: its head, then bytes, then its end.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  // Ends the connection in the middle of a stream, so that the client sees that it is not whole.
  virtual void abort_stream() = 0;

  // False while the client has not taken what was written: write no more until on_room.
  virtual bool has_room() const = 0;
  virtual void on_room(std::function<void()> then) = 0;

  // Called at most once, when the client left or was cut before the answer's end.
  virtual void on_gone(std::function<void()> then) = 0;
  virtual bool gone() const = 0;
};

using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

}  // namespace galley::net
