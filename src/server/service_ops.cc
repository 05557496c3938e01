// Service: the listeners that only operators reach, for metrics and administration.
#include <nlohmann/json.hpp>
#include <utility>

#include "server/service.h"

namespace galley::server {
namespace {

constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

void answer(net::Exchange& exchange, int status, std::string body,
            std::string_view type = "application/json") {
  exchange.respond({status, {{"Content-Type", std::string(type)}}, std::move(body)});
}

std::string problem_body(const std::string& message) {
  return nlohmann::json({{"error", message}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string Service::metrics_text() const {
  const net::ServerCounts connections =
      connection_counts ? connection_counts() : net::ServerCounts();
  const bool ready = state_ == ServiceState::kReady;
  if (!model_) return metrics_.text(nullptr, connections, ready);
  const engine::EngineStats stats = model_->engine->stats();
  return metrics_.text(&stats, connections, ready);
}

void Service::handle_metrics(const std::shared_ptr<net::Exchange>& exchange) {
  if (exchange->request().path == "/metrics") {
    return answer(*exchange, 200, metrics_text(), kMetricsType);
  }
  answer(*exchange, 404, problem_body("only /metrics is here"));
}

// The socket file is the key: who may open it may do this.
void Service::handle_admin(const std::shared_ptr<net::Exchange>& exchange) {
  const net::HttpRequest& request = exchange->request();
  const std::string what = request.method + " " + request.path;
  if (what == "POST /drain") {
    log_->info(LogEvent("drain_asked"));
    if (on_drain) on_drain();
    return answer(*exchange, 202, nlohmann::json({{"state", state_name(state_)}}).dump());
  }
  if (what == "POST /reload") {
    const Result<void> reloaded = on_reload ? on_reload() : Result<void>();
    if (!reloaded) return answer(*exchange, 400, problem_body(reloaded.error().message));
    return answer(*exchange, 200, nlohmann::json({{"reloaded", true}}).dump());
  }
  if (what == "GET /metrics") return answer(*exchange, 200, metrics_text(), kMetricsType);
  if (what == "GET /status") {
    nlohmann::ordered_json body = {{"state", state_name(state_)}, {"live_requests", live_count()}};
    if (model_) {
      const engine::EngineStats stats = model_->engine->stats();
      body["running"] = stats.running;
      body["waiting"] = stats.waiting;
      body["steps"] = stats.steps;
      body["pages"] = stats.page_count;
      body["pages_free"] = stats.pages_free;
      body["problem"] = trouble();
    }
    return answer(*exchange, 200, body.dump());
  }
  // For probes of whoever starts the program, whatever the public listener speaks.
  if (what == "GET /ready" || what == "GET /health") {
    const std::string wrong = tell_trouble();
    const bool good = wrong.empty() && (what == "GET /health" || state_ == ServiceState::kReady);
    nlohmann::ordered_json body = {{"state", state_name(state_)}, {"problem", wrong}};
    return answer(*exchange, good ? 200 : 503, body.dump());
  }
  answer(*exchange, 404,
         problem_body(
             "here are POST /drain, POST /reload, GET /status, /health, /ready and /metrics"));
}

}  // namespace galley::server
