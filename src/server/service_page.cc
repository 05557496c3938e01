// Service: the web page and what it shows of the kitchen.
#include <utility>

#include "serve/kitchen_state.h"
#include "serve/page_asset.h"
#include "server/service.h"

namespace galley::server {
namespace {

const char* state_word(engine::EngineState state) {
  switch (state) {
    case engine::EngineState::kRunning:
      return "running";
    case engine::EngineState::kDraining:
      return "draining";
    case engine::EngineState::kFailed:
      return "failed";
    case engine::EngineState::kStopped:
      return "stopped";
  }
  return "stopped";
}

int64_t microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

serve::KitchenTier device_tier(const engine::EngineGlance& glance, int64_t page_count) {
  serve::KitchenTier device;
  device.name = "device";
  device.page_count = page_count;
  device.free_pages = glance.pages_unused;
  device.held_pages = page_count - glance.pages_unused;
  for (size_t band = 0; band < glance.pages_kept.size(); ++band) {
    const bool is_last = band == cache::PageAges::kBandSeconds.size();
    device.cached.push_back({.under_s = is_last ? 0 : cache::PageAges::kBandSeconds[band],
                             .pages = glance.pages_kept[band]});
    device.held_pages -= glance.pages_kept[band];
  }
  return device;
}

}  // namespace

// Open to all: it is program, not data, and asks for a key itself.
void Service::get_page(std::unique_ptr<Call> call) {
  const serve::PageAsset* asset = serve::find_page_asset(call->request().path);
  for (const auto& [name, value] : serve::kPageHeaders) {
    call->fields.push_back({std::string(name), std::string(value)});
  }
  call->fields.push_back({"ETag", std::string(asset->etag)});
  call->fields.push_back({"Cache-Control", std::string(asset->cache_control)});
  const bool unchanged = call->request().field("if-none-match") == asset->etag;
  reply(std::move(call), unchanged ? 304 : 200, unchanged ? "" : std::string(asset->content),
        asset->content_type);
}

void Service::get_kitchen(std::unique_ptr<Call> call) {
  serve::KitchenState state;
  state.model = options_.model_names.front();
  state.state = state_name(state_);
  state.now_ms = door_.clock_ms(Clock::now());
  if (model_) {
    const engine::EngineStats stats = model_->engine->stats();
    const engine::GeneratorOptions& limits = model_->engine->options();
    state.state = state_ == ServiceState::kReady ? state_word(stats.state) : "draining";
    state.running = stats.running;
    state.waiting = stats.waiting;
    state.running_max = stats.sequences_max;
    state.waiting_max = limits.waiting_max;
    state.page_tokens = limits.page_tokens;
    state.last_step_us = microseconds(stats.last_step_time);
    state.totals.steps = stats.steps;
    state.totals.step_us = microseconds(stats.step_time);
    state.totals.prefill_rows = stats.rows.prefill_rows;
    state.totals.replay_rows = stats.rows.replay_rows;
    state.totals.decode_rows = stats.rows.decode_rows;
    state.totals.wasted_rows = stats.rows.wasted_rows;
    state.totals.output_tokens = stats.output_tokens;
    const engine::EngineGlance glance = model_->engine->glance();
    state.tiers.push_back(device_tier(glance, stats.page_count));
    for (const auto& [request, owner] : live_) request->show(glance);
  }
  metrics_.fill(state.totals);
  state.tickets = board_.tickets(state.now_ms);
  call->fields.push_back({"Cache-Control", "no-store"});
  reply(std::move(call), 200, serve::kitchen_state_json(state));
}

}  // namespace galley::server
