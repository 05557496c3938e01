// The client against the real server: whole answers, streams, a connection used again or closed
// while it idled, and what is no URL.
#include "net/http_client.h"

#include <gtest/gtest.h>

#include <thread>

#include "net/address.h"
#include "net/event_loop.h"
#include "net/server.h"

namespace galley::net {
namespace {

using std::chrono::milliseconds;

TEST(HttpUrl, Parts) {
  const auto plain = parse_http_url("http://127.0.0.1:8000");
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->host, "127.0.0.1");
  EXPECT_EQ(plain->port, 8000);
  EXPECT_EQ(plain->base, "");
  const auto deep = parse_http_url("http://[::1]/api/");
  ASSERT_TRUE(deep);
  EXPECT_EQ(deep->host, "::1");
  EXPECT_EQ(deep->port, 80);
  EXPECT_EQ(deep->base, "/api");
  for (const char* wrong : {"", "127.0.0.1:8000", "http://", "http://a:", "http://a:0",
                            "http://a:70000", "http://a:80x", "https://a"}) {
    EXPECT_FALSE(parse_http_url(wrong)) << wrong;
  }
}

class HttpClientTest : public ::testing::Test {
 protected:
  HttpClientTest() {
    ServerOptions options;
    options.idle_timeout = milliseconds(150);
    server_ = std::make_unique<Server>(loop_, options, [](const auto& exchange) {
      const HttpRequest& request = exchange->request();
      HttpResponse head;
      head.status = request.path == "/base/missing" ? 404 : 200;
      if (request.path == "/base/stream") {
        exchange->begin_stream(head);
        for (const char* piece : {"one ", "two ", "three"}) exchange->write(piece);
        exchange->end_stream();
        return;
      }
      head.body = request.method + " " + request.body;
      exchange->respond(std::move(head));
    });
    auto socket = ListenSocket::bind_tcp("127.0.0.1", 0);
    port_ = socket->port();
    EXPECT_TRUE(server_->start(std::move(*socket)));
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~HttpClientTest() override {
    loop_.stop();
    thread_.join();
  }

  HttpClient client() {
    return HttpClient({.host = "127.0.0.1", .port = port_, .base = "/base"}, milliseconds(3000));
  }

  EventLoop loop_;
  std::unique_ptr<Server> server_;
  int32_t port_ = 0;
  std::thread thread_;
};

TEST_F(HttpClientTest, WholeStreamedAndRefused) {
  HttpClient client = this->client();
  std::string body;
  const auto take = [&](std::string_view piece) {
    body += piece;
    return true;
  };
  auto status = client.request({.method = "POST", .path = "/echo", .body = "{}"}, take);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(*status, 200);
  EXPECT_EQ(body, "POST {}");
  body.clear();
  status = client.request({.path = "/stream"}, take);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(body, "one two three");
  status = client.request({.path = "/missing"}, take);
  ASSERT_TRUE(status);
  EXPECT_EQ(*status, 404);
}

TEST_F(HttpClientTest, AConnectionClosedWhileIdleIsOpenedAgain) {
  HttpClient client = this->client();
  const auto take = [](std::string_view) { return true; };
  ASSERT_TRUE(client.request({.path = "/echo"}, take));
  std::this_thread::sleep_for(milliseconds(600));
  const auto status = client.request({.path = "/echo"}, take);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(*status, 200);
}

TEST(HttpClient, NobodyListens) {
  auto socket = ListenSocket::bind_tcp("127.0.0.1", 0);
  ASSERT_TRUE(socket);
  HttpClient client({.host = "127.0.0.1", .port = socket->port(), .base = ""},
                    milliseconds(2000));  // bound, not listening
  const auto status = client.request({.path = "/"}, [](std::string_view) { return true; });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("127.0.0.1"), std::string::npos);
}

}  // namespace
}  // namespace galley::net
