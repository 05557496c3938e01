// What the server does with a request: who may ask, what is answered, and in
// which state of the server.
//
//   starting -> ready -> leaving (still answers, /ready says no) -> refusing -> stopped
//
// Knows no sockets and no command line. Belongs to the loop's thread, except
// where said.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "net/event_loop.h"
#include "net/exchange.h"
#include "net/server.h"
#include "serve/api_error.h"
#include "serve/api_models.h"
#include "serve/api_request.h"
#include "serve/codec.h"
#include "serve/kitchen_board.h"
#include "server/batch_desk.h"
#include "server/call.h"
#include "server/event_log.h"
#include "server/gate.h"
#include "server/live_request.h"
#include "server/serving_metrics.h"
#include "server/token_mailbox.h"
#include "server/workers.h"

namespace galley::server {

struct ServiceOptions {
  std::vector<std::string> model_names;  // the first is the one in answers; any of them is taken
  std::string version;                   // of the program
  serve::RequestDefaults defaults;       // what a request does not say
  int64_t context_tokens_max = 0;        // prompt and answer together
  int64_t output_tokens_max = 0;         // of one answer; 0: as much as fits
  std::chrono::milliseconds keep_alive{5'000};
  std::chrono::milliseconds deadline{0};          // of one request; 0: none
  std::chrono::milliseconds stuck_after{60'000};  // without a finished step while there is work
  int32_t worker_threads = 1;
  size_t worker_queue_max = 1024;
  size_t worker_bytes_max = size_t{256} << 20;  // of bodies that wait for a worker
};

enum class ServiceState : uint8_t { kStarting, kReady, kLeaving, kRefusing, kStopped };

constexpr const char* state_name(ServiceState state) {
  switch (state) {
    case ServiceState::kStarting:
      return "starting";
    case ServiceState::kReady:
      return "ready";
    case ServiceState::kLeaving:
      return "leaving";
    case ServiceState::kRefusing:
      return "refusing";
    case ServiceState::kStopped:
      return "stopped";
  }
  return "stopped";
}

// The model, once it is loaded; each outlives the service's use of it.
struct ServedModel {
  engine::Engine* engine = nullptr;
  const model::Tokenizer* tokenizer = nullptr;
  const serve::ChatCodec* codec = nullptr;
};

class Service {
 public:
  Service(net::EventLoop& loop, ServiceOptions options, EventLog& log, Gate gate);
  ~Service();  // after the engine's and the loop's end
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // The functions of the three listeners.
  void handle_public(const std::shared_ptr<net::Exchange>& exchange);
  void handle_metrics(const std::shared_ptr<net::Exchange>& exchange);
  void handle_admin(const std::shared_ptr<net::Exchange>& exchange);
  // What a client hears whose bytes are no request.
  net::HttpResponse describe_failure(int status, const std::string& message);

  // Any thread: how far loading is; `phase` is a literal, `fraction` an estimate of the whole.
  void set_loading(const char* phase, double fraction);
  // Any thread: the engine that came.
  void become_ready(ServedModel model, int64_t context_tokens_max);

  // Files and batches of another process are taken up, and kept from now on; before the loop runs.
  void keep_state(StateDirectory& state);

  // What of the options may change while it runs: defaults, limits of answers and times.
  void replace_options(const ServiceOptions& options);

  void set_state(ServiceState state);
  ServiceState state() const { return state_; }
  Gate& gate() { return gate_; }
  // Requests that are not answered yet.
  size_t live_count() const { return live_.size() + preparing_; }
  // Ends every request with "shutting down".
  void end_all();

  // What the admin listener may ask for.
  std::function<void()> on_drain;
  std::function<Result<void>()> on_reload;
  std::function<net::ServerCounts()> connection_counts;

 private:
  // What a worker made of a body.
  struct Prepared {
    serve::ApiRequest request;
    std::vector<std::vector<int32_t>> prompts;
    int64_t prompt_tokens_over = 0;  // a prompt has at least these, and was not encoded to its end
    serve::AnswerStart start = serve::AnswerStart::kContent;  // of a conversation's answer
    std::vector<std::string> echo_texts;
    std::string body;  // of an answer that needs no model run; else empty
  };
  using Clock = std::chrono::steady_clock;
  using RouteFunction = void (Service::*)(std::unique_ptr<Call>);
  struct Route {
    std::string_view method;
    std::string_view path;  // ends in "/*": the rest is a name
    Scope scope;
    bool open;      // without a key
    bool computes;  // counts against the limits of a key and needs the model
    RouteFunction function;
  };
  static std::span<const Route> routes();

  std::unique_ptr<Call> open_call(const std::shared_ptr<net::Exchange>& exchange);
  void dispatch(std::unique_ptr<Call> call);
  bool let_in(std::unique_ptr<Call>& call, const Route& route);

  // Answers.
  void reply(std::unique_ptr<Call> call, int status, std::string body,
             std::string_view type = "application/json");
  void refuse(std::unique_ptr<Call> call, const serve::ApiError& error, int64_t retry_after_s = 0);
  void log_call(const Call& call, int status, std::string_view problem);

  // The routes.
  void get_health(std::unique_ptr<Call> call);
  void get_ready(std::unique_ptr<Call> call);
  void get_version(std::unique_ptr<Call> call);
  void get_models(std::unique_ptr<Call> call);
  void get_model(std::unique_ptr<Call> call);
  void post_completions(std::unique_ptr<Call> call);
  void post_chat(std::unique_ptr<Call> call);
  void post_responses(std::unique_ptr<Call> call);
  void post_messages(std::unique_ptr<Call> call);
  void post_count_tokens(std::unique_ptr<Call> call);
  void post_tokenize(std::unique_ptr<Call> call);
  void post_detokenize(std::unique_ptr<Call> call);
  void post_file(std::unique_ptr<Call> call);
  void get_files(std::unique_ptr<Call> call);
  void get_file(std::unique_ptr<Call> call);
  void delete_file(std::unique_ptr<Call> call);
  void post_batch(std::unique_ptr<Call> call);
  void get_batches(std::unique_ptr<Call> call);
  void get_batch(std::unique_ptr<Call> call);
  void post_cancel_batch(std::unique_ptr<Call> call);
  void get_page(std::unique_ptr<Call> call);
  void get_kitchen(std::unique_ptr<Call> call);

  // Generation: on a worker, then on the loop again.
  void start(std::unique_ptr<Call> call, Result<Prepared> prepared);
  void reply_prepared(std::unique_ptr<Call> call, Result<Prepared> prepared);
  std::optional<serve::ApiError> check_fit(const Prepared& prepared) const;
  std::optional<serve::ApiError> check_model(std::string_view name) const;
  model::TokenBudget token_budget() const;
  Result<Prepared> prepare_completion(const std::string& body,
                                      const serve::RequestDefaults& defaults) const;
  Result<Prepared> prepare_conversation(Result<serve::ApiRequest> parsed) const;
  Result<Prepared> prepare_count(const std::string& body,
                                 const serve::RequestDefaults& defaults) const;
  Result<Prepared> prepare_tokenize(const std::string& body,
                                    const serve::RequestDefaults& defaults) const;
  Result<Prepared> prepare_detokenize(const std::string& body) const;
  std::vector<Order> make_orders(const Prepared& prepared, const Call& call);
  std::unique_ptr<AnswerReader> make_reader(const Prepared& prepared);
  // Runs `work` on the body on a worker, and `then` with its result on the loop.
  using Prepare =
      std::function<Result<Prepared>(const std::string& body, const serve::RequestDefaults&)>;
  void on_worker(std::unique_ptr<Call> call, Prepare work,
                 void (Service::*then)(std::unique_ptr<Call>, Result<Prepared>));

  std::unique_ptr<BatchDesk> make_desk();
  void reply_desk(std::unique_ptr<Call> call, Result<std::string> body,
                  std::string_view type = "application/json");

  void deliver_mail();
  void sweep(LiveRequest* request);
  void tick();
  std::vector<serve::ModelCard> cards() const;
  std::string metrics_text() const;
  // Empty: all is well.
  std::string trouble() const;
  // The same, and the log learns when it begins and ends, however short it was.
  std::string tell_trouble();

  net::EventLoop* loop_;
  ServiceOptions options_;
  EventLog* log_;
  Gate gate_;
  ServingMetrics metrics_;
  ServiceState state_ = ServiceState::kStarting;
  std::atomic<const char*> loading_phase_{"starting"};
  std::atomic<double> loading_fraction_{0};
  // What a request does not say; shared with the workers, which may still read the one before.
  std::shared_ptr<const serve::RequestDefaults> defaults_;
  std::optional<ServedModel> model_;
  int64_t context_tokens_max_ = 0;  // prompt and answer together; known with the model
  int64_t created_s_;
  std::mt19937_64 random_;

  serve::KitchenBoard board_;
  KitchenDoor door_;
  std::unordered_map<LiveRequest*, std::unique_ptr<LiveRequest>> live_;
  size_t preparing_ = 0;
  std::vector<Mail> mails_;
  std::vector<LiveRequest*> touched_;
  bool trouble_told_ = false;
  TokenMailbox mailbox_;
  std::unique_ptr<BatchDesk> desk_;
  // Last: their threads end first.
  std::unique_ptr<Workers> disk_;  // waits for the desk's
  std::unique_ptr<Workers> workers_;
};

}  // namespace galley::server
