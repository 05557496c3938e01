// The scheduler's record of one token list being extended.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/prefix_key.h"
#include "cache/snapshot_pool.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/tenant_clock.h"

namespace galley::engine {

struct Sequence {
  GenerateRequest request;
  Usage usage;
  uint64_t arrival = 0;  // order of acceptance
  TenantClock::Tenant* tenant = nullptr;
  std::vector<int32_t> tokens;  // prompt and output, reserved whole
  bool cancelled = false;
  bool ended = false;  // reported; only steps in flight still name it

  // Where it runs; no slot and at most the pages of its hit while it waits.
  int32_t slot = 0;
  uint64_t started_in = 0;  // the first step that it could be in
  std::vector<int32_t> page_table;
  int64_t computed = 0;  // rows before it are in pages and rings, or need not be
  // Steps that are planned and not committed: how many name it, what they sample, and the rows
  // before which everything is computed once they are over. They read copies of the page table,
  // which changes meanwhile: by step id.
  int32_t flights = 0;
  int32_t awaited = 0;
  int64_t planned = 0;
  std::array<std::vector<int32_t>, kStepsInFlightMax> flown_tables;
  int64_t tail_floor = 0;
  // The prefix hit that it started from: it belongs to the sequence and survives preemption.
  int64_t hit = 0;
  int64_t replay_start = 0;    // the first row that it computes: hit, when it has a snapshot
  cache::SnapshotState state;  // of its rings, for the snapshots that are taken of them
  bool from_snapshot = false;
  int64_t branch = 0;  // of its prompt: a boundary that its rows have yet to pass, to be kept
  std::optional<cache::SnapshotId> origin;   // held, where only it gives the same tokens again
  std::optional<cache::SnapshotId> spilled;  // its slot and pages, while it waits
  int64_t spilled_from = 0;                  // the first of these pages
  int64_t charged = 0;                       // rows before it were charged to the tenant

  // Its names in the prefix cache.
  cache::PrefixKey root;
  std::vector<cache::PrefixKey> keys;  // of its whole pages, as far as they were needed
  size_t announced = 0;                // keys before it may be announced as being computed
  size_t published = 0;                // pages before it are in the index, and held
  bool publishes = true;               // false once another's page of other bits has its name

  // While waiting: how many later arrivals started first, and when it was last tried.
  int32_t passes = 0;
  uint64_t tried = 0;
  int32_t rank = 0;  // priority with ageing, of the running

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t expected_size() const { return size() + awaited; }
  int64_t prompt_end() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t length_max() const { return prompt_end() + request.output_tokens_max; }
  bool has_output() const { return size() > prompt_end(); }
  // Its first steps after a hit, which refill the windows.
  bool replays() const { return hit > replay_start && !has_output() && !usage.replayed_at; }
  // All but the token just produced, known or not, is computed or planned: one row a step.
  bool decodes() const { return expected_size() > prompt_end() && planned + 1 == expected_size(); }
  // Its last token is being computed.
  bool complete() const { return usage.output_tokens + awaited == request.output_tokens_max; }
};

}  // namespace galley::engine
