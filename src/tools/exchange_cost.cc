#include "tools/exchange_cost.h"

namespace galley::tools {

ExchangeCost exchange_cost(const model::Config& config, int64_t rows, const ExchangeRates& rates) {
  const double dispatch = config.hidden + config.hidden / 32.0;
  const double combine = 2.0 * config.hidden;
  const double all =
      static_cast<double>(rows) * config.experts_per_token * config.layers * (dispatch + combine);
  const double ranks = rates.ranks;
  const double near = (rates.ranks_a_node - 1) / ranks;  // of the others in the node
  const double far = (ranks - rates.ranks_a_node) / ranks;
  return {.bytes = all * (near + far),
          .seconds = all * (near / rates.nvlink_bytes_per_s + far / rates.rdma_bytes_per_s)};
}

}  // namespace galley::tools
