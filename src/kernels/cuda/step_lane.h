// The steps of one device on their way: at most two, in the order of one stream.
//
// Each has its own staging arena and its own end to wait for, so the host lists and stages the next
// step while one runs; copies of arguments pass on a second stream. The commands of a small step
// wait for its hand_in() and become a graph when they came before (graph_cache.h); a larger step
// launches as it goes. Knows nothing of what commands do. Owned by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/command_list.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/stage_arena.h"
#include "kernels/memory.h"

namespace galley::kernels::cuda {

struct StepStreams {
  Stream kernels = nullptr;
  Stream copies = nullptr;  // to the device, beside the kernels

  static Result<StepStreams> create();
};

class StepLane {
 public:
  // `memory` outlives it; the streams are its own from now on.
  StepLane(const StepStreams& streams, Memory& memory);
  ~StepLane();
  StepLane(const StepLane&) = delete;
  StepLane& operator=(const StepLane&) = delete;

  Stream stream() const { return streams_.kernels; }
  StageArena& arena() { return arenas_[side_]; }  // of the step begun last
  CommandList& commands() { return commands_; }
  Result<void> reserve(int64_t stage_bytes);

  // As in ops.h, of the same names.
  void begin_step();
  void hand_in();
  bool is_done();
  Result<void> finish();
  void fetch(void* host, const void* from, int64_t bytes);
  void await_ids() { awaits_ids_ = true; }
  bool awaits_ids() const { return awaits_ids_; }
  void ids_given();
  bool is_open() const { return open_; }  // begun, and not handed in

  // Whether the commands of this step wait for hand_in().
  void set_waits(bool waits) { waits_ = waits; }
  // After each command: launches it, unless the rest of the step may still come along.
  void appended() {
    ++appended_;
    if (!waits_ || !commands_.has_room()) flush();
  }
  // How many there were.
  int64_t appended_count() const { return appended_; }
  // Everything listed so far goes to the stream.
  void flush();
  // Whether what is listed now will be handed to the stream, or captured, together with what was
  // listed when flush_count() was `count`; or everything is launched as it is listed.
  bool joins(int64_t count) const { return !waits_ || count == flushes_; }
  int64_t flush_count() const { return flushes_; }

  void synchronise() const;
  void forget_graphs() { graphs_.clear(); }  // when memory that commands name goes away

  // The first one stays, and every finish() tells it.
  void fail(const Error& error) {
    if (!failure_) failure_ = error;
  }
  const std::optional<Error>& failure() const { return failure_; }

 private:
  struct Fetch {
    const void* from = nullptr;
    void* host = nullptr;
    int64_t bytes = 0;
  };

  size_t oldest() const { return in_flight_ == 2 ? 1 - side_ : side_; }
  void end_step();

  StepStreams streams_;
  StageArena arenas_[2];
  std::array<Event, 2> ended_ = {};
  CommandList commands_;
  GraphCache graphs_;
  std::vector<Fetch> fetches_;  // of the step begun last
  std::optional<Error> failure_;
  int64_t flushes_ = 0;
  int64_t appended_ = 0;
  size_t side_ = 0;          // of the step begun last
  int32_t in_flight_ = 0;    // steps handed in and not finished
  bool open_ = false;        // begun and not handed in
  bool waits_ = false;       // commands wait for hand_in()
  bool awaits_ids_ = false;  // of Engram, the step begun last
  bool held_back_ = false;   // handed in, and launched once the ids are given
};

}  // namespace galley::kernels::cuda
