#include "server/service.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/shown_text.h"
#include "serve/page_asset.h"

namespace galley::server {
namespace {

constexpr std::chrono::milliseconds kTick{1000};
constexpr int64_t kLoadingRetryS = 5;
constexpr int64_t kBusyRetryS = 2;

int64_t unix_seconds() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

serve::ApiFault fault_of(GateRefusal::Kind kind) {
  switch (kind) {
    case GateRefusal::Kind::kNoKey:
    case GateRefusal::Kind::kUnknownKey:
      return serve::ApiFault::kUnauthorised;
    case GateRefusal::Kind::kScope:
    case GateRefusal::Kind::kOrigin:
      return serve::ApiFault::kForbidden;
    case GateRefusal::Kind::kLimit:
      return serve::ApiFault::kRateLimited;
  }
  return serve::ApiFault::kUnauthorised;
}

serve::ApiFault fault_of_status(int status) {
  switch (status) {
    case 408:
      return serve::ApiFault::kTimedOut;
    case 413:
    case 431:
      return serve::ApiFault::kTooLarge;
    case 503:
      return serve::ApiFault::kOverloaded;
    default:
      return serve::ApiFault::kInvalid;
  }
}

}  // namespace

// The first that fits; a path without its method is 405, not 404.
std::span<const Service::Route> Service::routes() {
  using S = Service;
  constexpr Scope kInfer = Scope::kInfer;
  static constexpr Route kRoutes[] = {
      {"GET", "/health", kInfer, true, false, &S::get_health},
      {"GET", "/ready", kInfer, true, false, &S::get_ready},
      {"GET", "/version", kInfer, true, false, &S::get_version},
      {"GET", "/v1/models", kInfer, false, false, &S::get_models},
      {"GET", "/models", kInfer, false, false, &S::get_models},
      {"GET", "/v1/models/*", kInfer, false, false, &S::get_model},
      {"POST", "/v1/chat/completions", kInfer, false, true, &S::post_chat},
      {"POST", "/chat/completions", kInfer, false, true, &S::post_chat},
      {"POST", "/v1/responses", kInfer, false, true, &S::post_responses},
      {"POST", "/responses", kInfer, false, true, &S::post_responses},
      {"POST", "/v1/messages", kInfer, false, true, &S::post_messages},
      {"POST", "/anthropic/v1/messages", kInfer, false, true, &S::post_messages},
      {"POST", "/v1/messages/count_tokens", kInfer, false, true, &S::post_count_tokens},
      {"POST", "/anthropic/v1/messages/count_tokens", kInfer, false, true, &S::post_count_tokens},
      {"POST", "/v1/completions", kInfer, false, true, &S::post_completions},
      {"POST", "/completions", kInfer, false, true, &S::post_completions},
      {"POST", "/beta/completions", kInfer, false, true, &S::post_completions},
      {"POST", "/tokenize", kInfer, false, true, &S::post_tokenize},
      {"POST", "/detokenize", kInfer, false, true, &S::post_detokenize},
      {"POST", "/v1/files", Scope::kBatch, false, false, &S::post_file},
      {"GET", "/v1/files", Scope::kBatch, false, false, &S::get_files},
      {"GET", "/v1/files/*", Scope::kBatch, false, false, &S::get_file},
      {"DELETE", "/v1/files/*", Scope::kBatch, false, false, &S::delete_file},
      {"POST", "/v1/batches", Scope::kBatch, false, false, &S::post_batch},
      {"GET", "/v1/batches", Scope::kBatch, false, false, &S::get_batches},
      {"GET", "/v1/batches/*", Scope::kBatch, false, false, &S::get_batch},
      {"POST", "/v1/batches/*", Scope::kBatch, false, false, &S::post_cancel_batch},
      {"GET", "/kitchen/state", Scope::kAdmin, false, false, &S::get_kitchen},
  };
  return kRoutes;
}

Service::Service(net::EventLoop& loop, ServiceOptions options, EventLog& log, Gate gate)
    : loop_(&loop),
      options_(std::move(options)),
      log_(&log),
      gate_(std::move(gate)),
      metrics_(options_.model_names.front()),
      defaults_(std::make_shared<const serve::RequestDefaults>(options_.defaults)),
      created_s_(unix_seconds()),
      random_(std::random_device{}()),
      mailbox_([this] { loop_->post([this] { deliver_mail(); }); }),
      disk_(std::make_unique<Workers>(1, BatchLimits().batches_max + 1, 0)),
      workers_(std::make_unique<Workers>(options_.worker_threads, options_.worker_queue_max,
                                         options_.worker_bytes_max)) {
  door_.metrics = &metrics_;
  door_.mailbox = &mailbox_;
  door_.board = &board_;
  door_.started = Clock::now();
  desk_ = make_desk();
  loop_->every(kTick, [this] { tick(); });
}

// The engine has ended by now: what it still said is taken, so that nothing waits for it.
Service::~Service() { deliver_mail(); }

void Service::set_loading(const char* phase, double fraction) {
  loading_phase_ = phase;
  loading_fraction_ = fraction;
}

void Service::replace_options(const ServiceOptions& options) {
  defaults_ = std::make_shared<const serve::RequestDefaults>(options.defaults);
  options_.output_tokens_max = options.output_tokens_max;
  options_.keep_alive = options.keep_alive;
  options_.deadline = options.deadline;
  options_.stuck_after = options.stuck_after;
}

void Service::become_ready(ServedModel model, int64_t context_tokens_max) {
  loop_->post([this, model, context_tokens_max] {
    context_tokens_max_ = context_tokens_max;
    model_ = model;
    door_.engine = model.engine;
    door_.tokenizer = model.tokenizer;
    if (state_ != ServiceState::kStarting) return;
    set_state(ServiceState::kReady);
    desk_->tick();  // batches of the process before wait for this
  });
}

void Service::set_state(ServiceState state) {
  if (state_ == state) return;
  state_ = state;
  log_->info(LogEvent("state").add("state", state_name(state)).add("live", live_count()));
}

// --- From a request to its route ---

std::unique_ptr<Call> Service::open_call(const std::shared_ptr<net::Exchange>& exchange) {
  auto call = std::make_unique<Call>();
  call->exchange = exchange;
  call->arrived = Clock::now();
  const net::HttpRequest& request = exchange->request();
  const std::string_view given = request.field("x-request-id").value_or("");
  call->id = is_request_id(given) ? std::string(given) : random_hex(random_);
  call->dialect = serve::dialect_of(request.path);
  call->fields.push_back({"X-Request-Id", call->id});
  if (call->dialect == serve::ApiDialect::kAnthropic) {
    call->fields.push_back({"Request-Id", call->id});
  }
  if (auto trace = parse_traceparent(request.field("traceparent").value_or(""))) {
    trace->parent_id = random_hex(random_, 16);
    call->fields.push_back({"traceparent", format_traceparent(*trace)});
    call->trace = std::move(trace);
  }
  return call;
}

void Service::handle_public(const std::shared_ptr<net::Exchange>& exchange) {
  dispatch(open_call(exchange));
}

void Service::dispatch(std::unique_ptr<Call> call) {
  const net::HttpRequest& request = call->request();
  const std::string_view method =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  for (const Route& route : routes()) {
    const bool fits = route.path.ends_with("/*")
                          ? request.path.starts_with(route.path.substr(0, route.path.size() - 1))
                          : request.path == route.path;
    if (!fits) continue;
    if (route.method != method) {
      allowed = route.method;
      continue;
    }
    call->route = route.path;
    if (!let_in(call, route)) return;
    (this->*route.function)(std::move(call));
    return;
  }
  if (method == "GET" && serve::find_page_asset(request.path) != nullptr) {
    call->route = "/";
    return get_page(std::move(call));
  }
  if (!allowed.empty()) {
    call->fields.push_back({"Allow", allowed});
    return refuse(std::move(call), {serve::ApiFault::kMethod, "this path is for " + allowed, ""});
  }
  refuse(std::move(call),
         {serve::ApiFault::kNotFound,
          "there is no " + request.method + " " + request.path.substr(0, 200) + " here", ""});
}

// False: the call was answered.
bool Service::let_in(std::unique_ptr<Call>& call, const Route& route) {
  if (route.open) return true;
  auto admitted = call->asker ? gate_.admit_again(*call->asker, route.scope, call->arrived)
                              : gate_.admit(call->request(), route.scope, call->arrived);
  if (auto* refusal = std::get_if<GateRefusal>(&admitted)) {
    if (refusal->kind == GateRefusal::Kind::kNoKey ||
        refusal->kind == GateRefusal::Kind::kUnknownKey) {
      call->fields.push_back({"WWW-Authenticate", "Bearer"});
    }
    refuse(std::move(call), {fault_of(refusal->kind), refusal->message, ""});
    return false;
  }
  call->guest.emplace(std::move(std::get<Guest>(admitted)));
  if (!route.computes) return true;
  if (state_ == ServiceState::kStarting || !model_) {
    refuse(std::move(call), {serve::ApiFault::kOverloaded, "the model is still loading", ""},
           kLoadingRetryS);
    return false;
  }
  if (state_ != ServiceState::kReady && state_ != ServiceState::kLeaving) {
    refuse(std::move(call), {serve::ApiFault::kDraining, "the server is shutting down", ""},
           kBusyRetryS);
    return false;
  }
  const auto refusal = call->guest->take_place(call->arrived);
  for (net::HttpField& field : call->guest->limit_fields()) {
    call->fields.push_back(std::move(field));
  }
  if (!refusal) return true;
  refuse(std::move(call), {serve::ApiFault::kRateLimited, refusal->message, ""},
         refusal->retry_after_s);
  return false;
}

// --- Answers ---

void Service::reply(std::unique_ptr<Call> call, int status, std::string body,
                    std::string_view type) {
  log_call(*call, status, "");
  net::HttpResponse response = {status, std::move(call->fields), std::move(body)};
  response.fields.push_back({"Content-Type", std::string(type)});
  call->exchange->respond(std::move(response));
}

void Service::refuse(std::unique_ptr<Call> call, const serve::ApiError& error,
                     int64_t retry_after_s) {
  const int status = serve::http_status(error.fault, call->dialect);
  metrics_.count_rejection(serve::fault_code(error.fault));
  log_call(*call, status, error.message);
  net::HttpResponse response = {status, std::move(call->fields),
                                serve::error_body(error, call->dialect, call->id)};
  response.fields.push_back({"Content-Type", "application/json"});
  if (retry_after_s > 0) {
    response.fields.push_back({"Retry-After", std::to_string(retry_after_s)});
  }
  call->exchange->respond(std::move(response));
}

void Service::log_call(const Call& call, int status, std::string_view problem) {
  metrics_.count_response(call.route, status);
  LogEvent event("answered", call.id);
  event.add("route", call.route).add("status", status);
  if (call.route == "other") event.add("path", call.request().path.substr(0, 200));
  if (call.guest && !call.guest->name().empty()) event.add("key", call.guest->name());
  event.add("peer", call.request().peer);
  if (call.trace) event.add("trace", call.trace->trace_id);
  event.add_ms("ms",
               std::chrono::duration<double, std::milli>(Clock::now() - call.arrived).count());
  if (!problem.empty()) event.add("problem", problem);
  if (status >= 500) return log_->warn(event);
  // What asks every few seconds says nothing new.
  const bool is_probe =
      call.route == "/health" || call.route == "/ready" || call.route == "/kitchen/state";
  return is_probe ? log_->debug(event) : log_->info(event);
}

net::HttpResponse Service::describe_failure(int status, const std::string& message) {
  const std::string id = random_hex(random_);
  const serve::ApiError error = {fault_of_status(status), message, ""};
  metrics_.count_response("malformed", status);
  log_->info(LogEvent("malformed", id).add("status", status).add("problem", message));
  net::HttpResponse response = {status,
                                {{"X-Request-Id", id}, {"Content-Type", "application/json"}},
                                serve::error_body(error, serve::ApiDialect::kOpenAi, id)};
  if (status == 503) response.fields.push_back({"Retry-After", std::to_string(kBusyRetryS)});
  return response;
}

// --- Small routes ---

std::string Service::trouble() const {
  if (!model_) return "";
  const engine::EngineStats stats = model_->engine->stats();
  if (stats.state == engine::EngineState::kFailed) {
    return "the engine failed: " + model_->engine->failure();
  }
  if (stats.since_progress > options_.stuck_after) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(stats.since_progress);
    return "no step ended for " + std::to_string(seconds.count()) + " s while there is work";
  }
  return "";
}

std::string Service::tell_trouble() {
  std::string wrong = trouble();
  if (wrong.empty() != trouble_told_) return wrong;
  trouble_told_ = !wrong.empty();
  if (trouble_told_) {
    log_->error(LogEvent("unhealthy").add("problem", wrong));
  } else {
    log_->info(LogEvent("healthy"));
  }
  return wrong;
}

void Service::get_health(std::unique_ptr<Call> call) {
  const std::string wrong = tell_trouble();
  nlohmann::ordered_json body = {{"status", wrong.empty() ? "ok" : "failed"},
                                 {"state", state_name(state_)}};
  if (!wrong.empty()) body["problem"] = wrong;
  reply(std::move(call), wrong.empty() ? 200 : 503, body.dump());
}

void Service::get_ready(std::unique_ptr<Call> call) {
  const std::string wrong = tell_trouble();
  const bool ready = state_ == ServiceState::kReady && wrong.empty();
  const bool loading = state_ == ServiceState::kStarting;
  nlohmann::ordered_json body = {{"status", ready     ? "ready"
                                            : loading ? "loading"
                                                      : "not ready"},
                                 {"state", state_name(state_)}};
  if (loading) {
    body["phase"] = loading_phase_.load();
    body["fraction"] = std::round(1000 * loading_fraction_) / 1000;
  }
  if (!wrong.empty()) body["problem"] = wrong;
  reply(std::move(call), ready ? 200 : 503, body.dump());
}

void Service::get_version(std::unique_ptr<Call> call) {
  reply(std::move(call), 200, nlohmann::json({{"version", options_.version}}).dump());
}

std::vector<serve::ModelCard> Service::cards() const {
  std::vector<serve::ModelCard> cards;
  for (const std::string& name : options_.model_names) {
    serve::ModelCard card;
    card.id = name;
    card.created = created_s_;
    card.context_tokens_max = context_tokens_max_;
    card.output_tokens_max =
        options_.output_tokens_max > 0 ? options_.output_tokens_max : context_tokens_max_;
    card.root = options_.model_names.front();
    cards.push_back(std::move(card));
  }
  return cards;
}

void Service::get_models(std::unique_ptr<Call> call) {
  reply(std::move(call), 200, serve::models_body(cards()));
}

void Service::get_model(std::unique_ptr<Call> call) {
  const std::string name = net::percent_decode(call->request().path.substr(call->route.size() - 1));
  const auto body = serve::model_body(cards(), name);
  if (body) return reply(std::move(call), 200, *body);
  refuse(std::move(call),
         {serve::ApiFault::kModelNotFound, "no model " + shown_text(name) + " here", ""});
}

// --- Life of the service ---

void Service::deliver_mail() {
  mailbox_.take(mails_);
  touched_.clear();
  for (Mail& mail : mails_) {
    LiveRequest* const request = mail.to;
    if (touched_.empty() || touched_.back() != request) touched_.push_back(request);
    request->take(std::move(mail));
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (LiveRequest* const request : touched_) {
    request->flush();
    sweep(request);
  }
}

// Buries a request that nobody has any more.
void Service::sweep(LiveRequest* request) {
  if (!request->over()) return;
  const LiveRequest::Outcome& outcome = request->outcome();
  const Call& call = request->call();
  metrics_.observe(outcome.timing);
  metrics_.count_response(call.route, outcome.status);
  if (call.guest) {
    // A prompt that never ran costs nothing.
    const bool ran = outcome.timing.queue_s >= 0;
    call.guest->charge_tokens(outcome.usage.completion_tokens -
                              (ran ? 0 : outcome.usage.prompt_tokens));
  }
  LogEvent event("finished", call.id);
  event.add("route", call.route).add("status", outcome.status);
  event.add("finish", outcome.finish);
  if (call.guest && !call.guest->name().empty()) event.add("key", call.guest->name());
  event.add("peer", call.request().peer);
  if (call.trace) event.add("trace", call.trace->trace_id);
  event.add("prompt_tokens", outcome.usage.prompt_tokens);
  event.add("cached_tokens", outcome.usage.cached_tokens);
  event.add("output_tokens", outcome.usage.completion_tokens);
  event.add("choices", outcome.timing.choices);
  if (outcome.timing.queue_s >= 0) event.add_ms("queue_ms", 1000 * outcome.timing.queue_s);
  if (outcome.timing.first_token_s >= 0) {
    event.add_ms("first_token_ms", 1000 * outcome.timing.first_token_s);
  }
  event.add_ms("ms", 1000 * outcome.timing.total_s);
  if (!outcome.problem.empty()) event.add("problem", outcome.problem);
  if (outcome.status >= 500) {
    log_->warn(event);
  } else {
    log_->info(event);
  }
  live_.erase(request);
}

void Service::tick() {
  const auto now = Clock::now();
  std::vector<LiveRequest*> all;
  all.reserve(live_.size());
  for (const auto& [request, owner] : live_) all.push_back(request);
  for (LiveRequest* const request : all) {
    request->keep_alive(now, options_.keep_alive);
    sweep(request);
  }
  if (state_ == ServiceState::kReady || state_ == ServiceState::kLeaving) desk_->tick();
  tell_trouble();
}

void Service::end_all() {
  std::vector<LiveRequest*> all;
  for (const auto& [request, owner] : live_) all.push_back(request);
  for (LiveRequest* const request : all) {
    request->fail({serve::ApiFault::kDraining, "the server is shutting down", ""});
    sweep(request);
  }
}

}  // namespace galley::server
