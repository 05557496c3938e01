#include "tools/bench_case.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace galley::tools {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double rounded(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return std::strtod(text, nullptr);
}

double median_seconds(int warm_ups, int samples, const std::function<double()>& measure) {
  for (int i = 0; i < warm_ups; ++i) measure();
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(measure());
  return median(std::move(seconds));
}

}  // namespace galley::tools
