// The pass over a row whose filters keep a range of its values: maxima, cheap exponentials, and the
// moments of its values, as far as they are asked for.
#pragma once

#include "cpu/rows/deviation.h"
#include "cpu/rows/range_filters.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/status.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
class RangeScan {
 public:
  /// Of sums of cheap exponentials: what float32 may round of them.
  static constexpr size_t kFlushed = 16;  // chunks that are added up in it
  static constexpr double kRounding = (kFlushed + kChunkLines + 16) * 0x1p-24;

  RangeScan(const Row<Type>& row, const RangeFilters& filters, const Groups& groups)
      : row_(row),
        groups_(groups),
        temperature_(filters.temperature()),
        inverse_(1.0F / temperature_),
        has_mean_(filters.is_typical() || filters.is_on(kEtaCutoff)),
        has_sum_(filters.weighs()),
        has_deviation_(filters.is_on(kTopNSigma)) {}

  /// Fills the maxima of groups. Returns whether what was found of the row may be used.
  bool scan() {
    if (has_mean_) {
      return temperature_ == 1.0F ? scan_weights<true, true>() : scan_weights<true, false>();
    }
    if (has_sum_) {
      return temperature_ == 1.0F ? scan_weights<false, true>() : scan_weights<false, false>();
    }
    StatusOf<Type> seen;
    Floats largest = splat(-kInfinity);
    for (size_t index = 0; index < row_.chunks(); ++index) {
      largest =
          larger(largest, scan_chunk<Type>(row_.chunk(index), groups_, maxima_of(index), seen));
      add_moments(index, largest);
    }
    maximum_ = largest_lane(largest);
    return seen.status() == RowStatus::kOk && knows_deviation();
  }

  float maximum() const { return maximum_; }
  bool has_mean() const { return has_mean_; }
  bool has_sum() const { return has_sum_; }

  /// A logit divided by the temperature, nearly.
  ASCEND_SAMPLE_INLINE Floats quotient(const Floats& values) const {
    return temperature_ == 1.0F ? values : values * splat(inverse_);
  }

  /// The largest quotient, and the sum of their approximate exponentials.
  const ApproximateSum& approximate() const { return approximate_; }
  /// The sum of their products with the quotients.
  double product() const { return product_; }
  double deviation() const { return moments_.deviation(); }

 private:
  /// Weighs all chunks: in a hurry, but for the last one, if the mean is asked for, whose products
  /// tell of what is no number.
  template <bool kHasMean, bool kIsWhole>
  bool scan_weights() {
    return (kHasMean && scan_chunks<kHasMean, kIsWhole, true>()) ||
           scan_chunks<kHasMean, kIsWhole, false>();
  }

  template <bool kHasMean, bool kIsWhole, bool kIsHasty>
  bool scan_chunks() {
    FloatStatus seen;
    Floats largest = splat(-kInfinity);
    Line sums{};
    Line products{};
    approximate_ = {};
    product_ = 0;
    moments_ = {};
    const auto flush = [&] {
      approximate_.sum += sum_lanes(sums.first) + sum_lanes(sums.second);
      product_ += sum_lanes(products.first) + sum_lanes(products.second);
      sums = Line{};
      products = Line{};
    };
    const size_t last = row_.chunks() - 1;
    for (size_t index = 0; index <= last; ++index) {
      if (index < last) {
        weigh_chunk<kHasMean, kIsWhole, kIsHasty>(index, seen, largest, sums, products);
      } else {  // it ends with -inf
        weigh_chunk<kHasMean, kIsWhole, false>(index, seen, largest, sums, products);
      }
      if (index % kFlushed == kFlushed - 1) {
        flush();
        if (kIsHasty && product_ != product_) {
          return false;
        }
      }
      if (has_deviation_) {
        add_moments(index, largest);
      }
    }
    flush();
    maximum_ = largest_lane(largest);
    approximate_.maximum = maximum_ / temperature_;
    return product_ == product_ && seen.status() == RowStatus::kOk &&
           is_within_range(approximate_) && knows_deviation();
  }

  /// Adds a chunk to sums and products. In a hurry, with nothing but these for what is no number.
  template <bool kHasMean, bool kIsWhole, bool kIsHasty>
  ASCEND_SAMPLE_INLINE void weigh_chunk(size_t index, FloatStatus& seen, Floats& largest,
                                        Line& sums, Line& products) {
    const auto* const chunk = row_.chunk(index);
    float* maxima = maxima_of(index);
    Line of_chunk{};
    Line products_of_chunk{};
    const auto add = [this](const Floats& values, Floats& most, Floats& sum, Floats& product) {
      most = larger(values, most);
      const Floats quotient = kIsWhole ? values : values * splat(inverse_);
      const Floats weight = approximate_exp(quotient);
      sum = sum + weight;
      if constexpr (kIsHasty) {
        product = fused(weight, quotient, product);
      } else if constexpr (kHasMean) {  // what weighs nothing may be -inf
        product = fused(weight, larger(quotient, splat(kLeastLogWeight)), product);
      }
    };
    for (size_t block = 0; block < kChunkLines; block += groups_.lines) {
      Line most{splat(-kInfinity), splat(-kInfinity)};
#pragma GCC unroll 4
      for (size_t line = 0; line < groups_.lines; ++line) {
        prefetch_ahead(chunk + (block + line) * kLine);
        const Line logits = Type::load_unordered(chunk + (block + line) * kLine);
        if constexpr (!kIsHasty) {
          seen.add_line(logits);
        }
        add(logits.first, most.first, of_chunk.first, products_of_chunk.first);
        add(logits.second, most.second, of_chunk.second, products_of_chunk.second);
      }
      seen.add_extremes(most);
      store(maxima, most.first);
      store(maxima + kLanes, most.second);
      maxima += kLine;
      largest = larger(largest, larger(most.first, most.second));
    }
    sums.first = sums.first + of_chunk.first;
    sums.second = sums.second + of_chunk.second;
    products.first = products.first + products_of_chunk.first;
    products.second = products.second + products_of_chunk.second;
  }

  float* maxima_of(size_t chunk) const {
    return groups_.maxima + chunk * groups_.blocks_in_chunk() * kLine;
  }

  /// Adds a chunk to the moments, which are those from near the mean of the first one.
  void add_moments(size_t index, const Floats& largest) {
    const auto* const chunk = row_.chunk(index);
    if (index == 0) {
      const float reference = largest_lane(largest);
      const Moments first = moments_of_chunk<Type, false>(chunk, reference);
      center_ = static_cast<float>(double{reference} + first.mean());
    }
    moments_ += index + 1 < row_.chunks() ? moments_of_chunk<Type, true>(chunk, center_)
                                          : moments_of_chunk<Type, false>(chunk, center_);
  }

  /// Whether the deviation is known well where it is asked for: values that are all far from the
  /// center are rounded more, and where some are -inf it is not known.
  bool knows_deviation() const {
    constexpr double kLeastPart = 0.2;
    if (!has_deviation_) {
      return true;
    }
    const double deviation = moments_.deviation();
    return deviation * deviation > kLeastPart * (moments_.squares / moments_.count);
  }

  const Row<Type>& row_;
  const Groups groups_;
  const float temperature_;
  const float inverse_;
  const bool has_mean_;
  const bool has_sum_;
  const bool has_deviation_;
  float maximum_ = -kInfinity;
  ApproximateSum approximate_{};
  double product_ = 0;
  float center_ = 0;
  Moments moments_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
