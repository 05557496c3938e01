// Every kernel and copy that a program runs on the card, with the card's own clock: a library that
// CUDA loads into the program, so that nothing of it is in galley.
//
//   g++ -O2 -shared -fPIC -o gpu_trace.so bench/gpu_trace.cc -I/usr/local/cuda/include \
//       -L/usr/local/cuda/lib64 -lcupti
//   CUDA_INJECTION64_PATH=./gpu_trace.so GPU_TRACE=trace.tsv galley bench ...
//   python3 bench/gpu_trace.py trace.tsv
//
// The file has a line a kernel: start and end in ns, blocks, threads, number of the name; then the
// names behind '#'.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Span {
  uint64_t start = 0;
  uint64_t end = 0;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t name = 0;
};

std::mutex mutex;
std::vector<Span> spans;
std::map<std::string, uint32_t> names;

uint32_t number_of(const std::string& name) {
  return names.emplace(name, static_cast<uint32_t>(names.size())).first->second;
}

void CUPTIAPI give(uint8_t** buffer, size_t* size, size_t* records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *records = 0;
}

void CUPTIAPI take(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*size*/,
                   size_t valid) {
  const std::lock_guard<std::mutex> lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      spans.push_back({k->start, k->end,
                       static_cast<uint32_t>(k->gridX) * static_cast<uint32_t>(k->gridY) *
                           static_cast<uint32_t>(k->gridZ),
                       static_cast<uint32_t>(k->blockX), number_of(k->name)});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      spans.push_back({m->start, m->end, static_cast<uint32_t>(m->bytes >> 10), 0,
                       number_of("memcpy kind " + std::to_string(m->copyKind))});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      spans.push_back(
          {m->start, m->end, static_cast<uint32_t>(m->bytes >> 10), 0, number_of("memset")});
    }
  }
  std::free(buffer);
}

void write() {
  cuptiActivityFlushAll(1);
  const char* path = std::getenv("GPU_TRACE");
  std::FILE* file = std::fopen(path != nullptr ? path : "gpu_trace.tsv", "w");
  if (file == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Span& s : spans) {
    std::fprintf(file, "%llu\t%llu\t%u\t%u\t%u\n", static_cast<unsigned long long>(s.start),
                 static_cast<unsigned long long>(s.end), s.blocks, s.threads, s.name);
  }
  for (const auto& [name, number] : names) std::fprintf(file, "#%u\t%s\n", number, name.c_str());
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give, take);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
  std::atexit(write);
  return 1;
}
