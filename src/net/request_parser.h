// Bytes of an HTTP/1.1 connection to requests, with every limit stated.
//
// Pure: bytes in, a request or an error out, however they are cut. The grammar
// is Boost.Beast's, which stays behind this header.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/http_message.h"

namespace galley::net {

struct ParserLimits {
  size_t head_bytes_max = size_t{32} << 10;
  size_t fields_max = 100;
  size_t body_bytes_max = size_t{16} << 20;
};

// What is wrong with the bytes, as the answer to give; the connection is then of no more use.
struct ParseFailure {
  int status = 400;
  std::string message;
};

class RequestParser {
 public:
  explicit RequestParser(const ParserLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes bytes from the front of `input` and removes them. Returns when the request is whole,
  // when it needs more, or with what is wrong. What follows a whole request is left in `input`.
  std::optional<ParseFailure> take(std::string& input);

  bool head_done() const;
  bool done() const;
  // The head asks to be told before it sends the body ("Expect: 100-continue").
  bool wants_continue() const;
  // What the body may still hold in memory: its declared length, or what has come of it.
  size_t body_bytes() const;

  // The request, once done. The parser is then used up.
  HttpRequest release();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::net
