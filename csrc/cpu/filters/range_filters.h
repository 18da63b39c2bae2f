// The filters of a row that keep a range of its values: what each asks of the row, and its formula.
// docs/filters.md, "Ranges of values", has their definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "cpu/calls.h"
#include "cpu/rows/kept.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/temperature.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What formulas ask of a row. Its values weigh exp(y), where y = (value - maximum) / temperature.
struct RowFacts {
  Scale scale;
  double log_sum = 0;    // of the weights
  double mean = 0;       // of y, by weight: the entropy is log_sum - mean
  double deviation = 0;  // of the values, each counted once

  /// The value that has a probability.
  double value_of(double probability) const {
    return scale.value_at(std::log(probability) + log_sum);
  }
};

/// A filter's bound in a row: which values are below it. `best` is the largest value that typical
/// sampling has left.
struct RangeFormula {
  Scanned needs;
  double (*bound)(double number, const RowFacts& row, float best);
};

/// By RangeFilter. Each rises with all of the facts, or falls with all: where these are known
/// within bounds, so is what it makes of them, by their ends.
inline constexpr RangeFormula kRangeFormulas[] = {
    // kTypicalP keeps what is nearest to the mean: a search finds its ends.
    {{.mean = true, .sum = true}, nullptr},
    // kEpsilonCutoff: p >= epsilon.
    {{.sum = true},
     [](double epsilon, const RowFacts& row, float) { return row.value_of(epsilon); }},
    // kEtaCutoff: p >= min(eta, sqrt(eta) exp(-entropy)).
    {{.mean = true, .sum = true},
     [](double eta, const RowFacts& row, float) {
       const double log_eta = std::log(eta);
       const double entropy = row.log_sum - row.mean;
       return row.scale.value_at(std::min(log_eta, 0.5 * log_eta - entropy) + row.log_sum);
     }},
    // kTopA: p >= a * the largest p squared, which is 1 / sum.
    {{.sum = true},
     [](double a, const RowFacts& row, float) {
       return row.scale.value_at(std::log(a) - row.log_sum);
     }},
    // kTopNSigma: values within n deviations of the largest.
    {{.deviation = true},
     [](double n, const RowFacts& row, float) {
       return double{row.scale.maximum} - n * row.deviation;
     }},
    // kMinPBeforeExclusion: p >= min_p * the largest p.
    {{},
     [](double min_p, const RowFacts& row, float best) {
       return Scale{best, row.scale.temperature}.value_at(std::log(min_p));
     }},
    // kExclusionThreshold: what has p >= threshold is excluded, but for the least of it.
    {{.sum = true},
     [](double threshold, const RowFacts& row, float) { return row.value_of(threshold); }},
};
static_assert(std::size(kRangeFormulas) == kRangeFilters);

/// The filters of one row that are on, and its temperature.
class RangeFilters {
 public:
  /// None where all are off, or nothing is drawn.
  static std::optional<RangeFilters> of(const std::optional<Ranges>& ranges, int64_t index,
                                        float temperature) {
    if (!ranges.has_value() || !(temperature > 0.0F)) {
      return std::nullopt;
    }
    RangeFilters filters(*ranges, index, temperature);
    bool is_any_on = false;
    for (size_t number = 0; number < kRangeFilters; ++number) {
      if (filters.is_on(static_cast<RangeFilter>(number))) {
        filters.needs_ |= kRangeFormulas[number].needs;
        is_any_on = true;
      }
    }
    return is_any_on ? std::optional(filters) : std::nullopt;
  }

  double operator[](RangeFilter filter) const {
    return double{ranges_.numbers.row(filter)[index_]};
  }
  bool is_on(RangeFilter filter) const {
    return filter == kTypicalP ? (*this)[filter] < 1.0 : (*this)[filter] > 0.0;
  }
  /// How much typical sampling keeps: always more than nothing.
  double typical_p() const { return std::max((*this)[kTypicalP], 0x1p-126); }
  float temperature() const { return temperature_; }
  /// What they ask of the row.
  const Scanned& needs() const { return needs_; }

  double bound_of(RangeFilter filter, const RowFacts& row, float best) const {
    return kRangeFormulas[filter].bound((*this)[filter], row, best);
  }

  /// The range that they keep of a row. The best of what typical sampling keeps always stays, and
  /// so do all equals of a value that stays. `search` knows the row: what typical sampling keeps of
  /// it, the first value from a filter's bound on, and the least value between two. None where it
  /// does not know one of these.
  template <typename Search>
  std::optional<Kept> range_of(float maximum, Search& search) const {
    Kept range{.most = maximum};
    if (is_on(kTypicalP)) {
      const std::optional<Kept> typical = search.typical();
      if (!typical.has_value()) {
        return std::nullopt;
      }
      range = *typical;
    }
    bool is_known = true;
    for (size_t number = kTypicalP + 1; number < kExclusionThreshold; ++number) {
      const auto filter = static_cast<RangeFilter>(number);
      if (is_on(filter)) {
        const std::optional<float> first = search.first_from(filter, range.most);
        is_known &= first.has_value();
        range.value = std::max(range.value, std::min(range.most, first.value_or(-kInfinity)));
      }
    }
    if (!is_known) {
      return std::nullopt;
    }
    if (is_on(kExclusionThreshold)) {
      const std::optional<float> enough = search.first_from(kExclusionThreshold, range.most);
      if (!enough.has_value()) {
        return std::nullopt;
      }
      range.most = search.least_between(std::max(*enough, range.value), range.most);
    }
    return range;
  }

 private:
  RangeFilters(const Ranges& ranges, int64_t index, float temperature)
      : ranges_(ranges), index_(index), temperature_(temperature) {}

  Ranges ranges_;
  int64_t index_;
  float temperature_;
  Scanned needs_;
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
