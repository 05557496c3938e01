// galley serve: the model behind HTTP.
//
// Reads the settings, opens the listeners, loads the model, and leaves in order
// when asked to. What is answered is server/service.h's business.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>

#include "net/address.h"
#include "net/event_loop.h"
#include "net/server.h"
#include "server/api_keys.h"
#include "server/event_log.h"
#include "server/self_test.h"
#include "server/service.h"
#include "tools/exit_code.h"
#include "tools/loaded_model.h"
#include "tools/progress.h"
#include "tools/sampling_settings.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeavePoll{50};
constexpr milliseconds kLastWords{1000};
constexpr int64_t kMebibyte = int64_t{1} << 20;

struct ServeOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string model_names;  // with commas between
  int64_t context = 0;
  int64_t output_tokens_max = 0;
  std::string api_keys;
  bool insecure = false;
  std::string tls_certificate;
  std::string tls_key;
  std::string metrics_listen;
  std::string admin_socket;
  float drain_grace_s = 5;
  float drain_deadline_s = 600;
  float keep_alive_s = 5;
  float request_timeout_s = 0;
  float stuck_after_s = 60;
  int64_t body_mib_max = 16;
  int32_t connections_max = 4096;
  std::string log_level = "info";
  std::string new_key;
  ModelSettings model;
  EngineSettings engine;
  engine::SamplingOptions sampling;
};

milliseconds from_seconds(float seconds) {
  return milliseconds(static_cast<int64_t>(1000.0F * seconds));
}

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

// The last part of the model's path, as users know it.
std::string directory_name(const std::string& directory) {
  std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// As many descriptors as the system lets this process have: the usual soft limit of 1,024 would
// be met before --max-connections.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Buffers of bodies go back to the system when they are freed: without this the allocator learns
// from the first large one to keep them.
void return_large_buffers() {
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

class Serving {
 public:
  Serving(const ServeOptions& options, server::EventLog& log) : options_(options), log_(log) {}

  Result<int> run() {
    TRY(open_listeners());
    std::thread loop_thread([this] { loop_.run(); });
    Result<int> code = load_and_wait();
    if (engine_ != nullptr) engine_->stop();
    loop_.stop();
    loop_thread.join();
    return code;
  }

 private:
  Result<void> open_listeners() {
    const std::string directory = TRY(find_model(options_.model.model));
    net::ListenSocket socket = TRY(net::ListenSocket::bind_tcp(options_.host, options_.port));
    std::optional<server::ApiKeys> keys;
    if (!options_.api_keys.empty()) keys = TRY(server::ApiKeys::open(options_.api_keys));
    if (!socket.is_local() && !keys && !options_.insecure) {
      return Error{ErrorCode::kInvalid,
                   "--host " + options_.host +
                       " lets others in: give --api-keys FILE (galley "
                       "serve --new-key NAME makes entries), or --insecure to serve anybody"};
    }
    const bool open_to_all = !keys;
    const server::GateOptions gate_options = {.check_origin = open_to_all && socket.is_local()};
    service_ = std::make_unique<server::Service>(loop_, service_options(directory), log_,
                                                 server::Gate(std::move(keys), gate_options));
    std::shared_ptr<net::TlsContext> tls;
    if (!options_.tls_certificate.empty()) {
      tls = TRY(net::TlsContext::load(options_.tls_certificate, options_.tls_key));
    }
    TRY(open_public(std::move(socket), std::move(tls), open_to_all));
    TRY(open_metrics());
    TRY(open_admin());
    service_->connection_counts = [this] { return public_->counts(); };
    service_->on_drain = [this] { leave(); };
    service_->on_reload = [this] { return reload(); };
    // SIGHUP without a listener would end the program.
    loop_.on_signals({SIGTERM, SIGINT, SIGHUP}, [this](int signal) { on_signal(signal); });
    return {};
  }

  server::ServiceOptions service_options(const std::string& directory) const {
    server::ServiceOptions service;
    service.model_names = split_names(options_.model_names);
    if (service.model_names.empty()) service.model_names.push_back(directory_name(directory));
    service.version = GALLEY_VERSION;
    service.defaults.sampling = options_.sampling;
    service.output_tokens_max = options_.output_tokens_max;
    service.keep_alive = from_seconds(options_.keep_alive_s);
    service.deadline = from_seconds(options_.request_timeout_s);
    service.stuck_after = from_seconds(options_.stuck_after_s);
    return service;
  }

  Result<void> open_public(net::ListenSocket socket, std::shared_ptr<net::TlsContext> tls,
                           bool open_to_all) {
    net::ServerOptions server_options;
    server_options.connections_max = options_.connections_max;
    server_options.parser.body_bytes_max = static_cast<size_t>(options_.body_mib_max * kMebibyte);
    server_options.failure = [this](int status, const std::string& message) {
      return service_->describe_failure(status, message);
    };
    public_ = std::make_unique<net::Server>(
        loop_, std::move(server_options),
        [this](const auto& exchange) { service_->handle_public(exchange); });
    server::LogEvent event("listening");
    event.add("address", (tls != nullptr ? "https://" : "http://") + socket.address());
    event.add("keys", open_to_all ? "none" : options_.api_keys);
    if (open_to_all) {
      event.add("open_to", socket.is_local() ? "programs of this machine only"
                                             : "everybody who can reach it (--insecure)");
    }
    const bool exposed = open_to_all && !socket.is_local();
    TRY(public_->start(std::move(socket), std::move(tls)));
    exposed ? log_.warn(event) : log_.info(event);
    return {};
  }

  Result<void> open_metrics() {
    if (options_.metrics_listen.empty()) return {};
    const auto [host, port] = TRY(net::parse_endpoint(options_.metrics_listen));
    net::ListenSocket socket = TRY(net::ListenSocket::bind_tcp(host, port));
    log_.info(
        server::LogEvent("listening").add("address", "http://" + socket.address() + "/metrics"));
    metrics_ = std::make_unique<net::Server>(loop_, small_server(), [this](const auto& exchange) {
      service_->handle_metrics(exchange);
    });
    return metrics_->start(std::move(socket));
  }

  Result<void> open_admin() {
    if (options_.admin_socket.empty()) return {};
    net::ListenSocket socket = TRY(net::ListenSocket::bind_unix(options_.admin_socket));
    log_.info(server::LogEvent("listening").add("address", "unix:" + socket.address()));
    admin_ = std::make_unique<net::Server>(
        loop_, small_server(), [this](const auto& exchange) { service_->handle_admin(exchange); });
    return admin_->start(std::move(socket));
  }

  static net::ServerOptions small_server() {
    net::ServerOptions options;
    options.connections_max = 32;
    options.parser.body_bytes_max = 4096;
    return options;
  }

  // On the main thread.
  Result<int> load_and_wait() {
    const auto begin = std::chrono::steady_clock::now();
    loaded_ = TRY(LoadedModel::open(options_.model));
    EngineSettings settings = options_.engine;
    if (options_.context > 0) settings.context = options_.context;
    engine_ = TRY(loaded_->make_engine(settings));
    const auto tested = server::run_self_test(*engine_, loaded_->config().vocab_size);
    if (!tested) return with_context(tested.error(), "self-test");
    const auto loaded_in = std::chrono::steady_clock::now() - begin;
    log_.info(server::LogEvent("loaded")
                  .add("model", loaded_->directory())
                  .add("backend", loaded_->ops().name())
                  .add("threads", loaded_->thread_count())
                  .add("context", engine_->options().positions_max)
                  .add("sequences", engine_->options().sequences_max)
                  .add_ms("ms", std::chrono::duration<double, std::milli>(loaded_in).count()));
    service_->become_ready({engine_.get(), &loaded_->tokenizer(), &loaded_->codec()},
                           engine_->options().positions_max);
    loop_.post([this] { watch_engine(); });
    return ended_.get_future().get();
  }

  // --- On the loop ---

  // A model that cannot compute any more is not served: whoever keeps this program alive starts
  // it again.
  void watch_engine() {
    if (engine_->stats().state == engine::EngineState::kFailed) {
      log_.error(server::LogEvent("engine_failed").add("problem", engine_->failure()));
      service_->end_all();
      return loop_.after(kLastWords, [this] { end(kExitFailed); });
    }
    loop_.after(kLastWords, [this] { watch_engine(); });
  }

  void on_signal(int signal) {
    if (signal == SIGHUP) {
      static_cast<void>(reload());  // it logs what went wrong
      return;
    }
    leave();
  }

  Result<void> reload() {
    const Result<void> outcome = load_keys_and_tls();
    if (outcome) {
      log_.info(server::LogEvent("reloaded"));
    } else {
      log_.error(server::LogEvent("reload_failed")
                     .add("problem", outcome.error().message + "; the old ones stay in force"));
    }
    return outcome;
  }

  // Both or neither.
  Result<void> load_keys_and_tls() {
    std::optional<server::ApiKeys> keys;
    if (!options_.api_keys.empty()) keys = TRY(server::ApiKeys::open(options_.api_keys));
    std::shared_ptr<net::TlsContext> tls;
    if (!options_.tls_certificate.empty()) {
      tls = TRY(net::TlsContext::load(options_.tls_certificate, options_.tls_key));
    }
    if (keys) service_->gate().replace_keys(std::move(*keys));
    if (tls != nullptr) public_->replace_tls(std::move(tls));
    return {};
  }

  // The first time in order; asked again, at once.
  void leave() {
    switch (service_->state()) {
      case server::ServiceState::kStarting:
        // Nobody was promised anything, and a load cannot be interrupted.
        remove_socket_file();
        std::_Exit(kExitOk);
      case server::ServiceState::kReady:
        service_->set_state(server::ServiceState::kLeaving);
        return loop_.after(from_seconds(options_.drain_grace_s), [this] { refuse(); });
      case server::ServiceState::kLeaving:
        return refuse();
      case server::ServiceState::kRefusing:
        return give_up();
      case server::ServiceState::kStopped:
        return;
    }
  }

  void refuse() {
    if (service_->state() != server::ServiceState::kLeaving) return;
    service_->set_state(server::ServiceState::kRefusing);
    public_->drain();
    loop_.after(from_seconds(options_.drain_deadline_s), [this] {
      if (service_->state() == server::ServiceState::kRefusing) give_up();
    });
    wait_until_empty();
  }

  void wait_until_empty() {
    if (service_->state() != server::ServiceState::kRefusing) return;
    if (service_->live_count() == 0 && public_->counts().answering == 0) {
      service_->set_state(server::ServiceState::kStopped);
      return end(kExitOk);
    }
    loop_.after(kLeavePoll, [this] { wait_until_empty(); });
  }

  void give_up() {
    log_.warn(server::LogEvent("requests_cut").add("live", service_->live_count()));
    service_->set_state(server::ServiceState::kStopped);
    service_->end_all();
    loop_.after(kLastWords, [this] { end(kExitOk); });
  }

  void end(int code) {
    if (std::exchange(end_told_, true)) return;
    remove_socket_file();
    ended_.set_value(code);
  }

  void remove_socket_file() const {
    if (admin_ != nullptr) ::unlink(options_.admin_socket.c_str());
  }

  const ServeOptions& options_;
  server::EventLog& log_;
  std::promise<int> ended_;
  bool end_told_ = false;
  // In this order: what is below uses what is above.
  std::unique_ptr<LoadedModel> loaded_;
  net::EventLoop loop_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<net::Server> public_;
  std::unique_ptr<net::Server> metrics_;
  std::unique_ptr<net::Server> admin_;
};

void declare(Command& command, ServeOptions& options) {
  command.argument("--new-key", options.new_key, "Print a fresh API key and its entry, and exit")
      .value_name("NAME");
  command.setting("--host", options.host, "Address to listen on").value_name("HOST");
  command.setting("--port", options.port, "Port; 0 = any that is free")
      .range(0, 65535)
      .value_name("PORT");
  command
      .setting("--served-model-name", options.model_names,
               "What clients call the model, names with commas between; default: its directory")
      .value_name("NAMES");
  command
      .setting("--max-model-len", options.context,
               "Longest prompt and answer together in tokens, as --context")
      .range(0, 1e9)
      .value_name("N");
  command
      .setting("--max-output-tokens", options.output_tokens_max,
               "Longest answer in tokens; 0 = what fits")
      .range(0, 1e9)
      .value_name("N");
  command
      .setting("--sequences", options.engine.sequences,
               "Sequences that run together; answers do not depend on it")
      .range(1, 1024)
      .value_name("N");
  command.setting("--api-keys", options.api_keys, "File of API keys; without, this machine only")
      .value_name("FILE");
  command.setting("--insecure", options.insecure,
                  "Serve anybody who can reach --host, without keys");
  command.setting("--tls-cert", options.tls_certificate, "PEM certificate chain")
      .value_name("FILE");
  command.setting("--tls-key", options.tls_key, "PEM private key of it").value_name("FILE");
  command.setting("--metrics-listen", options.metrics_listen, "Where Prometheus may read /metrics")
      .value_name("HOST:PORT");
  command.setting("--admin-socket", options.admin_socket, "Socket file for /drain and /status")
      .value_name("FILE");
  command
      .setting("--drain-grace", options.drain_grace_s,
               "Seconds after SIGTERM in which new requests are still taken")
      .range(0, 3600)
      .value_name("S");
  command
      .setting("--drain-deadline", options.drain_deadline_s,
               "Seconds after these until unfinished requests are cut")
      .range(0, 86400)
      .value_name("S");
  command
      .setting("--keep-alive", options.keep_alive_s,
               "Seconds of silence after which a stream gets a comment")
      .range(0.1, 3600)
      .value_name("S");
  command
      .setting("--request-timeout", options.request_timeout_s,
               "Longest time for one request in seconds; 0 = no limit")
      .range(0, 86400)
      .value_name("S");
  command
      .setting("--stuck-after", options.stuck_after_s,
               "Seconds without a finished step after which /health fails")
      .range(1, 86400)
      .value_name("S");
  command.setting("--max-body", options.body_mib_max, "Longest request body in MiB")
      .range(1, 1024)
      .value_name("MIB");
  command.setting("--max-connections", options.connections_max, "Connections at once")
      .range(1, 100000)
      .value_name("N");
  command.setting("--log-level", options.log_level, "What to log")
      .choices({"debug", "info", "warn", "error"})
      .value_name("LEVEL");
  add_model_settings(command, options.model);
  add_engine_settings(command, options.engine);
  add_sampling_settings(command, options.sampling);
}

int print_new_key(const Command& command, const std::string& name) {
  const auto made = server::make_key(name);
  if (!made) return command.usage(made.error().message);
  std::fprintf(stderr, "The key of %s, shown this once: %s\n", name.c_str(), made->key.c_str());
  std::fputs(made->entry.c_str(), stdout);
  return kExitOk;
}

}  // namespace

int run_serve(int argc, char** argv) {
  ServeOptions options;
  options.engine.sequences = 32;
  options.engine.prefix_cache = "bounded";
  options.engine.async_scheduling = "on";
  Command command(
      "serve", "Serves the model over HTTP, in the OpenAI and Anthropic APIs.",
      "  galley serve                                   the bundled model on port 8000\n"
      "  galley serve -m /models/DeepSeek-V4.1-Flash --served-model-name deepseek-flash\n"
      "  galley serve --new-key alice >> keys.toml\n"
      "  galley serve --host 0.0.0.0 --api-keys keys.toml --tls-cert c.pem --tls-key k.pem\n"
      "  galley serve --metrics-listen 9090 --admin-socket /run/galley/admin.sock\n"
      "\nSIGTERM: /ready says no, new requests are taken for --drain-grace seconds, then "
      "refused;\nthose in hand are finished, then exit code 0. SIGHUP reads keys and "
      "certificate again.\n");
  declare(command, options);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  if (!options.new_key.empty()) return print_new_key(command, options.new_key);
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return command.usage("--tls-cert and --tls-key are given together");
  }
  raise_descriptor_limit();
  return_large_buffers();
  server::EventLog log(*server::parse_log_level(options.log_level));
  Serving serving(options, log);
  const Result<int> code = serving.run();
  return code ? *code : command.fail(code.error());
}

}  // namespace galley::tools
