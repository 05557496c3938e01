// Step 1 of the golden README for a model: what is derived from its tokenizer and
// config before any arithmetic, equal to the integer.
#include <fmt/format.h>

#include "verify/context.h"

namespace galley::verify {

namespace {

int64_t count_different(std::span<const int64_t> measured, const Table<int64_t>& expected,
                        size_t begin) {
  int64_t different = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    different += measured[i] != expected.values[begin + i];
  }
  return different;
}

// One table [Engram layers, columns] of `part(index)`.
template <class Part>
Result<void> check_table(Context& context, const char* name, int64_t columns, Part part) {
  const model::EngramHash& hash = context.model.engram_hash();
  const std::string tensor = fmt::format("engram.{}", name);
  const auto expected =
      TRY(context.golden.expected.integers(tensor, {hash.layer_count(), columns}));
  if (!expected) {
    context.report.absent(kConstants, tensor);
    return {};
  }
  int64_t different = 0;
  for (int32_t index = 0; index < hash.layer_count(); ++index) {
    different += count_different(part(index), *expected, static_cast<size_t>(index * columns));
  }
  context.report.judge_equal(kConstants, tensor, different,
                             static_cast<int64_t>(expected->values.size()));
  return {};
}

// Rows [T, Engram layers, columns] as hashed from a case's ids.
Result<void> check_rows(Context& context, const GoldenFile& file, const std::string& tensor,
                        const GoldenCase& one) {
  const model::EngramHash& hash = context.model.engram_hash();
  const auto length = static_cast<int64_t>(one.tokens.size());
  const int64_t columns = hash.columns();
  const auto expected = TRY(file.integers(tensor, {length, hash.layer_count(), columns}));
  if (!expected) {
    context.report.absent(kConstants, tensor);
    return {};
  }
  std::vector<int64_t> rows(expected->values.size());
  const Prompt prompt = prompt_of(one, nullptr);
  for (int32_t index = 0; index < hash.layer_count(); ++index) {
    hash.rows(index, {.tokens = prompt.tokens, .dead = prompt.in_image}, 0, length,
              {rows.data() + index * columns, length, columns, hash.layer_count() * columns});
  }
  context.report.judge_equal(kConstants, tensor, count_different(rows, *expected, 0),
                             static_cast<int64_t>(rows.size()));
  return {};
}

}  // namespace

Result<void> check_constants(Context& context) {
  const model::EngramHash& hash = context.model.engram_hash();
  const GoldenFile& expected = context.golden.expected;
  if (hash.layer_count() == 0) {
    context.report.absent(kConstants, "compressed ids and Engram", "the model has no Engram layer");
    return {};
  }
  const auto classes = TRY(expected.integers("compressed_ids", {context.config().vocab_size}));
  if (classes) {
    const std::vector<int64_t> derived(hash.class_of_token().begin(), hash.class_of_token().end());
    context.report.judge_equal(kConstants, "compressed_ids", count_different(derived, *classes, 0),
                               static_cast<int64_t>(derived.size()));
  } else {
    context.report.absent(kConstants, "compressed_ids");
  }
  const int64_t columns = hash.columns();
  TRY(check_table(context, "primes", columns, [&](int32_t i) { return hash.primes(i); }));
  TRY(check_table(context, "offsets", columns, [&](int32_t i) { return hash.offsets(i); }));
  TRY(check_table(context, "multipliers", hash.look_back() + 1,
                  [&](int32_t i) { return hash.multipliers(i); }));
  for (const int64_t length : context.golden.trace_lengths) {
    if (const GoldenCase* one = context.golden.text_case(length)) {
      TRY(check_rows(context, *context.golden.trace, fmt::format("trace{}.engram_rows", length),
                     *one));
    }
  }
  for (const GoldenCase& one : context.golden.cases) {
    if (one.is_image()) TRY(check_rows(context, expected, one.name + ".engram_rows", one));
  }
  return {};
}

}  // namespace galley::verify
