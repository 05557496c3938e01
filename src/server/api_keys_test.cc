// The file of API keys, who is let in by it, and what each may still use: all on values, without
// a socket or a clock.
#include "server/api_keys.h"

#include <gtest/gtest.h>

#include "server/gate.h"
#include "server/rate_limit.h"

namespace galley::server {
namespace {

using std::chrono::seconds;

const RateLimit::TimePoint kStart{};

// sha256 of "secret".
constexpr const char* kFile = R"(
[[key]]
name = "alice"
sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
scopes = ["infer", "admin"]
concurrency = 2
requests-per-minute = 6
)";

net::HttpRequest request_with(std::vector<net::HttpField> fields) {
  net::HttpRequest request;
  request.fields = std::move(fields);
  return request;
}

TEST(ApiKeys, FindsWhatWasHashed) {
  const auto keys = ApiKeys::parse(kFile);
  ASSERT_TRUE(keys) << keys.error().message;
  const ApiKey* key = keys->find("secret");
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(key->name, "alice");
  EXPECT_TRUE(key->may(Scope::kInfer));
  EXPECT_TRUE(key->may(Scope::kAdmin));
  EXPECT_FALSE(key->may(Scope::kBatch));
  EXPECT_EQ(key->limits.concurrency, 2);
  EXPECT_EQ(key->limits.tokens_per_minute, std::nullopt);
  for (const char* other : {"", "Secret", "secret ", "secre"}) {
    EXPECT_EQ(keys->find(other), nullptr) << other;
  }
}

TEST(ApiKeys, AFreshKeyIsLetIn) {
  const auto first = make_key("bob");
  const auto second = make_key("carol");
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->key, second->key);
  EXPECT_EQ(first->entry.find(first->key), std::string::npos);
  const auto keys = ApiKeys::parse(first->entry + second->entry);
  ASSERT_TRUE(keys) << keys.error().message;
  EXPECT_EQ(keys->find(first->key)->name, "bob");
  EXPECT_EQ(keys->find(second->key)->name, "carol");
  EXPECT_FALSE(make_key("bad name"));
}

TEST(ApiKeys, SaysWhichLineIsWrong) {
  const std::string digest(64, 'a');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no [[key]]"},
      {"[[key]", "line 1"},
      {"x = 1", "line 1"},
      {"[[key]]\nname = \"a\"", "needs its sha256"},
      {"[[key]]\nname = \"a b\"", "line 2"},
      {"[[key]]\nsha256 = \"" + digest + "\"", "needs a name"},
      {"[[key]]\nname = \"a\"\nsha256 = \"A\"", "line 3"},
      {"[[key]]\nname = \"a\"\nsha256 = \"" + digest + "\"\nscopes = [\"root\"]", "no scope"},
      {"[[key]]\nname = \"a\"\nsha256 = \"" + digest + "\"\nconcurrency = 0", "above 0"},
      {"[[key]]\nname = \"a\"\nsha256 = \"" + digest + "\"\nkey = \"secret\"", "no \"key\""},
  };
  for (const auto& [text, words] : cases) {
    const auto keys = ApiKeys::parse(text);
    ASSERT_FALSE(keys) << text;
    EXPECT_NE(keys.error().message.find(words), std::string::npos) << keys.error().message;
  }
}

TEST(RateLimit, RequestsAMinute) {
  RateLimit rate(kStart);
  const KeyLimits limits = {.requests_per_minute = 2};
  EXPECT_FALSE(rate.start(limits, kStart));
  EXPECT_FALSE(rate.start(limits, kStart));
  const auto refusal = rate.start(limits, kStart);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->retry_after_s, 30);
  EXPECT_EQ(rate.requests_left(limits), 0);
  EXPECT_TRUE(rate.start(limits, kStart + seconds(29)));
  EXPECT_FALSE(rate.start(limits, kStart + seconds(30)));
}

TEST(RateLimit, TokensAreChargedAfterwards) {
  RateLimit rate(kStart);
  const KeyLimits limits = {.tokens_per_minute = 60};
  EXPECT_FALSE(rate.start(limits, kStart));
  rate.charge_tokens(90);
  const auto refusal = rate.start(limits, kStart);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->retry_after_s, 31);
  EXPECT_FALSE(rate.start(limits, kStart + seconds(31)));
}

TEST(RateLimit, PromptsAreChargedBeforeTheyRun) {
  RateLimit rate(kStart);
  const KeyLimits limits = {.tokens_per_minute = 60};
  EXPECT_FALSE(rate.reserve_tokens(40, limits, kStart));
  const auto refusal = rate.reserve_tokens(30, limits, kStart);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->retry_after_s, 10);
  EXPECT_NE(refusal->message.find("has 20 left; the prompt has 30"), std::string::npos);
  EXPECT_EQ(rate.tokens_left(limits), 20);  // a refusal costs nothing
  EXPECT_FALSE(rate.reserve_tokens(30, limits, kStart + seconds(10)));
  rate.charge_tokens(-70);  // nothing of it ran
  EXPECT_EQ(rate.tokens_left(limits), 60);
  // Larger than a minute's worth: only when there is all of it.
  EXPECT_FALSE(rate.reserve_tokens(1000, limits, kStart + seconds(10)));
  EXPECT_EQ(rate.reserve_tokens(1, limits, kStart + seconds(10))->retry_after_s, 941);
  EXPECT_FALSE(RateLimit(kStart).reserve_tokens(1000, {}, kStart));
}

TEST(RateLimit, RequestsAtOnce) {
  RateLimit rate(kStart);
  const KeyLimits limits = {.concurrency = 1};
  EXPECT_FALSE(rate.start(limits, kStart));
  EXPECT_TRUE(rate.start(limits, kStart + seconds(1000)));
  rate.finish();
  EXPECT_FALSE(rate.start(limits, kStart));
}

TEST(Gate, AsksForTheKeyAndItsScope) {
  Gate gate(*ApiKeys::parse(kFile), {});
  using Kind = GateRefusal::Kind;
  const auto kind = [&](std::vector<net::HttpField> fields, Scope scope) {
    const auto outcome = gate.admit(request_with(std::move(fields)), scope, kStart);
    const auto* refusal = std::get_if<GateRefusal>(&outcome);
    return refusal != nullptr ? std::optional(refusal->kind) : std::nullopt;
  };
  EXPECT_EQ(kind({}, Scope::kInfer), Kind::kNoKey);
  EXPECT_EQ(kind({{"Authorization", "Basic secret"}}, Scope::kInfer), Kind::kNoKey);
  EXPECT_EQ(kind({{"Authorization", "Bearer wrong"}}, Scope::kInfer), Kind::kUnknownKey);
  EXPECT_EQ(kind({{"Authorization", "Bearer secret"}}, Scope::kBatch), Kind::kScope);
  EXPECT_EQ(kind({{"authorization", "bearer secret"}}, Scope::kInfer), std::nullopt);
  EXPECT_EQ(kind({{"x-api-key", "secret"}}, Scope::kAdmin), std::nullopt);
}

TEST(Gate, APlaceIsGivenBack) {
  Gate gate(*ApiKeys::parse(kFile), {});
  const net::HttpRequest request = request_with({{"x-api-key", "secret"}});
  const auto enter = [&] { return std::get<Guest>(gate.admit(request, Scope::kInfer, kStart)); };
  {
    Guest first = enter();
    Guest second = enter();
    Guest third = enter();
    EXPECT_FALSE(first.take_place(kStart));
    EXPECT_FALSE(second.take_place(kStart));
    EXPECT_TRUE(third.take_place(kStart));  // two at once
  }
  Guest fourth = enter();
  EXPECT_FALSE(fourth.take_place(kStart));
  // A reload forgets nothing of what was used.
  gate.replace_keys(*ApiKeys::parse(kFile));
  for (int i = 0; i < 3; ++i) {
    Guest guest = enter();
    EXPECT_FALSE(guest.take_place(kStart));
  }
  Guest last = enter();
  const auto refusal = last.take_place(kStart);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, GateRefusal::Kind::kLimit);
  EXPECT_EQ(refusal->retry_after_s, 10);
}

// A page in somebody's browser can reach this machine's ports: its origin gives it away, or the
// name that was made to point here.
TEST(Gate, WithoutKeysOnlyHonestNeighbours) {
  const auto honest = [](std::vector<net::HttpField> fields) {
    return is_honest_neighbour(request_with(std::move(fields)));
  };
  EXPECT_TRUE(honest({}));
  EXPECT_TRUE(honest({{"Host", "localhost:8000"}}));
  EXPECT_TRUE(honest({{"Host", "127.0.0.1:8000"}, {"Origin", "http://127.0.0.1:8000"}}));
  EXPECT_TRUE(honest({{"Host", "[::1]:8000"}}));
  EXPECT_FALSE(honest({{"Host", "evil.example:8000"}}));
  EXPECT_FALSE(honest({{"Host", "localhost:8000"}, {"Origin", "http://evil.example"}}));
  EXPECT_FALSE(honest({{"Host", "localhost:8000"}, {"Origin", "null"}}));
  Gate gate(std::nullopt, {.check_origin = true});
  EXPECT_TRUE(std::holds_alternative<GateRefusal>(
      gate.admit(request_with({{"Host", "evil.example"}}), Scope::kInfer, kStart)));
}

}  // namespace
}  // namespace galley::server
