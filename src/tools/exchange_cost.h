// What dispatch and combine of one layer's experts would cost a rank of an expert-parallel group,
// by bytes over rates: nothing here is measured.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace galley::tools {

struct ExchangeRates {
  int32_t ranks = 64;
  int32_t ranks_a_node = 8;
  double nvlink_bytes_per_s = 394e9;  // peer copies between two H200
  double rdma_bytes_per_s = 50e9;     // a 400 Gb/s card each; DeepEP reaches 43 to 58 GB/s
};

struct ExchangeCost {
  double bytes = 0;    // that leave the rank: dispatch in fp8 with its scales, combine in bf16
  double seconds = 0;  // nothing overlapped, no latency counted
};

// Over all layers, for a step of `rows` rows of this rank with every choice spread evenly.
ExchangeCost exchange_cost(const model::Config& config, int64_t rows, const ExchangeRates& rates);

}  // namespace galley::tools
