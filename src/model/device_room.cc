#include "model/device_room.h"

#include <cstdio>
#include <string>

#include "model/placed_weights.h"
#include "model/step_workspace.h"

namespace galley::model {
namespace {

// The driver's own: code of the kernels, graphs of steps, what blocks of memory are rounded to.
constexpr int64_t kDriverBytes = int64_t{256} << 20;

// Gives addresses that nobody may use, and adds up.
class CountingMemory final : public kernels::Memory {
 public:
  int64_t bytes() const { return bytes_; }

  bool is_host() const override { return false; }
  int64_t free_bytes() const override { return INT64_MAX; }
  Result<void*> allocate(int64_t bytes, const char* /*what*/) override {
    bytes_ += bytes;
    return static_cast<void*>(this);
  }
  void release(void* /*memory*/, int64_t /*bytes*/) override {}
  Result<void*> allocate_host(int64_t /*bytes*/, const char* /*what*/) override {
    return static_cast<void*>(this);
  }
  void release_host(void* /*memory*/, int64_t /*bytes*/) override {}
  void write(void* /*to*/, const void* /*from_host*/, int64_t /*bytes*/) override { CHECK(false); }
  void read(void* /*to_host*/, const void* /*from*/, int64_t /*bytes*/) override { CHECK(false); }

 private:
  int64_t bytes_ = 0;
};

int64_t workspace_bytes(const Config& config, const KvLayout& layout, const StepOptions& options) {
  CountingMemory device;
  CountingMemory host;
  BufferSource device_source(device);
  BufferSource host_source(host);
  const StepWorkspace workspace(config, layout, options, device_source, host_source);
  return device.bytes();
}

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

// What would fit instead.
std::string advice(const DeviceNeeds& needs, int64_t free_bytes) {
  const int64_t beside_weights = free_bytes - needs.weights;
  if (beside_weights <= 0) {
    return "the weights alone are too large: galley doctor says how many such cards hold them, and "
           "--backend fast runs them from host memory";
  }
  const int64_t for_pages = beside_weights - needs.slot * needs.counts.slot_count - needs.workspace;
  const int64_t pages = needs.page == 0 ? 0 : for_pages / needs.page;
  if (pages < needs.counts.slot_count) return "take fewer sequences or fewer rows a step";
  return "a shorter context fits: " + std::to_string(pages * needs.page_tokens) +
         " tokens of all sequences together instead of " +
         std::to_string(int64_t{needs.counts.page_count} * needs.page_tokens);
}

}  // namespace

Result<DeviceNeeds> device_needs(const Model& model, const KvOptions& kv, CacheCounts counts,
                                 const StepOptions& step, kernels::Ops& ops) {
  const KvLayout layout = TRY(KvLayout::create(model.config(), kv));
  DeviceNeeds needs;
  needs.weights = placed_bytes(model, ops, {step.expert_first, step.expert_count});
  needs.page = layout.page_stride;
  needs.slot = layout.slot_bytes;
  // With the slot and the page of rows of no sequence (KvCache::has_spare).
  needs.workspace =
      workspace_bytes(model.config(), layout, step) + layout.page_stride + layout.slot_bytes;
  needs.counts = counts;
  needs.page_tokens = layout.page_tokens;
  return needs;
}

Result<void> check_device_room(const DeviceNeeds& needs, int64_t free_bytes) {
  const int64_t usable = free_bytes - kDriverBytes;
  if (needs.total() <= usable) return {};
  return Error{ErrorCode::kExhausted,
               "the device has " + gigabytes(free_bytes) + " free, and " +
                   gigabytes(needs.total() + kDriverBytes) + " are needed (weights " +
                   gigabytes(needs.weights) + ", " + std::to_string(needs.counts.page_count) +
                   " pages " + gigabytes(needs.page * needs.counts.page_count) + ", " +
                   std::to_string(needs.counts.slot_count) + " slots " +
                   gigabytes(needs.slot * needs.counts.slot_count) + ", workspace " +
                   gigabytes(needs.workspace) + ", driver " + gigabytes(kDriverBytes) +
                   "): " + advice(needs, usable)};
}

}  // namespace galley::model
