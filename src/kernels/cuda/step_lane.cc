#include "kernels/cuda/step_lane.h"

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kGraphsMax = 64;
constexpr int64_t kCommandBytesMax = int64_t{4} << 20;

}  // namespace

Result<StepStreams> StepStreams::create() {
  StepStreams streams;
  for (Stream* stream : {&streams.kernels, &streams.copies}) {
    cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
  }
  TRY(check_launch("making streams"));
  return streams;
}

StepLane::StepLane(const StepStreams& streams, Memory& memory)
    : streams_(streams),
      arenas_{{memory, streams.kernels, streams.copies}, {memory, streams.kernels, streams.copies}},
      commands_(kCommandBytesMax),
      graphs_(kGraphsMax) {
  for (Event& event : ended_) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
}

StepLane::~StepLane() {
  cudaStreamSynchronize(streams_.copies);
  cudaStreamSynchronize(streams_.kernels);
  graphs_.clear();
  for (Event event : ended_) cudaEventDestroy(event);
  cudaStreamDestroy(streams_.kernels);
  cudaStreamDestroy(streams_.copies);
}

Result<void> StepLane::reserve(int64_t stage_bytes) {
  for (StageArena& arena : arenas_) TRY(arena.reserve(stage_bytes));
  return {};
}

void StepLane::begin_step() {
  CHECK(in_flight_ < 2);
  if (open_) {  // a step that was never finished
    flush();
    synchronise();
  }
  open_ = true;
  side_ = 1 - side_;
  arena().reset();
  fetches_.clear();
  awaits_ids_ = false;
  waits_ = true;
}

void StepLane::hand_in() {
  CHECK(open_);
  open_ = false;
  ++in_flight_;
  // What is launched for the first time may wait for the device, which may wait for the ids.
  held_back_ = awaits_ids_ && !graphs_.knows(commands_);
  if (!held_back_) end_step();
}

void StepLane::ids_given() {
  CHECK(awaits_ids_ && !open_);
  awaits_ids_ = false;
  if (held_back_) end_step();
  held_back_ = false;
}

bool StepLane::is_done() {
  if (in_flight_ == 0) return true;
  const bool done = cudaEventQuery(ended_[oldest()]) != cudaErrorNotReady;
  if (!done) static_cast<void>(cudaGetLastError());
  return done;
}

Result<void> StepLane::finish() {
  if (open_) hand_in();
  if (in_flight_ == 0) flush();
  if (!failure_ && !(arenas_[0].ok() && arenas_[1].ok())) {
    fail({ErrorCode::kExhausted, "CUDA: no memory left to stage a step's arguments"});
  }
  if (const auto launched = check_launch("launching a step"); !launched) fail(launched.error());
  // Final: what still is in flight has failed too, and its ids may never come.
  if (failure_) return *failure_;
  CHECK(in_flight_ == 2 || !awaits_ids_);  // or it would wait for its own caller
  if (in_flight_ > 0) {
    cudaEventSynchronize(ended_[oldest()]);
    --in_flight_;
  } else {
    synchronise();
  }
  if (const auto done = check_launch("a step"); !done) fail(done.error());
  if (failure_) return *failure_;
  return {};
}

void StepLane::fetch(void* host, const void* from, int64_t bytes) {
  if (bytes > 0) fetches_.push_back({from, host, bytes});
}

void StepLane::end_step() {
  flush();
  for (const Fetch& one : fetches_) {
    cudaMemcpyAsync(one.host, one.from, static_cast<size_t>(one.bytes), cudaMemcpyDeviceToHost,
                    streams_.kernels);
  }
  fetches_.clear();
  cudaEventRecord(ended_[side_], streams_.kernels);
}

void StepLane::flush() {
  if (commands_.empty()) return;
  arena().upload();
  if (arena().ok() && !failure_) {
    if (waits_) {
      if (const auto done = graphs_.run(commands_, streams_.kernels); !done) fail(done.error());
    } else {
      commands_.run(streams_.kernels);
    }
  }
  commands_.clear();
  ++flushes_;
}

void StepLane::synchronise() const { cudaStreamSynchronize(streams_.kernels); }

}  // namespace galley::kernels::cuda
