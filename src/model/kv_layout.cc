#include "model/kv_layout.h"

#include <numeric>
#include <string>

#include "kernels/tensor.h"

namespace galley::model {
namespace {

constexpr int64_t kLine = 64;  // parts of a slot start on their own cache line

int64_t round_up(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

Result<void> check_options(const Config& config, const KvOptions& options) {
  int32_t multiple = 1;
  for (const int32_t layer : config.kv_sources) {
    multiple = std::lcm(multiple, config.roles[static_cast<size_t>(layer)].ratio);
  }
  if (options.page_tokens < 1 || options.page_tokens % multiple != 0) {
    return Error{ErrorCode::kInvalid, "pages of " + std::to_string(options.page_tokens) +
                                          " tokens: must be a positive multiple of " +
                                          std::to_string(multiple) +
                                          ", the compression ratios' common multiple"};
  }
  if (options.reuse_layers < 0 || options.reuse_layers > config.layers) {
    return Error{ErrorCode::kInvalid, "reuse_layers is " + std::to_string(options.reuse_layers) +
                                          " of " + std::to_string(config.layers) + " layers"};
  }
  if (options.verify_rows_max < 1) {
    return Error{ErrorCode::kInvalid, "verify_rows_max is " +
                                          std::to_string(options.verify_rows_max) +
                                          "; it must be at least 1"};
  }
  return {};
}

void place_page(const Config& config, KvLayout& layout) {
  for (const int32_t layer : config.kv_sources) {
    KvSourceLayout source;
    source.layer = layer;
    source.ratio = config.roles[static_cast<size_t>(layer)].ratio;
    source.records_per_page = layout.page_tokens / source.ratio;
    source.global_offset = layout.page_bytes;
    layout.page_bytes += int64_t{source.records_per_page} * layout.global_record_bytes;
    source.index_offset = layout.page_bytes;
    layout.page_bytes += int64_t{source.records_per_page} * layout.index_record_bytes;
    layout.sources.push_back(source);
  }
  layout.page_stride = round_up(layout.page_bytes);
}

void place_slot(const Config& config, const KvOptions& options, KvLayout& layout) {
  const auto take = [&layout](int64_t bytes) {
    const int64_t offset = layout.slot_bytes;
    layout.slot_bytes += round_up(bytes);
    return offset;
  };
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    RingLayout ring;
    // The cut layer serves the rows [N - W, N) at once when their inputs were
    // held: the oldest of them sees W - 1 keys more.
    const bool cut = layer == config.decoder_source();
    ring.slots = (cut ? 2 * config.window - 1 : config.window) + options.verify_rows_max;
    if (layer < options.reuse_layers) {
      // The next row sees W - 1 keys more; a held input of the cut layer as many again.
      ring.reuse = (cut && options.hold_inputs ? 2 : 1) * (config.window - 1);
      ring.slots += options.page_tokens - 1;
    }
    ring.offset = take(int64_t{ring.slots} * layout.window_record_bytes);
    layout.rings.push_back(ring);
  }
  for (KvSourceLayout& source : layout.sources) {
    if (source.ratio == 1) continue;
    source.pending_slots = source.ratio - 1 + options.verify_rows_max;
    source.pending_offset = take(source.pending_slots * layout.pending_row_bytes);
  }
  if (options.hold_inputs && config.decoder_source() >= 0) {
    layout.held.slots = config.window + options.verify_rows_max;
    if (options.reuse_layers > 0) {
      layout.held.reuse = config.window - 1;
      layout.held.slots += options.page_tokens - 1;
    }
    layout.held.offset = take(layout.held.slots * layout.held_row_bytes);
  }
}

}  // namespace

Result<KvLayout> KvLayout::create(const Config& config, const KvOptions& options) {
  TRY(check_options(config, options));
  KvLayout layout;
  layout.page_tokens = options.page_tokens;
  layout.window_record_bytes = static_cast<int32_t>(kernels::window_record_bytes(config.head_dim));
  layout.global_record_bytes = static_cast<int32_t>(kernels::global_record_bytes(config.head_dim));
  layout.index_record_bytes =
      static_cast<int32_t>(kernels::index_record_bytes(config.index_head_dim));
  layout.pending_row_bytes = int64_t{2} * config.head_dim * static_cast<int64_t>(sizeof(float));
  layout.held_stream_bytes = round_up(int64_t{2} * config.streams * config.hidden);
  layout.held_row_bytes = round_up(layout.held_stream_bytes +
                                   int64_t{config.streams} * static_cast<int64_t>(sizeof(float)));
  place_page(config, layout);
  place_slot(config, options, layout);
  return layout;
}

}  // namespace galley::model
