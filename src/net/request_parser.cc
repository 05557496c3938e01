#include "net/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

namespace galley::net {
namespace http = boost::beast::http;

struct RequestParser::State {
  http::request_parser<http::string_body> parser;
  ParserLimits limits;
  bool head_checked = false;
};

namespace {

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

ParseFailure describe(const boost::system::error_code& code, const ParserLimits& limits) {
  if (code == http::error::header_limit) {
    return {431, "the head of the request is longer than " + std::to_string(limits.head_bytes_max) +
                     " bytes"};
  }
  if (code == http::error::body_limit) {
    return {413, "the body is longer than the limit of " + std::to_string(limits.body_bytes_max) +
                     " bytes"};
  }
  if (code == http::error::bad_version) return {505, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  return {400, "not HTTP: " + code.message()};
}

// What the grammar allows and this server does not, or what RFC 9112 forbids beyond it.
std::optional<ParseFailure> check_head(const http::request<http::string_body>& message) {
  const auto hosts = message.count(http::field::host);
  if (message.version() == 11 && hosts == 0) {
    return ParseFailure{400, "an HTTP/1.1 request needs a Host field"};
  }
  if (hosts > 1) return ParseFailure{400, "a request has one Host field, not several"};
  // The grammar takes any list that ends with chunked; the others would be left undone.
  const std::string_view transfer = view(message[http::field::transfer_encoding]);
  if (!transfer.empty() && message.version() < 11) {
    return ParseFailure{400, "HTTP/1.0 has no transfer encodings; send a Content-Length"};
  }
  if (!transfer.empty() && !equal_ignoring_case(transfer, "chunked")) {
    return ParseFailure{501, "of transfer encodings only chunked is understood here"};
  }
  const std::string_view content = view(message[http::field::content_encoding]);
  if (!content.empty() && !equal_ignoring_case(content, "identity")) {
    return ParseFailure{415, "compressed bodies are not taken; send it without Content-Encoding"};
  }
  return std::nullopt;
}

// "http://host/path" as a proxy is asked, which servers understand too (RFC 9112 3.2.2), as
// "/path".
std::string_view origin_form(std::string_view target) {
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return target;
  const size_t path = target.find_first_of("/?", scheme + 3);
  return path == std::string_view::npos ? "/" : target.substr(path);
}

}  // namespace

RequestParser::RequestParser(const ParserLimits& limits) : state_(std::make_unique<State>()) {
  state_->limits = limits;
  state_->parser.header_limit(static_cast<uint32_t>(limits.head_bytes_max));
  state_->parser.body_limit(limits.body_bytes_max);
  state_->parser.eager(true);
}

RequestParser::~RequestParser() = default;

std::optional<ParseFailure> RequestParser::take(std::string& input) {
  auto& parser = state_->parser;
  size_t used = 0;
  std::optional<ParseFailure> failure;
  while (!parser.is_done() && used < input.size()) {
    // Whatever is still to come of a chunked body, its shortest end is in it; the grammar takes for
    // granted that it is shown that in one piece.
    if (parser.is_header_done() && parser.chunked() && input.size() - used < kLastChunk.size()) {
      break;
    }
    boost::system::error_code code;
    const size_t count =
        parser.put(boost::asio::const_buffer(input.data() + used, input.size() - used), code);
    used += count;
    if (code && code != http::error::need_more) {
      failure = describe(code, state_->limits);
      break;
    }
    if (parser.is_header_done() && !state_->head_checked) {
      state_->head_checked = true;
      const auto& message = parser.get();
      const auto fields = std::distance(message.begin(), message.end());
      if (static_cast<size_t>(fields) > state_->limits.fields_max) {
        failure = ParseFailure{431, "the request has more than " +
                                        std::to_string(state_->limits.fields_max) + " fields"};
        break;
      }
      failure = check_head(message);
      if (failure) break;
    }
    if (code == http::error::need_more || count == 0) break;
  }
  input.erase(0, used);
  // What is left of a body's own bytes is the head of a chunk, or fields after the last one.
  if (!failure && parser.is_header_done() && !parser.is_done() &&
      input.size() > state_->limits.head_bytes_max) {
    failure = ParseFailure{431, "a chunk's head or the fields after the last one are longer than " +
                                    std::to_string(state_->limits.head_bytes_max) + " bytes"};
  }
  return failure;
}

bool RequestParser::head_done() const { return state_->parser.is_header_done(); }
bool RequestParser::done() const { return state_->parser.is_done(); }

bool RequestParser::wants_continue() const {
  if (!head_done()) return false;
  return equal_ignoring_case(view(state_->parser.get()[http::field::expect]), "100-continue");
}

size_t RequestParser::body_bytes() const {
  if (!head_done()) return 0;
  const auto declared = state_->parser.content_length();
  const size_t come = state_->parser.get().body().capacity();
  return declared ? std::max<size_t>(static_cast<size_t>(*declared), come) : come;
}

HttpRequest RequestParser::release() {
  auto message = state_->parser.release();
  HttpRequest request;
  request.method = std::string(view(message.method_string()));
  const std::string_view target = origin_form(view(message.target()));
  const size_t question = target.find('?');
  request.path = std::string(target.substr(0, question));
  if (question != std::string_view::npos) request.query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    request.fields.push_back(
        {std::string(view(field.name_string())), std::string(view(field.value()))});
  }
  request.keep_alive = message.keep_alive();
  request.can_stream = message.version() >= 11;
  request.body = std::move(message.body());
  return request;
}

}  // namespace galley::net
