// Any bytes as what a client sends: requests come out the same however they are
// cut, within their limits, or are refused with a status that says so. Targets,
// escapes and addresses of others are read besides.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "net/address.h"
#include "net/http_message.h"
#include "net/request_parser.h"

namespace {

using namespace galley::net;

constexpr ParserLimits kLimits = {.head_bytes_max = 2000, .fields_max = 20, .body_bytes_max = 500};

struct Outcome {
  std::vector<std::string> seen;
};

void check_request(const HttpRequest& request) {
  CHECK(!request.method.empty());
  CHECK(request.body.size() <= kLimits.body_bytes_max);
  CHECK(request.fields.size() <= kLimits.fields_max);
  for (const HttpField& field : request.fields) {
    CHECK(field.value.find_first_of("\r\n") == std::string::npos);
  }
  CHECK(percent_decode(request.path).size() <= request.path.size());
}

// All requests of a connection that delivers `piece` bytes at a time.
Outcome read_all(std::string_view bytes, size_t piece) {
  Outcome outcome;
  std::string input;
  auto parser = std::make_unique<RequestParser>(kLimits);
  for (size_t begin = 0; begin < bytes.size(); begin += piece) {
    input += bytes.substr(begin, piece);
    while (!input.empty()) {
      const size_t before = input.size();
      if (const auto failure = parser->take(input)) {
        CHECK(failure->status >= 400 && failure->status < 600 && !failure->message.empty());
        return outcome;
      }
      if (!parser->done()) break;
      const HttpRequest request = parser->release();
      check_request(request);
      outcome.seen.push_back(request.method + " " + request.path + "?" + request.query + "\n" +
                             request.body);
      parser = std::make_unique<RequestParser>(kLimits);
      if (input.size() == before) break;
    }
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 8192) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = read_all(bytes, std::max<size_t>(bytes.size(), 1));
  const Outcome cut = read_all(bytes, 1 + data[0] % 64);
  // Wrong bytes may be refused sooner or later, as a head that is not whole yet is looked at or
  // waited for; what counts as a request may not depend on it.
  CHECK(whole.seen == cut.seen);
  static_cast<void>(parse_endpoint(bytes.substr(0, 100)));
  HttpResponse response;
  response.fields.push_back({"X-A", std::string(bytes.substr(0, 200))});
  const std::string head = response_head(response, {});
  CHECK(head.ends_with("\r\n\r\n") && head.find("\r\n\r\n") == head.size() - 4);
  return 0;
}
