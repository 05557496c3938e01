// Random sequences come, share what is cached, publish, and leave, against a
// plain map: a found page always is the one published for that prefix, nothing a
// sequence holds is ever given away, parents outlive their children, no page is lost.
#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace galley::cache {
namespace {

constexpr int32_t kPageTokens = 4;

struct Holder {
  std::vector<int32_t> tokens;
  std::vector<PageId> pages;
};

class Prefixes {
 public:
  explicit Prefixes(int32_t pages) : cache(pages, kPageTokens) {}

  std::vector<PrefixKey> keys(const std::vector<int32_t>& tokens) {
    const std::string_view parts[] = {"ns"};
    std::vector<PrefixKey> out;
    PrefixKey parent = hasher.root(parts);
    for (size_t i = 0; i + kPageTokens <= tokens.size(); i += kPageTokens) {
      parent = hasher.next(parent, std::span(tokens).subspan(i, kPageTokens));
      out.push_back(parent);
    }
    return out;
  }

  std::vector<PageId> find(const std::vector<PrefixKey>& chain) const {
    std::vector<PageId> pages;
    for (const PrefixKey& key : chain) {
      const auto page = cache.find(key);
      if (!page) break;
      pages.push_back(*page);
    }
    return pages;
  }

  void release(const std::vector<PageId>& pages) {
    for (size_t i = pages.size(); i-- > 0;) cache.release(pages[i]);
  }

  PrefixCache cache;
  PrefixHasher hasher;
};

TEST(PrefixCache, FindsWhatWasPublishedUntilItIsEvicted) {
  Prefixes prefixes(3);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto chain = prefixes.keys(tokens);
  const PageId a = prefixes.cache.acquire().value();
  const PageId b = prefixes.cache.acquire().value();
  const std::span<const int32_t> all = tokens;
  EXPECT_TRUE(prefixes.cache.publish(a, chain[0], std::nullopt, 1, all.first(4), true));
  EXPECT_TRUE(prefixes.cache.publish(b, chain[1], a, 1, all.last(4), true));
  prefixes.release({a, b});
  EXPECT_EQ(prefixes.cache.available_count(), 3);
  EXPECT_EQ(prefixes.find(chain), (std::vector{a, b}));
  const PageId c = prefixes.cache.acquire().value();  // the free one
  EXPECT_EQ(prefixes.find(chain).size(), 2U);
  EXPECT_EQ(prefixes.cache.acquire().value(), b);  // the leaf first
  EXPECT_EQ(prefixes.find(chain), std::vector{a});
  EXPECT_EQ(prefixes.cache.explain(chain[1], a, 1, all.last(4)).absence, Absence::kEvicted);
  EXPECT_EQ(prefixes.cache.acquire().value(), a);
  EXPECT_FALSE(prefixes.cache.acquire().has_value());
  EXPECT_EQ(prefixes.cache.evictions(), 2);
  EXPECT_NE(c, a);
}

TEST(PrefixCache, SaysWhyAPrefixIsNotThere) {
  Prefixes prefixes(4);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto chain = prefixes.keys(tokens);
  const std::span<const int32_t> all = tokens;
  const PageId a = prefixes.cache.acquire().value();
  const PageId b = prefixes.cache.acquire().value();
  ASSERT_TRUE(prefixes.cache.publish(a, chain[0], std::nullopt, 1, all.first(4), true));
  ASSERT_TRUE(prefixes.cache.publish(b, chain[1], a, 1, all.last(4), true));
  const std::vector<int32_t> other = {5, 6, 9, 9};
  const PrefixKey wanted = prefixes.hasher.next(chain[0], other);
  const Explanation differs = prefixes.cache.explain(wanted, a, 1, other);
  EXPECT_EQ(differs.absence, Absence::kDiffers);
  EXPECT_EQ(differs.same_tokens, 2);
  // Another namespace's pages are no news.
  EXPECT_EQ(prefixes.cache.explain(wanted, std::nullopt, 2, other).absence, Absence::kUnknown);
  EXPECT_EQ(prefixes.cache.explain(wanted, b, 1, other).absence, Absence::kUnknown);
  // A second page for the same prefix stays private.
  const PageId c = prefixes.cache.acquire().value();
  EXPECT_FALSE(prefixes.cache.publish(c, chain[0], std::nullopt, 1, all.first(4), true));
  EXPECT_EQ(prefixes.find(chain), (std::vector{a, b}));
}

TEST(PrefixCache, RandomSequencesNeverSeeAWrongPage) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr int32_t kPages = 24;
    Prefixes prefixes(kPages);
    std::vector<Holder> holders;
    std::map<int32_t, std::vector<int32_t>> content;  // page -> the prefix it was filled with
    for (int step = 0; step < 20000; ++step) {
      if (random() % 2 == 0 && !holders.empty()) {
        const size_t index = random() % holders.size();
        prefixes.release(holders[index].pages);
        holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(index));
        continue;
      }
      Holder holder;
      const size_t length = kPageTokens * (1 + random() % 6);
      for (size_t i = 0; i < length; ++i) {
        holder.tokens.push_back(i % kPageTokens == 0 ? static_cast<int32_t>(random() % 3) : 0);
      }
      const auto chain = prefixes.keys(holder.tokens);
      holder.pages = prefixes.find(chain);
      const size_t found = holder.pages.size();
      for (size_t i = 0; i < found; ++i) {
        const std::vector<int32_t> prefix(
            holder.tokens.begin(),
            holder.tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * kPageTokens));
        ASSERT_EQ(content[holder.pages[i].index], prefix);
        prefixes.cache.hold(holder.pages[i]);
      }
      std::optional<PageId> parent;
      if (found > 0) parent = holder.pages.back();
      for (size_t i = found; i < chain.size(); ++i) {
        const auto page = prefixes.cache.acquire();
        if (!page) break;
        for (const Holder& other : holders) {
          ASSERT_EQ(std::ranges::count(other.pages, *page), 0) << "given away while held";
        }
        holder.pages.push_back(*page);
        const auto begin = holder.tokens.begin() + static_cast<std::ptrdiff_t>(i * kPageTokens);
        content[page->index] = {holder.tokens.begin(), begin + kPageTokens};
        ASSERT_TRUE(prefixes.cache.publish(
            *page, chain[i], parent, 1,
            std::span(holder.tokens).subspan(i * kPageTokens, kPageTokens), true));
        parent = *page;
      }
      holders.push_back(std::move(holder));
      if (holders.size() > 8) {
        prefixes.release(holders.front().pages);
        holders.erase(holders.begin());
      }
    }
    for (const Holder& holder : holders) prefixes.release(holder.pages);
    EXPECT_EQ(prefixes.cache.available_count(), kPages);
    EXPECT_GT(prefixes.cache.evictions(), 100);
    // Everything can be had again.
    for (int32_t i = 0; i < kPages; ++i) ASSERT_TRUE(prefixes.cache.acquire().has_value());
    EXPECT_EQ(prefixes.cache.indexed_count(), 0);
  }
}

TEST(PrefixCache, WhatNobodyUsedForTooLongExpires) {
  PrefixHasher hasher;
  PrefixCache cache(8, kPageTokens, 60);
  std::vector<int32_t> left;
  cache.on_leave([&](PageId page) { left.push_back(page.index); });
  const std::string_view parts[] = {"ns"};
  const PrefixKey root = hasher.root(parts);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto page_of = [&](size_t i) { return std::span(tokens).subspan(4 * i, 4); };
  const PrefixKey keys[] = {hasher.next(root, page_of(0)),
                            hasher.next(hasher.next(root, page_of(0)), page_of(1))};
  cache.set_time(1000);
  const PageId first = cache.acquire().value();
  const PageId second = cache.acquire().value();
  ASSERT_TRUE(cache.publish(first, keys[0], std::nullopt, 1, page_of(0), true));
  ASSERT_TRUE(cache.publish(second, keys[1], first, 1, page_of(1), true));
  cache.set_time(2000);
  EXPECT_TRUE(cache.find(keys[1]).has_value()) << "held pages are in use";
  cache.release(second);
  cache.release(first);
  cache.set_time(2030);
  cache.hold(first);  // used again, without what follows
  cache.release(first);
  cache.set_time(2059);
  EXPECT_TRUE(cache.find(keys[1]).has_value());
  cache.set_time(2060);
  EXPECT_FALSE(cache.find(keys[1]).has_value());
  EXPECT_EQ(cache.explain(keys[1], first, 1, page_of(1)).absence, Absence::kExpired);
  EXPECT_TRUE(cache.find(keys[0]).has_value());
  cache.set_time(2090);
  EXPECT_FALSE(cache.find(keys[0]).has_value());
  EXPECT_EQ(cache.expiries(), 2);
  EXPECT_EQ(cache.evictions(), 0);
  EXPECT_EQ(cache.free_count(), 8);
  EXPECT_EQ(left, (std::vector<int32_t>{second.index, first.index}));
}

}  // namespace
}  // namespace galley::cache
