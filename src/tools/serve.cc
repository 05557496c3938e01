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
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "base/machine.h"
#include "base/thread_name.h"
#include "model/preload.h"
#include "net/address.h"
#include "net/event_loop.h"
#include "net/server.h"
#include "server/api_keys.h"
#include "server/event_log.h"
#include "server/self_test.h"
#include "server/service.h"
#include "server/state_directory.h"
#include "tools/exit_code.h"
#include "tools/loaded_model.h"
#include "tools/progress.h"
#include "tools/serve_options.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeavePoll{50};
constexpr milliseconds kLastWords{1000};
constexpr int64_t kMebibyte = int64_t{1} << 20;

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

// How far loading is: for /ready, for a terminal, and a line of the log for each phase.
class LoadingReport : public LoadWatch {
 public:
  LoadingReport(server::Service& service, server::EventLog& log) : service_(service), log_(log) {}

  void enter(const char* phase, int64_t bytes) override {
    finish();
    phase_ = phase;
    bytes_ = bytes;
    service_.set_loading(phase_, start_of(phase_));
    server::LogEvent event("loading");
    event.add("phase", phase_);
    if (bytes_ > 0) event.add("bytes", bytes_);
    log_.info(event);
    if (bytes_ > 0) {
      progress_ = std::make_unique<Progress>(
          Progress::Options{.unit = "MiB", .total = std::max<int64_t>(1, bytes_ / kMebibyte)});
    }
  }

  void advance(int64_t bytes) override {
    const double share =
        static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, bytes_));
    service_.set_loading(phase_,
                         start_of(phase_) + share * (start_of("engine") - start_of(phase_)));
    done_ = bytes;
    if (progress_ != nullptr) progress_->update(bytes / kMebibyte);
  }

  // The last phase is over.
  void finish() {
    if (progress_ != nullptr) progress_->finish(done_ / kMebibyte);
    progress_.reset();
  }

 private:
  // Of the whole time, as it is with a large model on a disk.
  static double start_of(std::string_view phase) {
    if (phase == "tokenizer") return 0;
    if (phase == "checkpoint") return 0.02;
    if (phase == "weights") return 0.05;
    if (phase == "engine") return 0.95;
    return 0.98;
  }

  server::Service& service_;
  server::EventLog& log_;
  const char* phase_ = "";
  int64_t bytes_ = 0;
  int64_t done_ = 0;
  std::unique_ptr<Progress> progress_;  // while bytes are read
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text.append(text.empty() ? "" : ",").append(name);
  return text;
}

class Serving {
 public:
  // Reads the settings again when it is asked to.
  using ReadAgain = std::function<Result<ReadSettings>()>;

  Serving(ReadSettings settings, ReadAgain read_again, server::EventLog& log)
      : options_(std::move(settings.options)),
        values_(std::move(settings.values)),
        read_again_(std::move(read_again)),
        log_(log) {}

  Result<int> run() {
    if (!options_.state_dir.empty()) state_ = TRY(server::StateDirectory::open(options_.state_dir));
    TRY(open_listeners());
    if (state_ != nullptr) service_->keep_state(*state_);
    // A reload while it loads changes options_ under the loop's thread.
    const ServeOptions at_start = options_;
    std::thread loop_thread([this] {
      name_thread("galley-loop");
      loop_.run();
    });
    Result<int> code = load_and_wait(at_start);
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
  Result<int> load_and_wait(const ServeOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    LoadingReport report(*service_, log_);
    loaded_ = TRY(LoadedModel::open(options.model, &report));
    preload(options.preload, report);
    report.enter("engine", 0);
    EngineSettings settings = options.engine;
    if (options.context > 0) settings.context = options.context;
    engine_ = TRY(loaded_->make_engine(settings));
    report.enter("self_test", 0);
    const auto tested = server::run_self_test(*engine_, loaded_->config().vocab_size);
    if (!tested) return with_context(tested.error(), "self-test");
    const auto loaded_in = std::chrono::steady_clock::now() - begin;
    report.finish();
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

  // Weights that fit are read before anybody waits for them.
  void preload(const std::string& when, LoadingReport& report) const {
    if (when == "off") return;
    const model::Checkpoint& checkpoint = loaded_->model().checkpoint();
    const int64_t bytes = model::preload_bytes(checkpoint);
    const int64_t available = this_machine().available_bytes;
    if (when == "auto" && bytes > available / 10 * 8) {
      log_.warn(
          server::LogEvent("not_preloaded")
              .add("bytes", bytes)
              .add("available", available)
              .add("problem", "the weights do not fit in memory: steps will wait for the disk"));
      return;
    }
    report.enter("weights", bytes);
    model::preload(checkpoint, [&report](int64_t done) {
      report.advance(done);
      return true;
    });
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
    const Result<void> outcome = take_settings_again();
    if (!outcome) {
      log_.error(server::LogEvent("reload_failed")
                     .add("problem", outcome.error().message + "; the old settings stay in force"));
    }
    return outcome;
  }

  // All of it or nothing.
  Result<void> take_settings_again() {
    const ReadSettings fresh = TRY(read_again_());
    SettingValues values = values_;
    const SettingsChange change = compare_settings(values, fresh.values);
    ServeOptions options = options_;
    take_settings(change.taken, fresh.options, options);
    std::optional<server::ApiKeys> keys;
    if (!options.api_keys.empty()) keys = TRY(server::ApiKeys::open(options.api_keys));
    std::shared_ptr<net::TlsContext> tls;
    if (!options.tls_certificate.empty()) {
      tls = TRY(net::TlsContext::load(options.tls_certificate, options.tls_key));
    }
    options_ = std::move(options);
    values_ = std::move(values);
    server::LogEvent event("reloaded");
    if (keys) event.add("keys", static_cast<int64_t>(keys->all().size()));
    if (tls != nullptr) event.add("certificate", options_.tls_certificate);
    event.add("changed", change.taken.empty() ? "nothing" : joined(change.taken));
    if (!change.need_restart.empty()) event.add("needs_restart", joined(change.need_restart));
    if (keys) service_->gate().replace_keys(std::move(*keys));
    if (tls != nullptr) public_->replace_tls(std::move(tls));
    service_->replace_options(service_options(""));
    public_->replace_limits(options_.connections_max,
                            static_cast<size_t>(options_.body_mib_max * kMebibyte));
    log_.set_lowest(*server::parse_log_level(options_.log_level));
    change.need_restart.empty() ? log_.info(event) : log_.warn(event);
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

  ServeOptions options_;
  SettingValues values_;  // of those in force
  ReadAgain read_again_;
  server::EventLog& log_;
  std::promise<int> ended_;
  bool end_told_ = false;
  // In this order: what is below uses what is above.
  std::unique_ptr<LoadedModel> loaded_;
  net::EventLoop loop_;
  std::unique_ptr<server::StateDirectory> state_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<net::Server> public_;
  std::unique_ptr<net::Server> metrics_;
  std::unique_ptr<net::Server> admin_;
};

int print_new_key(const Command& command, const std::string& name) {
  const auto made = server::make_key(name);
  if (!made) return command.usage(made.error().message);
  std::fprintf(stderr, "The key of %s, shown this once: %s\n", name.c_str(), made->key.c_str());
  std::fputs(made->entry.c_str(), stdout);
  return kExitOk;
}

}  // namespace

int run_serve(int argc, char** argv) {
  ReadSettings settings = {.options = default_serve_options(), .values = {}};
  ServeOptions& options = settings.options;
  Command command(
      "serve", "Serves the model over HTTP, in the OpenAI and Anthropic APIs.",
      "  galley serve                                   the bundled model on port 8000\n"
      "  galley serve -m /models/DeepSeek-V4.1-Flash --served-model-name deepseek-flash\n"
      "  galley serve --new-key alice >> keys.toml\n"
      "  galley serve --host 0.0.0.0 --api-keys keys.toml --tls-cert c.pem --tls-key k.pem\n"
      "  galley serve --metrics-listen 9090 --admin-socket /run/galley/admin.sock\n"
      "\nSIGTERM: /ready says no, new requests are taken for --drain-grace seconds, then "
      "refused;\nthose in hand are finished, then exit code 0. SIGHUP reads settings, keys "
      "and\ncertificate again, and logs what changed and what needs a restart.\n");
  declare_serve_options(command, options);
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  if (!options.new_key.empty()) return print_new_key(command, options.new_key);
  if (const auto checked = check_serve_options(options); !checked) {
    return command.usage(checked.error().message);
  }
  // A limit of a file's size is an error of its write, not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  raise_descriptor_limit();
  return_large_buffers();
  server::EventLog log(*server::parse_log_level(options.log_level), options.log_format == "json"
                                                                        ? server::LogFormat::kJson
                                                                        : server::LogFormat::kText);
  settings.values = command.values();
  Serving serving(
      std::move(settings), [=] { return read_serve_options_again(argc, argv); }, log);
  const Result<int> code = serving.run();
  return code ? *code : command.fail(code.error());
}

}  // namespace galley::tools
