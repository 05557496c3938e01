// A real server on loopback against raw sockets: keep-alive, pipelining, streams, limits of
// size and time, clients that leave, drain. Times are short so that the test is.
#include "net/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "net/address.h"

namespace galley::net {
namespace {

using std::chrono::milliseconds;

class Client {
 public:
  explicit Client(int32_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void shut_down() const { ::shutdown(fd_, SHUT_RDWR); }
  void send(std::string_view bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  // Until `end` is in what came, the connection ends, or time is up.
  std::string receive_until(std::string_view end, milliseconds time = milliseconds(5000)) {
    const auto stop = std::chrono::steady_clock::now() + time;
    while (end.empty() || held_.find(end) == std::string::npos) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(stop - std::chrono::steady_clock::now());
      pollfd wanted = {.fd = fd_, .events = POLLIN, .revents = 0};
      if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) <= 0) break;
      char bytes[4096];
      const ssize_t count = ::recv(fd_, bytes, sizeof bytes, 0);
      if (count <= 0) {
        ended_ = true;
        break;
      }
      held_.append(bytes, static_cast<size_t>(count));
    }
    const size_t found = end.empty() ? std::string::npos : held_.find(end);
    const size_t size = found == std::string::npos ? held_.size() : found + end.size();
    std::string result = held_.substr(0, size);
    held_.erase(0, size);
    return result;
  }
  std::string receive_all() { return receive_until(""); }
  bool ended() const { return ended_; }

 private:
  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  std::string held_;
};

// "/whole" answers its body, "/stream" three pieces, "/flood" all that the client takes,
// "/wait" never.
class ServerTest : public ::testing::Test {
 protected:
  void start(ServerOptions options) {
    server_ = std::make_unique<Server>(loop_, std::move(options),
                                       [this](const auto& exchange) { handle(exchange); });
    auto socket = ListenSocket::bind_tcp("127.0.0.1", 0);
    ASSERT_TRUE(socket);
    EXPECT_TRUE(socket->is_local());
    port_ = socket->port();
    ASSERT_TRUE(server_->start(std::move(*socket)));
    thread_ = std::thread([this] { loop_.run(); });
  }

  void TearDown() override {
    on_loop([this] { server_->close(); });
    loop_.stop();
    thread_.join();
  }

  void on_loop(const std::function<void()>& work) {
    std::atomic<bool> done = false;
    loop_.post([&] {
      work();
      done = true;
    });
    while (!done) std::this_thread::sleep_for(milliseconds(1));
  }

  ServerCounts counts() {
    ServerCounts result;
    on_loop([&] { result = server_->counts(); });
    return result;
  }

  void handle(const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([this] { ++gone_; });
    const std::string& path = exchange->request().path;
    if (path == "/whole") {
      exchange->respond({200, {{"X-A", "b"}}, exchange->request().body + "!"});
    } else if (path == "/stream") {
      exchange->begin_stream({200, {{"Content-Type", "text/event-stream"}}, ""});
      for (const char* piece : {"one", "two", "three"}) exchange->write(piece);
      exchange->end_stream();
    } else if (path == "/flood") {
      exchange->begin_stream({});
      flood(exchange);
    }
  }

  void flood(const std::shared_ptr<Exchange>& exchange) {
    const std::string piece(10'000, 'x');
    while (exchange->has_room() && !exchange->gone()) {
      exchange->write(piece);
      flooded_ += static_cast<int64_t>(piece.size());
    }
    exchange->on_room([this, exchange] { flood(exchange); });
  }

  template <class Condition>
  bool soon(Condition condition) {
    for (int i = 0; i < 400; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  EventLoop loop_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  int32_t port_ = 0;
  std::atomic<int> gone_ = 0;
  std::atomic<int64_t> flooded_ = 0;
};

constexpr std::string_view kWhole =
    "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";

TEST_F(ServerTest, AnswersOneAfterAnother) {
  start({});
  Client client(port_);
  for (int i = 0; i < 3; ++i) {
    client.send(kWhole);
    const std::string answer = client.receive_until("hi!");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("X-A: b\r\n"), std::string::npos);
    EXPECT_NE(answer.find("Content-Length: 3\r\n"), std::string::npos);
  }
  // Two at once, and an empty line between them.
  client.send(std::string(kWhole) + "\r\n" + std::string(kWhole));
  client.receive_until("hi!");
  EXPECT_TRUE(client.receive_until("hi!").ends_with("hi!"));
  EXPECT_FALSE(client.ended());
  client.send("GET /whole HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.receive_all().ends_with("!"));
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(gone_, 0);
}

TEST_F(ServerTest, StreamsInChunks) {
  start({});
  Client client(port_);
  client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string answer = client.receive_until("0\r\n\r\n");
  EXPECT_NE(answer.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n")) << answer;
  client.send(kWhole);
  EXPECT_TRUE(client.receive_until("hi!").ends_with("hi!"));
  Client old(port_);
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(old.receive_all().ends_with("\r\n\r\nonetwothree"));
  EXPECT_TRUE(old.ended());
}

TEST_F(ServerTest, HeadHasNoBody) {
  start({});
  Client client(port_);
  client.send("HEAD /whole HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string answer = client.receive_all();
  EXPECT_NE(answer.find("Content-Length: 1\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST_F(ServerTest, BadRequestsAreAnsweredAndTheNextClientServed) {
  ServerOptions options;
  options.parser.body_bytes_max = 10;
  start(options);
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, std::string>>{
           {"nonsense\r\n\r\n", "400"},
           {std::string(100'000, 'x'), "4"},
           {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", "413"}}) {
    Client client(port_);
    client.send(bytes);
    EXPECT_TRUE(client.receive_all().starts_with("HTTP/1.1 " + status)) << bytes.substr(0, 20);
    EXPECT_TRUE(client.ended());
  }
  Client client(port_);
  client.send(kWhole);
  EXPECT_TRUE(client.receive_until("hi!").ends_with("hi!"));
}

TEST_F(ServerTest, SlowClientsAreCut) {
  ServerOptions options;
  options.idle_timeout = milliseconds(600);
  options.head_timeout = milliseconds(300);
  options.body_timeout = milliseconds(300);
  options.write_timeout = milliseconds(300);
  start(options);
  Client idle(port_);
  Client head(port_);
  Client body(port_);
  Client flood(port_);
  head.send("GET /whole HT");
  body.send("POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nx");
  flood.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");  // and reads nothing
  EXPECT_TRUE(head.receive_all().starts_with("HTTP/1.1 408"));
  EXPECT_TRUE(body.receive_all().starts_with("HTTP/1.1 408"));
  EXPECT_EQ(idle.receive_all(), "");
  EXPECT_TRUE(idle.ended());
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
  EXPECT_TRUE(soon([&] { return counts().connections == 0; }));
  EXPECT_EQ(counts().timed_out, 3);
}

TEST_F(ServerTest, AStreamGoesAtTheClientsPace) {
  ServerOptions options;
  options.stream_bytes_max = 50'000;
  start(options);
  Client client(port_);
  client.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  int64_t before = 0;
  // Full when the kernel's buffers are and 50 kB wait.
  ASSERT_TRUE(soon([&] {
    const bool still = flooded_ > 0 && flooded_ == before;
    before = flooded_;
    std::this_thread::sleep_for(milliseconds(50));
    return still;
  }));
  const int64_t stalled = flooded_;
  EXPECT_LT(stalled, 20'000'000);
  client.receive_until("no such text", milliseconds(200));
  EXPECT_TRUE(soon([&] { return flooded_ > stalled; }));
  client.close();
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
}

TEST_F(ServerTest, NoticesThatTheClientLeft) {
  start({});
  Client client(port_);
  client.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return counts().answering == 1; }));
  client.close();
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
  EXPECT_EQ(counts().answering, 0);
}

TEST_F(ServerTest, AFullHouseMakesRoomOrSaysSo) {
  ServerOptions options;
  options.connections_max = 2;
  start(options);
  Client idle(port_);
  Client busy(port_);
  busy.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return counts().answering == 1; }));
  Client second(port_);  // takes the idle one's place
  second.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(idle.receive_all(), "");
  ASSERT_TRUE(soon([&] { return counts().answering == 2; }));
  Client third(port_);
  EXPECT_TRUE(third.receive_all().starts_with("HTTP/1.1 503"));
  EXPECT_EQ(counts().refused, 1);
}

// Heads that take their time hold no place that somebody else asks for.
TEST_F(ServerTest, SlowHeadsMakeRoom) {
  ServerOptions options;
  options.connections_max = 2;
  start(options);
  const Client first(port_);
  const Client second(port_);
  first.send("GET /wait HTTP/1.1\r\n");
  second.send("GET /wait HTTP/1.1\r\n");
  ASSERT_TRUE(soon([&] { return counts().connections == 2; }));
  std::this_thread::sleep_for(milliseconds(1100));
  Client third(port_);
  third.send("GET /whole HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(third.receive_until("\r\n\r\n!").find("200 OK"), std::string::npos);
}

// Whoever sends without end, whatever it is, leaves the loop to the others between two turns.
TEST_F(ServerTest, NobodyHasTheLoopForItself) {
  start({});
  const std::string requests = [] {
    std::string text;
    while (text.size() < 1 << 20) text += "GET /whole HTTP/1.1\r\nHost: a\r\n\r\n";
    return text;
  }();
  for (const std::string& endless :
       {requests, std::string(1 << 20, '\n'), "NOT HTTP\r\n\r\n" + std::string(1 << 20, 'x')}) {
    Client greedy(port_);
    std::atomic<bool> stop = false;
    std::thread sends([&] {
      while (!stop) greedy.send(endless);
    });
    std::thread takes([&] {
      while (!stop) greedy.receive_until("!", milliseconds(20));
    });
    std::this_thread::sleep_for(milliseconds(100));
    int answered = 0;
    for (int i = 0; i < 5; ++i) {
      Client other(port_);
      other.send("GET /whole HTTP/1.1\r\nHost: a\r\n\r\n");
      answered += other.receive_until("\r\n\r\n!").ends_with("!") ? 1 : 0;
    }
    stop = true;
    greedy.shut_down();  // both threads come back from their calls
    sends.join();
    takes.join();
    EXPECT_EQ(answered, 5) << endless.substr(0, 20);
  }
}

TEST_F(ServerTest, BodiesTogetherHaveALimit) {
  ServerOptions options;
  options.bodies_bytes_max = 1000;
  start(options);
  const std::string head = "POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n";
  Client first(port_);
  first.send(head);
  ASSERT_TRUE(soon([&] { return counts().connections == 1; }));
  std::this_thread::sleep_for(milliseconds(50));
  Client second(port_);
  second.send(head);
  EXPECT_TRUE(second.receive_all().starts_with("HTTP/1.1 503"));
  first.close();
  ASSERT_TRUE(soon([&] { return counts().connections == 0; }));
  Client third(port_);
  third.send(head + std::string(600, 'x'));
  EXPECT_TRUE(soon([&] { return counts().answering == 1; }));
}

TEST_F(ServerTest, TellsToGoOn) {
  start({});
  Client client(port_);
  client.send(
      "POST /whole HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("hi");
  EXPECT_TRUE(client.receive_until("hi!").starts_with("HTTP/1.1 200"));
}

TEST_F(ServerTest, DrainLetsAnswersEnd) {
  start({});
  Client idle(port_);
  Client busy(port_);
  busy.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return counts().answering == 1 && counts().connections == 2; }));
  on_loop([&] { server_->drain(); });
  EXPECT_EQ(idle.receive_all(), "");
  EXPECT_FALSE(Client(port_).connected());
  EXPECT_EQ(counts().answering, 1);
  busy.close();
  EXPECT_TRUE(soon([&] { return counts().connections == 0; }));
}

TEST(TlsContext, SaysWhichFileIsWrongAndHow) {
  const auto load = [](const std::string& certificate, const std::string& key) {
    const auto context = TlsContext::load(certificate, key);
    return context ? "loaded" : context.error().message;
  };
  const std::string missing = testing::TempDir() + "galley_no_such.pem";
  EXPECT_EQ(load(missing, missing), "cannot open " + missing + ": No such file or directory");
  const std::string text = testing::TempDir() + "galley_text.pem";
  std::ofstream(text) << "no certificate";
  EXPECT_TRUE(load(text, text).starts_with(text + ": not a PEM certificate chain"))
      << load(text, text);
}

TEST(Address, Endpoints) {
  EXPECT_EQ(*parse_endpoint("0.0.0.0:80"), (std::pair<std::string, int32_t>("0.0.0.0", 80)));
  EXPECT_EQ(*parse_endpoint("[::1]:80"), (std::pair<std::string, int32_t>("::1", 80)));
  EXPECT_EQ(*parse_endpoint("9090"), (std::pair<std::string, int32_t>("127.0.0.1", 9090)));
  for (const char* wrong : {"", ":", "a:", ":80", "a:b", "a:99999", "::1:80", "a:-1"}) {
    EXPECT_FALSE(parse_endpoint(wrong)) << wrong;
  }
}

TEST(Address, SocketFiles) {
  const std::string path = ::testing::TempDir() + "galley-address-test.sock";
  ::unlink(path.c_str());
  {
    auto first = ListenSocket::bind_unix(path);
    ASSERT_TRUE(first);
    const int fd = *first->listen();
    EXPECT_FALSE(ListenSocket::bind_unix(path));  // somebody answers there
    ::close(fd);
  }
  EXPECT_TRUE(ListenSocket::bind_unix(path));  // left behind
  ::unlink(path.c_str());
  EXPECT_FALSE(ListenSocket::bind_unix(std::string(200, 'x')));
}

}  // namespace
}  // namespace galley::net
