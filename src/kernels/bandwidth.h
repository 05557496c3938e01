// Measured floors of this machine: what a kernel is judged against. Each
// benchmark measures them in its own run, since clocks and neighbours change.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/fast/fast_ops.h"

namespace galley::kernels {

// A buffer far beyond any cache; 6 GiB are what docs/benchmarks.md reports.
constexpr int64_t kBandwidthBytes = int64_t{6} << 30;

// Bytes per second that all threads of the pool read from a buffer of `bytes`, after a
// pass that warms it up: the best of `passes`. kExhausted without so much memory.
Result<double> read_bandwidth(ThreadPool& pool, int64_t bytes, int passes = 3);

// Operations per second (multiply and add count as two) of the instruction set's dot
// product on all threads, operands in registers: the best of `passes` of about 50 ms.
double dot_peak(ThreadPool& pool, Isa isa, int passes = 5);

}  // namespace galley::kernels
