// The best tokens of a row, and the rank of one that is given: naively, in double.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "oracle.h"

namespace ascend_sample::cpu::testing {
namespace {

/// How far a number may be off: by the sum of exponentials in float32, and by its own rounding.
double off(double number) { return 2e-6 + std::fabs(number) * 0x1p-23; }

/// Logarithms of probabilities: (logit - maximum) / divisor in double, less the logarithm of the
/// sum of what a draw weighs. Entries of +inf share the mass; what has no weight stays -inf.
std::vector<double> normalised(const Row& row, double divisor) {
  const double largest_weighed = *std::max_element(row.logits.begin(), row.logits.end());
  double sum = 0;
  for (const double logit : row.logits) {
    sum += std::exp(logit == largest_weighed ? 0.0 : logit - largest_weighed);
  }
  const double maximum = *std::max_element(row.order.begin(), row.order.end());
  std::vector<double> numbers;
  for (const double logit : row.order) {
    const double difference = logit == maximum ? 0.0 : logit - maximum;
    const bool has_none = std::isinf(logit) && logit < 0;
    numbers.push_back(has_none ? logit : difference / divisor - std::log(sum));
  }
  return numbers;
}

}  // namespace

RankingOracle::RankingOracle(const Row& row, const RankingCall& call)
    : scenario_(std::string("l:") + (row.is_divided ? "t" : "") +
                (call.given.has_value() ? "+" : "") + (call.is_normalised ? "" : "raw")) {
  std::vector<double> all = normalised(row, call.divisor(0));
  for (size_t id = 0; id < all.size() && !call.is_normalised; ++id) {
    all[id] = row.order[id] / call.divisor(0);
  }
  std::vector<int64_t> order(all.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&row](int64_t one, int64_t other) {
    return row.order[static_cast<size_t>(one)] > row.order[static_cast<size_t>(other)];
  });
  order.resize(static_cast<size_t>(call.count));
  if (call.given.has_value()) {
    const int64_t id = *call.given->ids;
    order.insert(order.begin(), id);
    const double number = all[static_cast<size_t>(id)];
    for (const double other : all) {
      const bool is_near =
          call.is_normalised && other < number && number - other <= 4 * off(number);
      least_rank_ += other >= number ? 1 : 0;
      most_rank_ += other >= number || is_near ? 1 : 0;
    }
    // What float32 cannot hold is -inf, and so is all that is less.
    most_rank_ = number < -3.4e38 ? static_cast<int64_t>(all.size()) : most_rank_;
  }
  ids_ = order;
  for (const int64_t id : ids_) {
    numbers_.push_back(all[static_cast<size_t>(id)]);
  }
}

std::string RankingOracle::judge(const std::vector<float>& found_numbers,
                                 const std::vector<int64_t>& found_ids, int64_t rank) const {
  for (size_t place = 0; place < ids_.size(); ++place) {
    const std::string at = " at place " + std::to_string(place);
    if (found_ids[place] != ids_[place]) {
      return "id " + std::to_string(found_ids[place]) + at + ", not " + std::to_string(ids_[place]);
    }
    const double expected = numbers_[place];
    const double found = found_numbers[place];
    const bool is_right = std::isinf(found) || std::isinf(expected)
                              ? found == static_cast<double>(static_cast<float>(expected))
                              : std::fabs(found - expected) <= off(expected);
    if (!is_right) {
      return "number " + std::to_string(found) + at + ", not " + std::to_string(expected);
    }
  }
  if (rank < least_rank_ || rank > most_rank_) {
    return "rank " + std::to_string(rank) + ", not " + std::to_string(least_rank_) + " to " +
           std::to_string(most_rank_);
  }
  return "";
}

}  // namespace ascend_sample::cpu::testing
