// What the last calls of a step of one narrow row left to do, as long as it may be part of one
// launch with the next call (lone_row.h): a site; a site and products of its x, with window keys
// of one of them; a site and the router's choice; attention and its first projection. CudaOps
// asks before each call whether it goes on from there, and launches one by one what did not.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/held_copies.h"
#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/memory_span.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/route.h"

namespace galley::kernels::cuda {

class HeldLone {
 public:
  struct Held {
    LoneSite site;
    ProductSet products;  // the first may be a latent
    WindowKeys keys;
    std::optional<LoneExperts> choice;  // without its site and experts
    void* workspace = nullptr;          // of the router
    // Instead of all that: attention, then perhaps its first projection.
    std::optional<LoneAttention> attention;

    // One after the other: append(function, arguments...) of functions that begin with a stream.
    template <class Append>
    void apart(const Append& append) const {
      if (attention) {
        append(attend, *attention);
        if (attention->inner.x.rows == 0) return;
        ProductSet set;
        set.products[set.count++] = attention->inner;
        return append(few_rows, set);
      }
      site.apart(append, InputTiles{});
      if (products.count > 0) append(few_rows, products);
      if (keys.x.rows > 0) {
        append(window_keys, keys.x, keys.norm_weight, keys.eps, keys.angles, keys.records);
      }
      if (!choice) return;
      append(route, Rows<const Bf16>(site.x), choice->gate, choice->gate_rows, choice->bias_of_row,
             choice->options, choice->experts, choice->weights, static_cast<float*>(nullptr),
             workspace);
    }

    static void few_rows(Stream stream, const ProductSet& set) { launch_few_rows(set, stream); }
    static void attend(Stream stream, const LoneAttention& a) {
      launch_attention(a.q, a.turns, a.sink, a.shape, a.angles, a.rows, a.o, stream);
    }
  };

  bool empty() const { return !held_; }
  std::optional<Held> take() { return std::exchange(held_, {}); }

  bool hold(const LoneSite& site) {
    if (!lone_site_supports(site)) return false;
    held_.emplace().site = site;
    return true;
  }
  // All products of one call, which quantises in place what it quantises.
  bool hold(Rows<const Bf16> x, std::span<const Product> products) {
    if (!awaits(x) || std::ssize(products) > 1 + LoneQuery::kOthersMax) return false;
    ProductSet set;
    for (const Product& product : products) {
      const RowProduct one = RowProduct::of(x, product);
      if (product.weight.folded || !takes_few_rows(one)) return false;
      set.products[set.count++] = one;
    }
    held_->products = set;
    return set.count > 0;
  }
  bool hold(const WindowKeys& keys) {
    const bool goes_on = held_ && held_->products.count > 1 && held_->keys.x.rows == 0 &&
                         held_->products.products[1].y.data == keys.x.data && rides_along(keys);
    if (goes_on) held_->keys = keys;
    return goes_on;
  }
  // The queries end it, if all of it is one launch.
  std::optional<LoneQuery> take_query(Rows<const Bf16> latent, const Bf16* norm_weight, float eps,
                                      std::span<const Product> products) {
    if (!held_ || held_->products.count == 0 || std::ssize(products) > LoneQuery::kQueriesMax ||
        latent.rows != 1 || held_->products.products[0].y.data != latent.data) {
      return {};
    }
    LoneQuery query;
    query.site = held_->site;
    query.latent = held_->products.products[0];
    query.latent_norm = norm_weight;
    query.latent_eps = eps;
    for (int32_t i = 1; i < held_->products.count; ++i) {
      query.others[query.other_count++] = held_->products.products[i];
    }
    for (const Product& product : products) {
      if (product.weight.folded) return {};
      query.queries[query.query_count++] = RowProduct::of(latent, product);
    }
    query.keys = held_->keys;
    if (!lone_query_supports(query)) return {};
    held_.reset();
    return query;
  }

  // The router's choice.
  bool hold(Rows<const Bf16> x, const WeightView& gate, const float* const* bias_of_row,
            const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
            void* workspace) {
    if (!awaits(x) || gate.out > kLoneExpertsMax) return false;
    held_->choice = LoneExperts{.gate = static_cast<const Bf16*>(gate.data),
                                .gate_rows = gate.out,
                                .bias_of_row = bias_of_row,
                                .options = options,
                                .experts = experts,
                                .weights = weights};
    held_->workspace = workspace;
    return true;
  }
  std::optional<LoneExperts> take_experts(const FewExperts& few, WeightFormat format) {
    if (!held_ || !held_->choice || few.x.data != held_->site.x.data ||
        few.experts.data != held_->choice->experts.data) {
      return {};
    }
    LoneExperts experts = *held_->choice;
    experts.site = held_->site;
    experts.few = few;
    experts.format = format;
    if (!lone_experts_support(experts)) return {};
    held_.reset();
    return experts;
  }

  // Of a narrow row. `written`: by calls of this step.
  bool hold(const LoneAttention& attention, const AttentionRow& row, const WrittenSpans& written) {
    if (attention.q.rows != 1 ||
        !narrow_attention_supports(attention.q, attention.shape, attention.o)) {
      return false;
    }
    held_.emplace().attention = attention;
    const int64_t record_bytes = attention.shape.head_dim + attention.shape.head_dim / 32;
    held_->attention->ring_early =
        !written.meet(MemorySpan::of(row.ring, row.ring_slots * record_bytes));
    return true;
  }
  bool holds_attention() const { return held_ && held_->attention; }
  // Whether copies may be held behind attention, and nothing else.
  bool lets_copy() const { return holds_attention() && held_->attention->inner.x.rows == 0; }
  // The first projection; copies that wait for attention touch nothing of it.
  bool hold(const RowProduct& inner, const HeldCopies& copies) {
    if (!lets_copy() || inner.x.data != held_->attention->o.data || inner.x.rows != 1 ||
        copies.meet(MemorySpan::of(inner.x), MemorySpan::of(inner.y))) {
      return false;
    }
    held_->attention->inner = inner;
    return true;
  }
  // The second one ends it.
  std::optional<LoneAttention> take_attention(Rows<const Bf16> x, std::span<const Product> products,
                                              HeldCopies& copies) {
    if (!holds_attention() || held_->attention->inner.y.data != x.data || x.rows != 1 ||
        products.size() != 1 || products[0].weight.folded ||
        copies.meet({}, MemorySpan::of(products[0].y))) {
      return {};
    }
    LoneAttention attention = *held_->attention;
    attention.outer = RowProduct::of(x, products[0]);
    if (!lone_attention_supports(attention)) return {};
    const HeldCopies::Staged staged = copies.take();
    attention.copies = staged.list;
    attention.copy_count = staged.count;
    held_.reset();
    return attention;
  }

 private:
  // Whether a site alone is held, and it makes x.
  bool awaits(Rows<const Bf16> x) const {
    return held_ && !held_->attention && held_->products.count == 0 && !held_->choice &&
           held_->site.x.data == x.data && x.rows == 1 && x.cols == held_->site.x.cols;
  }

  std::optional<Held> held_;
};

}  // namespace galley::kernels::cuda
