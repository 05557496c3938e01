// Ranks that share the experts: every rank's logits have the bits of one rank with all experts,
// whatever rows the others have, even none, in prefill, decode and with decoder replay.
//
// Ranks are threads with the kernels of the host, and with those of a card where one is and the
// model's experts are as wide as a release's (src/kernels/cuda/expert_sharing_test.cc has those).
#include "cluster/expert_parallel.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "cluster/local_ranks.h"
#include "driver.h"

namespace galley::testing {
namespace {

using kernels::Rows;

// The rows of one step of a rank: some of each of its sequences.
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;  // none: the rank has no rows in this step
  bool decode = false;
};

struct Work {
  std::vector<int32_t> tokens;
  int64_t prompt = 0;
  std::vector<Chunk> chunks;
};

constexpr int32_t kRowsMax = 128;
constexpr int64_t kPositionsMax = 256;

std::vector<int32_t> random_tokens(const model::Config& config, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab_size));
  }
  return tokens;
}

// One rank's part, or everything: logits of all wanted rows of its steps.
std::vector<std::vector<float>> logits_of(const model::Model& model, const std::string& name,
                                          const Work& work, model::DecoderReplay replay,
                                          cluster::Collectives* ranks) {
  ThreadPool pool(1);
  const std::unique_ptr<kernels::Ops> inner = make_ops(name, pool);
  std::unique_ptr<cluster::ExpertParallelOps> shared;
  model::StepOptions options;
  options.rows_max = kRowsMax;
  options.sequences_max = 1;
  options.logit_rows_max = kRowsMax;
  options.positions_max = kPositionsMax;
  options.replay = replay;
  if (ranks != nullptr) {
    shared =
        cluster::ExpertParallelOps::create(*inner, *ranks, model.config().routed_experts).value();
    options.expert_first = shared->spread().first();
    options.expert_count = shared->spread().each;
  }
  kernels::Ops& ops = shared != nullptr ? *shared : *inner;
  model::KvOptions kv;
  kv.page_tokens = 32;
  const auto pages = static_cast<int32_t>(kPositionsMax / kv.page_tokens);
  const auto cache = model::KvCache::create(model.config(), kv, pages, 1, ops.memory()).value();
  const auto step = model::Step::create(model, *cache, ops, options).value();
  std::vector<int32_t> table(static_cast<size_t>(pages));
  for (int32_t page = 0; page < pages; ++page) table[static_cast<size_t>(page)] = page;
  const int64_t floor = replay == model::DecoderReplay::kOff
                            ? 0
                            : model::decoder_floor(replay, model.config().window, 0, work.prompt);
  std::vector<std::vector<float>> logits;
  for (const Chunk& chunk : work.chunks) {
    if (chunk.end == 0 && ranks == nullptr) continue;
    model::SequencePlan plan;
    plan.kind = chunk.decode ? model::RowKind::kDecode : model::RowKind::kPrefill;
    plan.first_position = chunk.begin;
    const auto begin = static_cast<size_t>(chunk.begin);
    plan.tokens = std::span(work.tokens).subspan(begin, static_cast<size_t>(chunk.end) - begin);
    const size_t kept = std::min<size_t>(begin, 3);
    plan.look_back = std::span(work.tokens).subspan(begin - kept, kept);
    plan.page_table = table;
    plan.tail_begin = floor;
    plan.tail_floor = floor;
    plan.logits_begin = std::max<int64_t>(0, floor - chunk.begin);
    const std::span<const model::SequencePlan> plans(&plan, chunk.end > 0 ? 1 : 0);
    const auto result = step->run(plans);
    if (!result) {
      ADD_FAILURE() << result.error().message;
      return logits;
    }
    for (int64_t row = 0; row < result->logits.rows; ++row) {
      const float* from = result->logits.row(row);
      logits.emplace_back(from, from + result->logits.cols);
    }
  }
  return logits;
}

void expect_bits_of_one_rank(const model::Model& model, const std::string& name,
                             const std::vector<Work>& works, model::DecoderReplay replay) {
  cluster::LocalRanks group(static_cast<int32_t>(works.size()));
  std::vector<std::vector<std::vector<float>>> together(works.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < works.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto self = group.join(static_cast<int32_t>(rank));
        together[rank] = logits_of(model, name, works[rank], replay, self.get());
      });
    }
  }
  for (size_t rank = 0; rank < works.size(); ++rank) {
    const auto alone = logits_of(model, name, works[rank], replay, nullptr);
    ASSERT_EQ(together[rank].size(), alone.size()) << name << " rank " << rank;
    for (size_t row = 0; row < alone.size(); ++row) {
      ASSERT_EQ(together[rank][row], alone[row]) << name << " rank " << rank << " row " << row;
    }
  }
}

// The same number of steps each, of other rows.
std::vector<Work> two_ranks(const model::Config& config) {
  std::vector<Work> works(2);
  works[0] = {.tokens = random_tokens(config, 103, 1),
              .prompt = 100,
              .chunks = {{0, 64}, {64, 100}, {100, 101, true}, {}, {101, 102, true}}};
  works[1] = {.tokens = random_tokens(config, 40, 2),
              .prompt = 37,
              .chunks = {{0, 5}, {}, {5, 37}, {37, 38, true}, {38, 39, true}}};
  return works;
}

TEST(ExpertParallel, TwoRanksHaveTheBitsOfOne) {
  for (const char* golden : {"g1-micro-text", "g2-micro-full"}) {
    const auto model = golden_model(golden);
    for (const std::string& name : ops_names()) {
      if (name == "cuda") continue;  // micro experts are not folded
      for (const auto replay :
           {model::DecoderReplay::kOff, model::DecoderReplay::kWindowAndGlobal}) {
        expect_bits_of_one_rank(*model, name, two_ranks(model->config()), replay);
      }
    }
  }
}

TEST(ExpertParallel, AsManyRanksAsExpertsAllow) {
  const auto model = golden_model("g1-micro-text");
  const int32_t experts = model->config().routed_experts;
  const int32_t ranks = experts % 4 == 0 ? 4 : 2;
  std::vector<Work> works(static_cast<size_t>(ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    works[static_cast<size_t>(rank)] = {
        .tokens = random_tokens(model->config(), 50, static_cast<uint32_t>(rank + 3)),
        .prompt = 48,
        .chunks = {{0, 10 + 7 * rank}, {10 + 7 * rank, 48}, {48, 49, true}}};
  }
  expect_bits_of_one_rank(*model, ops_names().back() == "cuda" ? "plain" : ops_names().back(),
                          works, model::DecoderReplay::kOff);
}

TEST(ExpertParallel, ARankThatLeavesIsTold) {
  const auto model = golden_model("g1-micro-text");
  cluster::LocalRanks group(2);
  Work work = two_ranks(model->config())[0];
  ThreadPool pool(1);
  const auto run = [&](int32_t rank, int steps) -> Result<void> {
    const auto self = group.join(rank);
    ThreadPool own(1);
    const auto inner = make_ops("plain", own);
    const auto ops =
        TRY(cluster::ExpertParallelOps::create(*inner, *self, model->config().routed_experts));
    const auto cache = TRY(model::KvCache::create(model->config(), {}, 8, 1, ops->memory()));
    const auto step = TRY(model::Step::create(*model, *cache, *ops,
                                              {.rows_max = 16,
                                               .sequences_max = 1,
                                               .positions_max = kPositionsMax,
                                               .expert_first = ops->spread().first(),
                                               .expert_count = ops->spread().each}));
    std::vector<int32_t> table = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int i = 0; i < steps; ++i) {
      model::SequencePlan plan;
      plan.first_position = i;
      plan.tokens = std::span(work.tokens).subspan(static_cast<size_t>(i), 1);
      plan.look_back = std::span(work.tokens).subspan(0, static_cast<size_t>(std::min(i, 3)));
      plan.page_table = table;
      TRY(step->run({&plan, 1}));
    }
    return {};
  };
  Result<void> short_one = Error{ErrorCode::kIo, "never ran"};
  std::jthread other([&] { short_one = run(1, 1); });
  const Result<void> long_one = run(0, 3);
  other.join();
  EXPECT_TRUE(short_one);
  ASSERT_FALSE(long_one);
  EXPECT_NE(long_one.error().message.find("another rank of the group has ended"), std::string::npos)
      << long_one.error().message;
}

}  // namespace
}  // namespace galley::testing
