// The fewest cards of one kind that hold a model, its cache and a step's workspace.
//
// Arithmetic over a footprint: experts are spread over the cards, everything else that computes
// lies on each, sequences are spread, and Engram tables stay in the hosts' memory. Knows no
// devices: a card is its memory and its link.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/config.h"
#include "model/footprint.h"

namespace galley::model {

struct CardKind {
  const char* name = "";
  int64_t memory_bytes = 0;       // as the driver counts it
  double link_bytes_per_s = 0.0;  // from the host
};
// H200, H100 and H20 as sold.
std::span<const CardKind> known_cards();

struct FleetLoad {
  int64_t context = 0;    // tokens of each sequence
  int64_t sequences = 0;  // at once, over all cards
};

struct Fleet {
  CardKind card;
  int32_t cards = 0;
  // Of the fullest card.
  int64_t expert_bytes = 0;
  int64_t other_bytes = 0;  // weights that each card has: all but experts and large tables
  int64_t cache_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t host_bytes = 0;          // tables, over all hosts together
  double load_s = 0;               // a card's weights over its link, all cards at once
  int64_t half_as_many_bytes = 0;  // what a card of half the fleet would have to hold; 0: one card

  int64_t bytes() const { return expert_bytes + other_bytes + cache_bytes + workspace_bytes; }
};

// Sizes are powers of two, as machines and groups of ranks have them, and divide the experts.
// Nothing: no group of up to 256 cards holds it.
std::optional<Fleet> smallest_fleet(const Config& config, const Footprint& size,
                                    const CardKind& card, const FleetLoad& load);

// The arithmetic of a fleet in one line.
std::string fleet_line(const Fleet& fleet, const FleetLoad& load);

}  // namespace galley::model
