// The pass over a row of which a range of values or a nucleus is kept: maxima, cheap exponentials,
// and the moments of its values, as far as they are asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/rows/deviation.h"
#include "cpu/rows/range_filters.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/status.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What these ask for.
inline Scanned scanned_for(const RangeFilters& filters) {
  return {.mean = filters.is_typical() || filters.is_on(kEtaCutoff),
          .sum = filters.weighs(),
          .deviation = filters.is_on(kTopNSigma)};
}

template <typename Type>
class RangeScan {
 public:
  RangeScan(const Row<Type>& row, const Groups& groups, float temperature, const Scanned& wanted)
      : row_(row), groups_(groups), found_{.has = wanted, .quotients = {0.0F, temperature}} {}

  /// Fills the maxima of groups. None where what is found of the row may not be used.
  std::optional<ScannedRow> scan() {
    if (!found_.quotients.are_close() || !scan_row()) {
      return std::nullopt;
    }
    found_.deviation = moments_.deviation();
    return found_;
  }

 private:
  bool scan_row() {
    if (found_.has.mean || found_.has.sum) {
      // Without a reference, products take an operation less.
      const bool is_whole = found_.has.mean && found_.temperature() == 1.0F;
      if (!refer_to(is_whole ? 0.0F : guess_reference()) || !weigh()) {
        return false;
      }
      return is_within_range(found_.approximate) ||
             (refer_to(found_.maximum) && weigh() && is_within_range(found_.approximate));
    }
    StatusOf<Type> seen;
    Floats largest = splat(-kInfinity);
    for (size_t index = 0; index < row_.chunks(); ++index) {
      largest =
          larger(largest, scan_chunk<Type>(row_.chunk(index), groups_, maxima_of(index), seen));
      add_moments(index, largest);
    }
    found_.maximum = largest_lane(largest);
    return seen.status() == RowStatus::kOk && knows_deviation();
  }

  /// Sets what values are relative to. Returns whether quotients are known well then.
  bool refer_to(float reference) {
    found_.quotients = {reference, found_.temperature()};
    return found_.quotients.are_close();
  }

  /// So far above the largest of the first logits that the largest of all is likely where an
  /// approximate sum has a meaning.
  float guess_reference() const {
    Floats largest = splat(-kInfinity);
    const size_t lines = std::min(row_.lines(), kChunkLines);
    for (size_t line = 0; line < lines; ++line) {
      const Line logits = Type::load(row_.line(line));
      largest = larger(logits.first, larger(logits.second, largest));
    }
    const float guess = largest_lane(largest) - (kLowestMaximum + 1) * found_.temperature();
    return std::isfinite(guess) ? guess : 0.0F;
  }

  bool weigh() {
    if (!found_.has.mean) {
      return scan_chunks<false, false, false>();
    }
    return found_.quotients.are_values() ? weigh_with_mean<true>() : weigh_with_mean<false>();
  }

  /// Weighs all chunks: in a hurry, but for the last one, if products tell of what is no number.
  template <bool kIsWhole>
  bool weigh_with_mean() {
    return scan_chunks<true, kIsWhole, true>() || scan_chunks<true, kIsWhole, false>();
  }

  template <bool kHasMean, bool kIsWhole, bool kIsHasty>
  bool scan_chunks() {
    FloatStatus seen;
    Floats largest = splat(-kInfinity);
    Line sums{};
    Line products{};
    found_.approximate = {};
    found_.product = 0;
    moments_ = {};
    const auto flush = [&] {
      found_.approximate.sum += sum_lanes(sums.first) + sum_lanes(sums.second);
      found_.product += sum_lanes(products.first) + sum_lanes(products.second);
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
      if (index % ScannedRow::kFlushed == ScannedRow::kFlushed - 1) {
        flush();
        if (kIsHasty && found_.product != found_.product) {
          return false;
        }
      }
      if (found_.has.deviation) {
        add_moments(index, largest);
      }
    }
    flush();
    found_.maximum = largest_lane(largest);
    found_.approximate.maximum = found_.quotients.exactly(found_.maximum);
    return found_.product == found_.product && seen.status() == RowStatus::kOk && knows_deviation();
  }

  /// Adds a chunk to sums and products. In a hurry, with nothing but these for what is no number.
  template <bool kHasMean, bool kIsWhole, bool kIsHasty>
  ASCEND_SAMPLE_INLINE void weigh_chunk(size_t index, FloatStatus& seen, Floats& largest,
                                        Line& sums, Line& products) {
    const auto* const chunk = row_.chunk(index);
    float* maxima = maxima_of(index);
    Line of_chunk{};
    Line products_of_chunk{};
    const Quotients quotients = found_.quotients;
    const auto add = [&quotients](const Floats& values, Floats& most, Floats& sum,
                                  Floats& product) {
      most = larger(values, most);
      const Floats weight =
          kIsWhole ? approximate_exp(values) : quotients.approximate_exp_of(values);
      sum = sum + weight;
      if constexpr (kHasMean) {
        const Floats exponent = kIsWhole ? values : quotients.of(values);
        // What weighs nothing may be -inf.
        product =
            fused(weight, kIsHasty ? exponent : larger(exponent, splat(kLeastLogWeight)), product);
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
    if (!found_.has.deviation) {
      return true;
    }
    const double deviation = moments_.deviation();
    return deviation * deviation > kLeastPart * (moments_.squares / moments_.count);
  }

  const Row<Type>& row_;
  const Groups groups_;
  ScannedRow found_;
  float center_ = 0;
  Moments moments_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
