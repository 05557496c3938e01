// The order in which a product's blocks of threads take tiles and tokens: each pair once.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/grouped_product.h"

namespace galley::kernels::cuda {
namespace {

TEST(ProductItem, EveryTileMeetsEveryBlockOnce) {
  for (const int32_t panel : {1, 2, 10, 16}) {
    for (const int32_t tiles : {1, 4, 27, 40}) {
      for (const int32_t blocks : {1, 2, 9, 10, 11, 16, 17, 33, 86}) {
        std::vector<int32_t> met(static_cast<size_t>(tiles * blocks), 0);
        for (int32_t item = 0; item < tiles * blocks; ++item) {
          const ProductItem at = product_item(item, tiles, blocks, panel);
          ASSERT_TRUE(at.tile >= 0 && at.tile < tiles && at.block >= 0 && at.block < blocks);
          ++met[static_cast<size_t>(at.tile * blocks + at.block)];
        }
        EXPECT_TRUE(std::all_of(met.begin(), met.end(), [](int32_t count) { return count == 1; }))
            << panel << " " << tiles << " " << blocks;
      }
    }
  }
}

TEST(ProductItem, WithoutPanelsTilesComeFirst) {
  for (int32_t item = 0; item < 21; ++item) {
    const ProductItem at = product_item(item, 7, 3, 1);
    EXPECT_EQ(at.tile, item % 7);
    EXPECT_EQ(at.block, item / 7);
  }
}

}  // namespace
}  // namespace galley::kernels::cuda
