// A client's side of HTTP/1.1, for measuring servers: one connection, one request after another,
// bodies handed on piece by piece as they come.
//
// Blocking, with a bound on every wait. Plain HTTP only. Not thread-safe: one client a thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::net {

struct HttpUrl {
  std::string host;
  int32_t port = 80;
  std::string base;  // path without a trailing slash, "" for the root
};

// "http://host:port/base". kUnsupported for https, kInvalid for what is no URL.
Result<HttpUrl> parse_http_url(std::string_view text);

struct ClientRequest {
  std::string method = "GET";
  std::string path = {};  // after the URL's base, with its slash
  std::string body = {};  // sent as JSON when not empty
  std::string bearer = {};
};

class HttpClient {
 public:
  // `patience` bounds each wait for the server: connecting, and every pause between bytes.
  HttpClient(HttpUrl url, std::chrono::milliseconds patience);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends a request, connecting if need be, and hands on the body's pieces; a piece answered with
  // false closes the connection at once. The status, once the body is over. A connection that the
  // server closed while it idled is opened again.
  using OnBody = std::function<bool(std::string_view piece)>;
  Result<int> request(const ClientRequest& request, const OnBody& on_body);

 private:
  Result<void> connect();
  Result<void> send(std::string_view bytes);
  // Nothing: the connection ended before the answer's first byte.
  Result<int> receive(const OnBody& on_body, bool& untouched);
  void close();

  HttpUrl url_;
  std::chrono::milliseconds patience_;
  int fd_ = -1;
};

}  // namespace galley::net
