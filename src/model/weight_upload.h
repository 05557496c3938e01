// Bytes on their way from a checkpoint's mapping into a device's memory: many pieces, through a
// bounded ring of pinned chunks, as fast as the slower of disk and link.
//
// A few threads read the mapping into chunks, which is where the disk is waited for; the caller's
// thread alone writes chunks to the device, in order. Knows no tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "kernels/memory.h"

namespace galley::model {

struct UploadPiece {
  const void* from = nullptr;  // the host's
  std::byte* to = nullptr;     // the device's
  int64_t bytes = 0;
  bool then = false;  // something is to be done once it is there, before what follows is written
};

// One thread copies about 10 GB/s out of the page cache, a link takes 55; pinned memory in all is
// chunk_bytes * chunks.
struct UploadSizes {
  int64_t chunk_bytes = int64_t{32} << 20;
  int32_t chunks = 8;
  int32_t readers = 4;
};

// Bytes that are there so far, and in all; false stops the upload.
using UploadProgress = std::function<bool(int64_t done, int64_t total)>;

// Called in the caller's thread with the number of a piece that asks for it.
using AfterPiece = std::function<Result<void>(size_t piece)>;

// kCancelled when `progress` stopped it: what was written then is of no use. An error of `after`
// ends it too.
Result<void> upload(kernels::Memory& memory, std::span<const UploadPiece> pieces,
                    const UploadSizes& sizes, const UploadProgress& progress,
                    const AfterPiece& after = {});

}  // namespace galley::model
