// One HTTP request on its way through the server: who asked, under which name,
// and what every answer to it must carry.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/exchange.h"
#include "serve/api_error.h"
#include "server/gate.h"
#include "server/trace_context.h"

namespace galley::server {

struct Call {
  using TimePoint = std::chrono::steady_clock::time_point;

  std::shared_ptr<net::Exchange> exchange;  // with the loop, until both are done with it
  std::string id;                           // x-request-id
  std::string_view route = "other";         // the pattern that matched, for metrics and log
  serve::ApiDialect dialect = serve::ApiDialect::kOpenAi;
  TimePoint arrived;
  std::optional<TraceParent> trace;    // with this server's span
  std::optional<std::string> asker;    // of a batch's line: its key's name, let in before
  std::optional<Guest> guest;          // once let in
  std::vector<net::HttpField> fields;  // of the answer, whatever it is

  const net::HttpRequest& request() const { return exchange->request(); }
};

}  // namespace galley::server
