#include "kernels/bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernels/fast/isa_ops.h"

namespace galley::kernels {
namespace {

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Eight running words, so that loads and not the additions set the pace.
uint64_t sum_words(const uint64_t* words, int64_t count) {
  uint64_t lane[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int64_t l = 0; l < 8; ++l) lane[l] += words[i + l];
  }
  uint64_t sum = 0;
  for (const uint64_t value : lane) sum += value;
  return sum;
}

}  // namespace

Result<double> read_bandwidth(ThreadPool& pool, int64_t bytes, int passes) {
  constexpr int64_t kPart = int64_t{4} << 20;
  const int64_t parts = std::max<int64_t>(1, bytes / kPart);
  const auto size = static_cast<size_t>(parts * kPart);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::kExhausted,
                 "no memory for a bandwidth buffer of " + std::to_string(size) + " bytes"};
  }
  ::madvise(memory, size, MADV_HUGEPAGE);  // page walks are no part of the bandwidth
  auto* bytes_of = static_cast<uint8_t*>(memory);
  pool.run(parts, [&](int64_t part, int) {
    std::memset(bytes_of + part * kPart, static_cast<int>(part & 127) + 1, kPart);
  });
  std::atomic<uint64_t> sink{0};
  const auto pass = [&] {
    pool.run(parts, [&](int64_t part, int) {
      const auto* words = reinterpret_cast<const uint64_t*>(bytes_of + part * kPart);
      sink.fetch_add(sum_words(words, kPart / 8), std::memory_order_relaxed);
    });
  };
  pass();
  double best = 0.0;
  for (int i = 0; i < passes; ++i) {
    best = std::max(best, static_cast<double>(size) / seconds_of(pass));
  }
  ::munmap(memory, size);
  CHECK(sink.load() != 0);
  return best;
}

double dot_peak(ThreadPool& pool, Isa isa, int passes) {
  CHECK(machine_has(isa));
  constexpr int64_t kPartsPerThread = 8;
  constexpr int64_t kRounds = 2'000'000;
  double best = 0.0;
#if defined(__x86_64__)
  const auto run = isa == Isa::kAvx512Bf16 ? avx512bf16::dot_rounds : avx2::dot_rounds;
  for (int i = 0; i < passes; ++i) {
    std::atomic<int64_t> operations{0};
    const double seconds = seconds_of([&] {
      pool.run(kPartsPerThread * pool.thread_count(), [&](int64_t, int) {
        operations.fetch_add(run(kRounds / kPartsPerThread), std::memory_order_relaxed);
      });
    });
    best = std::max(best, static_cast<double>(operations.load()) / seconds);
  }
#else
  (void)pool;
  (void)passes;
#endif
  return best;
}

}  // namespace galley::kernels
