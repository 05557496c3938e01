// Reads a checkpoint's weights into memory before anything needs them, in the
// order of the files: from then on no step waits for the disk.
//
// Engram tables are left out: their rows are fetched when tokens ask for them.
// The weights stay pages of their files, which the system may drop again.
#pragma once

#include <cstdint>
#include <functional>

#include "model/checkpoint.h"

namespace galley::model {

// What there is to read.
int64_t preload_bytes(const Checkpoint& checkpoint);

// Calls `progress` with the bytes read so far, now and then; it may end the reading by returning
// false.
void preload(const Checkpoint& checkpoint, const std::function<bool(int64_t)>& progress);

}  // namespace galley::model
