#include "tools/serve_options.h"

#include <functional>
#include <map>
#include <memory>

#include "tools/sampling_settings.h"

namespace galley::tools {
namespace {

using Take = std::function<void(const ServeOptions& from, ServeOptions& to)>;

template <class T>
Take member(T ServeOptions::*field) {
  return [field](const ServeOptions& from, ServeOptions& to) { to.*field = from.*field; };
}

template <class T>
Take sampling(T engine::SamplingOptions::*field) {
  return [field](const ServeOptions& from, ServeOptions& to) {
    to.sampling.*field = from.sampling.*field;
  };
}

// What a running server takes over; everything else is built into its parts.
const std::map<std::string, Take>& live_settings() {
  using O = ServeOptions;
  using S = engine::SamplingOptions;
  static const std::map<std::string, Take> kLive = {
      {"max-output-tokens", member(&O::output_tokens_max)},
      {"api-keys", member(&O::api_keys)},
      {"tls-cert", member(&O::tls_certificate)},
      {"tls-key", member(&O::tls_key)},
      {"drain-grace", member(&O::drain_grace_s)},
      {"drain-deadline", member(&O::drain_deadline_s)},
      {"keep-alive", member(&O::keep_alive_s)},
      {"request-timeout", member(&O::request_timeout_s)},
      {"stuck-after", member(&O::stuck_after_s)},
      {"max-body", member(&O::body_mib_max)},
      {"max-connections", member(&O::connections_max)},
      {"log-level", member(&O::log_level)},
      {"temperature", sampling(&S::temperature)},
      {"top-k", sampling(&S::top_k)},
      {"top-p", sampling(&S::top_p)},
      {"min-p", sampling(&S::min_p)},
      {"repetition-penalty", sampling(&S::repetition_penalty)},
      {"frequency-penalty", sampling(&S::frequency_penalty)},
      {"presence-penalty", sampling(&S::presence_penalty)},
      {"seed", sampling(&S::seed)},
  };
  return kLive;
}

// With keys or without, and with TLS or without, is another server.
bool switches(const std::string& name, const std::string& before, const std::string& after) {
  constexpr const char* kNone = "\"\"";
  const bool is_file = name == "api-keys" || name == "tls-cert" || name == "tls-key";
  return is_file && (before == kNone) != (after == kNone);
}

}  // namespace

ServeOptions default_serve_options() {
  ServeOptions options;
  options.engine.sequences = 32;
  options.engine.prefix_cache = "bounded";
  options.engine.async_scheduling = "on";
  return options;
}

void add_serving_sizes(Command& command, ServeOptions& options) {
  command
      .setting("--sequences", options.engine.sequences,
               "Sequences that run together; answers do not depend on it")
      .range(1, 1024)
      .value_name("N");
  command.setting("--max-connections", options.connections_max, "Connections at once")
      .range(1, 100000)
      .value_name("N");
}

void declare_serve_options(Command& command, ServeOptions& options) {
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
  add_serving_sizes(command, options);
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
  command.setting("--log-level", options.log_level, "What to log")
      .choices({"debug", "info", "warn", "error"})
      .value_name("LEVEL");
  command
      .setting("--log-format", options.log_format, "How to log: key=value, or a JSON object a line")
      .choices({"text", "json"})
      .value_name("FORMAT");
  command
      .setting("--state-dir", options.state_dir,
               "Directory in which files and batches survive a restart; without: memory alone")
      .value_name("DIR");
  command
      .setting("--preload", options.preload,
               "Read the weights into memory before /ready: on, off, auto = if they fit")
      .choices({"auto", "on", "off"})
      .value_name("WHEN");
  add_model_settings(command, options.model);
  add_engine_settings(command, options.engine);
  add_sampling_settings(command, options.sampling, options.model.model);
}

Result<ReadSettings> read_serve_options_again(int argc, char** argv) {
  ReadSettings read = {.options = default_serve_options(), .values = {}};
  Command command("serve", "", "");
  declare_serve_options(command, read.options);
  TRY(command.reread(argc, argv));
  TRY(check_serve_options(read.options));
  read.values = command.values();
  return read;
}

SettingsChange compare_settings(SettingValues& before, const SettingValues& after) {
  SettingsChange change;
  for (size_t i = 0; i < before.size() && i < after.size(); ++i) {
    const auto& [name, value] = after[i];
    if (before[i].second == value) continue;
    if (live_settings().contains(name) && !switches(name, before[i].second, value)) {
      change.taken.push_back(name);
      before[i].second = value;
    } else {
      change.need_restart.push_back(name);
    }
  }
  return change;
}

void take_settings(const std::vector<std::string>& names, const ServeOptions& from,
                   ServeOptions& to) {
  for (const std::string& name : names) {
    const auto live = live_settings().find(name);
    if (live != live_settings().end()) live->second(from, to);
  }
}

Result<void> check_serve_options(const ServeOptions& options) {
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return Error{ErrorCode::kInvalid, "--tls-cert and --tls-key are given together"};
  }
  return {};
}

}  // namespace galley::tools
