#include "net/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace galley::net {
namespace {

namespace http = boost::beast::http;

Error io_error(const HttpUrl& url, const char* action, int number) {
  const bool late = number == EAGAIN || number == EINPROGRESS;
  return {ErrorCode::kIo, std::string("cannot ") + action + " " + url.host + ":" +
                              std::to_string(url.port) + ": " +
                              (late ? "no answer in time" : std::strerror(number))};
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  const std::string shown(text.substr(0, 200));
  if (text.starts_with("https://")) {
    return Error{ErrorCode::kUnsupported, "\"" + shown + "\": only http:// is spoken here"};
  }
  constexpr std::string_view kScheme = "http://";
  const Error wrong{ErrorCode::kInvalid,
                    "\"" + shown + "\" is not a URL such as http://127.0.0.1:8000"};
  if (!text.starts_with(kScheme)) return wrong;
  text.remove_prefix(kScheme.size());
  HttpUrl url;
  const size_t slash = text.find('/');
  std::string_view authority = text.substr(0, slash);
  if (slash != std::string_view::npos) url.base = std::string(text.substr(slash));
  while (!url.base.empty() && url.base.back() == '/') url.base.pop_back();
  const size_t bracket = authority.find(']');
  const size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    const std::string_view port = authority.substr(colon + 1);
    const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (code != std::errc() || end != port.data() + port.size()) return wrong;
    if (url.port < 1 || url.port > 65535) return wrong;
    authority = authority.substr(0, colon);
  }
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return wrong;
  url.host = std::string(authority);
  return url;
}

HttpClient::HttpClient(HttpUrl url, std::chrono::milliseconds patience)
    : url_(std::move(url)), patience_(patience) {}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<void> HttpClient::connect() {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(url_.port);
  if (const int code = ::getaddrinfo(url_.host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return Error{ErrorCode::kNotFound,
                 "cannot find host " + url_.host + ": " + ::gai_strerror(code)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  int number = ECONNREFUSED;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    fd_ = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
    if (fd_ < 0) {
      number = errno;
      continue;
    }
    const timeval wait = {.tv_sec = patience_.count() / 1000,
                          .tv_usec = patience_.count() % 1000 * 1000};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(fd_, one->ai_addr, one->ai_addrlen) == 0) return {};
    number = errno;
    close();
  }
  return io_error(url_, "connect to", number);
}

Result<void> HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return io_error(url_, "send to", errno);
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return {};
}

Result<int> HttpClient::receive(const OnBody& on_body, bool& untouched) {
  http::response_parser<http::string_body> parser;
  parser.eager(true);
  parser.body_limit(boost::none);
  std::array<char, 16384> bytes;
  std::string input;
  untouched = true;
  while (!parser.is_done()) {
    const ssize_t count = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error(url_, "read from", errno);
    boost::system::error_code code;
    if (count == 0) {
      if (!untouched) parser.put_eof(code);
      if (parser.is_done()) break;
      return Error{ErrorCode::kIo, "the server closed the connection in the middle of an answer"};
    }
    untouched = false;
    input.append(bytes.data(), static_cast<size_t>(count));
    size_t used = 0;
    while (used < input.size() && !parser.is_done()) {
      const size_t taken =
          parser.put(boost::asio::const_buffer(input.data() + used, input.size() - used), code);
      used += taken;
      if (code == http::error::need_more || taken == 0) break;
      if (code) return Error{ErrorCode::kCorrupt, "the answer is not HTTP: " + code.message()};
    }
    input.erase(0, used);
    // What has come of the body is handed on and forgotten.
    std::string& body = parser.get().body();
    if (!body.empty() && !on_body(body)) {
      close();
      break;
    }
    body.clear();
  }
  if (!parser.keep_alive()) close();
  return static_cast<int>(parser.get().result_int());
}

Result<int> HttpClient::request(const ClientRequest& request, const OnBody& on_body) {
  std::string head = request.method + " " + url_.base + request.path +
                     " HTTP/1.1\r\nHost: " + url_.host + ":" + std::to_string(url_.port) + "\r\n";
  if (!request.bearer.empty()) head += "Authorization: Bearer " + request.bearer + "\r\n";
  if (!request.body.empty()) {
    head +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(request.body.size()) +
        "\r\n";
  }
  head += "\r\n" + request.body;
  while (true) {
    const bool reused = fd_ >= 0;
    if (!reused) TRY(connect());
    bool untouched = true;
    const auto sent = send(head);
    Result<int> status = sent ? receive(on_body, untouched) : Result<int>(sent.error());
    if (status) return status;
    close();
    // Only a connection that idled may have ended without anything being wrong.
    if (!reused || !untouched) return status;
  }
}

}  // namespace galley::net
