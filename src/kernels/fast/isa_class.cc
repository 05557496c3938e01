#include "kernels/fast/isa_class.h"

#include "kernels/fast/isa_ops.h"

#define GALLEY_TEXT(name) #name
#define GALLEY_TEXT_OF(name) GALLEY_TEXT(name)

namespace galley::kernels::GALLEY_ISA {

FastOps::FastOps(ThreadPool& pool)
    : pool_(pool), scratch_(new fast::Scratch[static_cast<size_t>(pool.thread_count())]) {}

std::string_view FastOps::name() const { return "fast-" GALLEY_TEXT_OF(GALLEY_ISA); }

std::unique_ptr<Ops> make_ops(ThreadPool& pool) { return std::unique_ptr<Ops>(new FastOps(pool)); }

}  // namespace galley::kernels::GALLEY_ISA
