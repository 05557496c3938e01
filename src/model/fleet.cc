#include "model/fleet.h"

#include <array>
#include <cstdio>

#include "model/placed_weights.h"

namespace galley::model {
namespace {

constexpr int32_t kCardsMax = 256;
// A step of 16,384 rows (4.1 GB at the released widths), kernels, graphs, exchange with the others.
constexpr int64_t kWorkspaceBytes = int64_t{8} << 30;
constexpr int64_t kGiB = int64_t{1} << 30;
// Measured on an H200: pinned memory to the card.
constexpr double kLinkBytesPerS = 55e9;

std::string printed(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string gb(int64_t bytes) { return printed("%.2f GB", static_cast<double>(bytes) / 1e9); }

Fleet fleet_of(const Footprint& size, const CardKind& card, const FleetLoad& load, int32_t cards) {
  const bool tables_on_host = size.table_bytes > kPlacedTableBytesMax;
  const int64_t sequences = (load.sequences + cards - 1) / cards;
  Fleet fleet;
  fleet.card = card;
  fleet.cards = cards;
  fleet.expert_bytes = (size.expert_bytes + cards - 1) / cards;
  fleet.other_bytes = size.always_bytes + size.draft_bytes + size.vision_bytes +
                      (tables_on_host ? 0 : size.table_bytes);
  fleet.cache_bytes =
      sequences * (size.kv_bytes_per_sequence + load.context * size.kv_bytes_per_token);
  fleet.workspace_bytes = kWorkspaceBytes;
  fleet.host_bytes = tables_on_host ? size.table_bytes : 0;
  fleet.load_s =
      static_cast<double>(fleet.expert_bytes + fleet.other_bytes) / card.link_bytes_per_s;
  return fleet;
}

}  // namespace

std::span<const CardKind> known_cards() {
  static constexpr std::array<CardKind, 3> kCards = {
      CardKind{"H200", 139 * kGiB, kLinkBytesPerS},
      CardKind{"H100", 79 * kGiB, kLinkBytesPerS},
      CardKind{"H20", 95 * kGiB, kLinkBytesPerS},
  };
  return kCards;
}

std::optional<Fleet> smallest_fleet(const Config& config, const Footprint& size,
                                    const CardKind& card, const FleetLoad& load) {
  int64_t half_as_many_bytes = 0;
  for (int32_t cards = 1; cards <= kCardsMax; cards *= 2) {
    if (config.routed_experts % cards != 0) break;
    Fleet fleet = fleet_of(size, card, load, cards);
    if (fleet.bytes() <= card.memory_bytes) {
      fleet.half_as_many_bytes = half_as_many_bytes;
      return fleet;
    }
    half_as_many_bytes = fleet.bytes();
  }
  return std::nullopt;
}

std::string fleet_line(const Fleet& fleet, const FleetLoad& load) {
  std::string text =
      std::to_string(fleet.cards) + " x " + fleet.card.name + ": each holds " +
      gb(fleet.expert_bytes) + " of experts, " + gb(fleet.other_bytes) + " of other weights, " +
      gb(fleet.cache_bytes) + " of cache (" + std::to_string(load.sequences) + " sequences of " +
      std::to_string(load.context) + " tokens over all), " + gb(fleet.workspace_bytes) +
      " for steps: " + gb(fleet.bytes()) + " of " + gb(fleet.card.memory_bytes);
  if (fleet.half_as_many_bytes > 0) {
    text += " (" + std::to_string(fleet.cards / 2) + " would need " + gb(fleet.half_as_many_bytes) +
            " each)";
  }
  if (fleet.host_bytes > 0) text += "; host memory: " + gb(fleet.host_bytes) + " of Engram tables";
  return text + "; load: " + gb(fleet.expert_bytes + fleet.other_bytes) + " a card at " +
         printed("%.0f GB/s", fleet.card.link_bytes_per_s / 1e9) + " take " +
         printed("%.1f s", fleet.load_s) + ", or as long as the disk does";
}

}  // namespace galley::model
