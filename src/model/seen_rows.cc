#include "model/seen_rows.h"

namespace galley::model {

void* SeenRows::bytes(const void* from, int64_t count) {
  std::vector<std::byte>& copy = copies_.emplace_back(static_cast<size_t>(count));
  memory_.read(copy.data(), from, count);
  return copy.data();
}

std::span<const kernels::IndexRow> SeenRows::index_rows(std::span<const kernels::IndexRow> rows,
                                                        const kernels::IndexShape& shape) {
  if (memory_.is_host()) return rows;
  const auto see = [this](auto*& data, int64_t count) {
    using T = std::remove_reference_t<decltype(*data)>;
    if (data == nullptr) return;
    data = static_cast<T*>(bytes(data, count * static_cast<int64_t>(sizeof(T))));
  };
  index_rows_.assign(rows.begin(), rows.end());
  for (kernels::IndexRow& row : index_rows_) {
    see(row.pool, shape.pool_blocks);
    see(row.pool_count, 1);
    see(row.selected, shape.top_k);
    see(row.selected_count, 1);
    see(row.built_pool, shape.pool_blocks);
    see(row.built_pool_count, 1);
    see(row.scores, row.visible);
  }
  return index_rows_;
}

void SeenRows::put_back(const kernels::IndexRow& seen, const kernels::IndexRow& row,
                        const kernels::IndexShape& shape) {
  if (memory_.is_host()) return;
  const auto put = [this](auto* to, const auto* from, int64_t count) {
    if (to != nullptr) memory_.write(to, from, count * static_cast<int64_t>(sizeof(*to)));
  };
  put(row.selected, seen.selected, shape.top_k);
  put(row.selected_count, seen.selected_count, 1);
  put(row.built_pool, seen.built_pool, shape.pool_blocks);
  put(row.built_pool_count, seen.built_pool_count, 1);
}

}  // namespace galley::model
