// Requests come out whole however the bytes are cut; what is no request, or too much, says so.
#include "net/request_parser.h"

#include <gtest/gtest.h>

namespace galley::net {
namespace {

constexpr std::string_view kPost =
    "POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\nContent-Length: "
    "5\r\n\r\nhello";

std::optional<ParseFailure> feed(RequestParser& parser, std::string_view bytes, size_t piece) {
  std::string input;
  for (size_t begin = 0; begin < bytes.size() && !parser.done(); begin += piece) {
    input += bytes.substr(begin, piece);
    if (auto failure = parser.take(input)) return failure;
  }
  return std::nullopt;
}

int status_of(std::string_view bytes, const ParserLimits& limits = {}) {
  RequestParser parser(limits);
  const auto failure = feed(parser, bytes, bytes.size());
  if (failure) return failure->status;
  return parser.done() ? 200 : 0;
}

TEST(RequestParser, EveryCut) {
  for (size_t piece = 1; piece <= kPost.size(); ++piece) {
    RequestParser parser({});
    ASSERT_FALSE(feed(parser, kPost, piece)) << piece;
    ASSERT_TRUE(parser.done()) << piece;
    const HttpRequest request = parser.release();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/completions");
    EXPECT_EQ(request.query, "x=1");
    EXPECT_EQ(request.field("x-api-KEY"), "k");
    EXPECT_FALSE(request.field("x-api"));
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.keep_alive);
    EXPECT_TRUE(request.can_stream);
  }
}

TEST(RequestParser, LeavesTheNextRequestAlone) {
  RequestParser parser({});
  std::string input = std::string(kPost) + "GET / HTTP/1.1\r\n";
  ASSERT_FALSE(parser.take(input));
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(input, "GET / HTTP/1.1\r\n");
}

TEST(RequestParser, ChunkedBodies) {
  RequestParser parser({});
  const std::string_view text =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  ASSERT_FALSE(feed(parser, text, 1));
  ASSERT_TRUE(parser.done());
  EXPECT_EQ(parser.release().body, "abcde");
}

TEST(RequestParser, OlderClientsGetNoStream) {
  RequestParser parser({});
  ASSERT_FALSE(feed(parser, "GET / HTTP/1.0\r\n\r\n", 3));
  const HttpRequest request = parser.release();
  EXPECT_FALSE(request.keep_alive);
  EXPECT_FALSE(request.can_stream);
}

TEST(RequestParser, Limits) {
  const ParserLimits small = {.head_bytes_max = 200, .fields_max = 3, .body_bytes_max = 4};
  EXPECT_EQ(status_of(kPost), 200);
  EXPECT_EQ(status_of(kPost, small), 413);
  EXPECT_EQ(
      status_of("GET / HTTP/1.1\r\nHost: a\r\nA: " + std::string(300, 'x') + "\r\n\r\n", small),
      431);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nC: d\r\nE: f\r\n\r\n", small), 431);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "3\r\nabc\r\n3\r\nabc\r\n0\r\n\r\n",
                      small),
            413);
}

// The end of a chunked body in pieces of any size, with and without fields after it.
TEST(RequestParser, TheLastChunkByteByByte) {
  for (const std::string_view end : {"0\r\n\r\n", "0\r\nA: b\r\n\r\n", "0;x=y\r\n\r\n"}) {
    for (const size_t piece : {1, 2, 3, 4, 5}) {
      for (const std::string_view chunks : {"", "2\r\nab\r\n"}) {
        RequestParser parser({});
        std::string text = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        text.append(chunks).append(end);
        ASSERT_FALSE(feed(parser, text, piece)) << end << " by " << piece;
        ASSERT_TRUE(parser.done()) << end << " by " << piece;
        EXPECT_EQ(parser.release().body, chunks.empty() ? "" : "ab");
      }
    }
  }
}

// A chunk's extensions and the fields at the end have the bound of a head: they would gather else.
TEST(RequestParser, ChunkHeadsAreBounded) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string much(1000, 'x');
  const ParserLimits small = {.head_bytes_max = 200, .fields_max = 3, .body_bytes_max = 4};
  EXPECT_EQ(status_of(head + "1;" + much, small), 431);
  EXPECT_EQ(status_of(head + "0\r\nA: " + much, small), 431);
}

// Two lengths for one body are how a request is smuggled past a proxy.
TEST(RequestParser, Nonsense) {
  for (const std::string_view text :
       {"\x16\x03\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"}) {
    EXPECT_EQ(status_of(text), 400) << text;
  }
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
}

// Two hosts are how a check of the host is got round; an encoding that is not undone makes another
// request of the bytes.
TEST(RequestParser, OneHostAndNoEncodingThatIsLeftUndone) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(status_of(post + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"), 415);
  EXPECT_EQ(status_of(post + "Content-Encoding: identity\r\nContent-Length: 1\r\n\r\nx"), 200);
}

TEST(RequestParser, TargetsInTheFormForProxies) {
  const auto path_and_query = [](const std::string& target) {
    RequestParser parser({});
    EXPECT_FALSE(feed(parser, "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n", 7));
    const HttpRequest request = parser.release();
    return request.path + "|" + request.query;
  };
  EXPECT_EQ(path_and_query("http://a:80/health?x=1"), "/health|x=1");
  EXPECT_EQ(path_and_query("http://a"), "/|");
  EXPECT_EQ(path_and_query("/go?to=http://a/b"), "/go|to=http://a/b");
  EXPECT_EQ(path_and_query("*"), "*|");
}

TEST(RequestParser, ExpectsToBeToldToGoOn) {
  RequestParser parser({});
  std::string input =
      "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
  ASSERT_FALSE(parser.take(input));
  EXPECT_TRUE(parser.head_done());
  EXPECT_FALSE(parser.done());
  EXPECT_TRUE(parser.wants_continue());
  EXPECT_GE(parser.body_bytes(), 3U);
}

TEST(ResponseHead, NothingFromOutsideEndsAField) {
  const HttpResponse response = {200, {{"X-Warning", "a\r\nSet-Cookie: b\n"}}, "body"};
  const std::string head = response_head(response, {.now_s = 784111777});
  EXPECT_EQ(head,
            "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
            "X-Warning: a  Set-Cookie: b \r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\n");
}

TEST(ResponseHead, Chunks) {
  std::string out;
  append_chunk(std::string(26, 'x'), out);
  EXPECT_EQ(out, "1a\r\n" + std::string(26, 'x') + "\r\n");
}

}  // namespace
}  // namespace galley::net
