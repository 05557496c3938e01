#include "tools/bench_case.h"

#include <algorithm>
#include <vector>

namespace galley::tools {
double median_seconds(int warm_ups, int samples, const std::function<double()>& measure) {
  for (int i = 0; i < warm_ups; ++i) measure();
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(measure());
  std::nth_element(seconds.begin(), seconds.begin() + samples / 2, seconds.end());
  return seconds[samples / 2];
}

}  // namespace galley::tools
