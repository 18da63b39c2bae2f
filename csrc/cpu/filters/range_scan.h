// The pass over a row of which a range of values or a nucleus is kept: maxima, cheap exponentials,
// and the standard deviation of its values, as far as they are asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/rows/row.h"
#include "cpu/rows/scan.h"
#include "cpu/rows/status.h"
#include "cpu/vectors/exponential.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What is told of values by their differences from a center.
struct Moments {
  double count = 0;
  double total = 0;
  double squares = 0;

  Moments& operator+=(const Moments& other) {
    count += other.count;
    total += other.total;
    squares += other.squares;
    return *this;
  }

  double mean() const { return total / count; }
  double deviation() const { return std::sqrt(std::max(0.0, squares / count - mean() * mean())); }
};

/// The moments of the values above -inf in a chunk, added up in float32; where all have to be
/// there, they mean nothing if some are not. Where float32 is too small for the squares, their sum
/// is infinite. `for_lines` calls what it is given with each line.
template <bool kAreAllThere, typename ForLines>
ASCEND_SAMPLE_INLINE Moments moments_of_lines(float center, ForLines for_lines) {
  const Floats centers = splat(center);
  struct Sums {
    Floats counts{};
    Floats totals{};
    Floats squares{};
  };
  Sums first;  // two, so that one need not wait for the other
  Sums second;
  const auto add = [&centers](const Floats& values, Sums& sums) {
    Floats difference = values - centers;
    if constexpr (!kAreAllThere) {
      const Mask is_there = is_greater(values, splat(-kInfinity));  // NaN is not
      difference = select(is_there, difference, Floats{});
      sums.counts = sums.counts + select(is_there, splat(1.0F), Floats{});
    }
    sums.totals = added(difference, sums.totals);
    sums.squares = fused(difference, difference, sums.squares);
  };
  for_lines([&](const Line& logits) {
    add(logits.first, first);
    add(logits.second, second);
  });
  return {kAreAllThere ? double{kChunk} : sum_lanes(first.counts + second.counts),
          sum_lanes(first.totals + second.totals), sum_lanes(first.squares + second.squares)};
}

template <typename Type, bool kAreAllThere>
Moments moments_of_chunk(const typename Type::Storage* chunk, float center) {
  return moments_of_lines<kAreAllThere>(center, [chunk](auto add) {
#pragma GCC unroll 4
    for (size_t line = 0; line < kChunkLines; ++line) {
      prefetch_ahead(chunk + line * kLine);
      add(Type::load_unordered(chunk + line * kLine));
    }
  });
}

/// Those of some first chunks.
template <typename Type>
Moments moments_of(const Row<Type>& row, size_t chunks, float center) {
  Moments result;
  for (size_t index = 0; index < chunks; ++index) {
    result += moments_of_chunk<Type, false>(row.chunk(index), center);
  }
  return result;
}

/// The same in float64, which is slow.
template <typename Type>
Moments exact_moments_of(const Row<Type>& row, float center) {
  Moments result;
  for (size_t id = 0; id < row.vocab_size(); ++id) {
    const float value = row.value(id);
    if (value > -kInfinity) {
      const double difference = double{value} - double{center};
      result.count += 1;
      result.total += difference;
      result.squares += difference * difference;
    }
  }
  return result;
}

/// Of the values above -inf, of which the largest is finite. They are looked at from the mean of
/// the first chunk, so that squares are not much larger than what is looked for.
template <typename Type>
double deviation_of(const Row<Type>& row, float maximum) {
  const Moments first = moments_of(row, 1, maximum);
  const auto center = static_cast<float>(double{maximum} + first.mean());
  const bool is_near = center > -kInfinity && center < kInfinity;  // not NaN, of no values
  const Moments found = moments_of(row, row.chunks(), is_near ? center : maximum);
  return found.squares < double{kInfinity} ? found.deviation()
                                           : exact_moments_of(row, maximum).deviation();
}

/// Finds what is asked for of a row, by one pass.
template <typename Type>
class RangeScan {
 public:
  RangeScan(const Row<Type>& row, const Groups& groups, float temperature, const Scanned& wanted)
      : row_(row), groups_(groups), found_{.has = wanted, .quotients = {0.0F, temperature}} {}

  /// Fills the maxima of groups. None where what is found of the row may not be used.
  std::optional<ScannedRow> scan() {
    return found_.quotients.are_close() && scan_row() ? std::optional(found_) : std::nullopt;
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
    return scan_moments();
  }

  /// Sets what values are relative to. Returns whether quotients are known well then.
  bool refer_to(float reference) {
    found_.quotients = {reference, found_.temperature()};
    return found_.quotients.are_close();
  }

  /// So far above the largest of the first logits that the largest of all is likely where an
  /// approximate sum has a meaning, and so little that few weigh nothing.
  float guess_reference() const {
    const float guess = largest_of_first() + 16 * found_.temperature();
    return std::isfinite(guess) ? guess : 0.0F;
  }

  /// Of the first chunk.
  float largest_of_first() const {
    Floats largest = splat(-kInfinity);
    for (size_t line = 0; line < kChunkLines; ++line) {
      const Line logits = Type::load(row_.chunk(0) + line * kLine);
      largest = larger(logits.first, larger(logits.second, largest));
    }
    return largest_lane(largest);
  }

  bool weigh() {
    if (!found_.has.mean) {
      return scan_chunks<false, false>();
    }
    return found_.quotients.are_values() ? scan_chunks<true, true>() : scan_chunks<true, false>();
  }

  /// Weighs all chunks: in a hurry, until some have what is no number, or weighs nothing.
  template <bool kHasMean, bool kIsWhole>
  bool scan_chunks() {
    FloatStatus seen;
    found_.approximate = {};
    found_.product = 0;
    begin_moments();
    bool is_hasty = kHasMean || kHurryTells;  // what sums tell of
    for (size_t first = 0; first < row_.chunks(); first += ScannedRow::kFlushed) {
      const size_t end = std::min(first + ScannedRow::kFlushed, row_.chunks());
      is_hasty = is_hasty && add_chunks<kHasMean, kIsWhole, true>(first, end, seen);
      if (!is_hasty) {
        add_chunks<kHasMean, kIsWhole, false>(first, end, seen);
      }
      for (size_t index = first; found_.has.deviation && index < end; ++index) {
        const auto* const chunk = row_.chunk(index);
        moments_ += index + 1 < row_.chunks() ? moments_of_chunk<Type, true>(chunk, center_)
                                              : moments_of_chunk<Type, false>(chunk, center_);
      }
    }
    found_.maximum = seen.maximum();
    found_.approximate.maximum = found_.quotients.exactly(found_.maximum);
    return found_.product == found_.product && seen.status() == RowStatus::kOk && knows_deviation();
  }

  /// Adds some chunks to what was found. In a hurry nothing is added, and false returned, where
  /// sums are NaN.
  template <bool kHasMean, bool kIsWhole, bool kIsHasty>
  bool add_chunks(size_t first, size_t end, FloatStatus& seen) {
    FloatStatus own_seen = seen;
    Line sums{};
    Line products{};
    for (size_t index = first; index < end; ++index) {
      if (index + 1 < row_.chunks()) {
        weigh_chunk<kHasMean, kIsWhole, kIsHasty>(index, own_seen, sums, products);
      } else {  // it ends with -inf
        weigh_chunk<kHasMean, kIsWhole, false>(index, own_seen, sums, products);
      }
    }
    const double sum = sum_lanes(sums.first) + sum_lanes(sums.second);
    const double product = sum_lanes(products.first) + sum_lanes(products.second);
    if (kIsHasty && (sum != sum || product != product)) {
      return false;
    }
    seen = own_seen;
    found_.approximate.sum += sum;
    found_.product += product;
    return true;
  }

  /// Adds a chunk to sums and products. In a hurry, with nothing but these for what is no number.
  template <bool kHasMean, bool kIsWhole, bool kIsHasty>
  ASCEND_SAMPLE_INLINE void weigh_chunk(size_t index, FloatStatus& seen, Line& sums,
                                        Line& products) {
    Line of_chunk{};
    Line products_of_chunk{};
    const Quotients quotients = found_.quotients;
    const auto add = [&quotients](const Floats& values, Floats& sum, Floats& product) {
      const Floats weight = kIsWhole ? approximate_exp<kIsHasty>(values)
                                     : quotients.approximate_exp_of<kIsHasty>(values);
      sum = added(weight, sum);
      if constexpr (kHasMean) {
        const Floats exponent = kIsWhole ? values : quotients.of(values);
        // What weighs nothing may be -inf.
        product =
            fused(weight, kIsHasty ? exponent : larger(exponent, splat(kLeastLogWeight)), product);
      }
    };
    read_chunk<kIsHasty>(index, seen, [&](const Line& logits) {
      add(logits.first, of_chunk.first, products_of_chunk.first);
      add(logits.second, of_chunk.second, products_of_chunk.second);
    });
    sums.first = sums.first + of_chunk.first;
    sums.second = sums.second + of_chunk.second;
    products.first = products.first + products_of_chunk.first;
    products.second = products.second + products_of_chunk.second;
  }

  /// Calls `visit` with the lines of a chunk, and fills the maxima of its groups. In a hurry no NaN
  /// is seen.
  template <bool kIsHasty, typename Visit>
  ASCEND_SAMPLE_INLINE void read_chunk(size_t index, FloatStatus& seen, Visit visit) const {
    const auto* const chunk = row_.chunk(index);
    float* maxima = groups_.maxima + index * groups_.blocks_in_chunk() * kLine;
    for (size_t block = 0; block < kChunkLines; block += groups_.lines) {
      Line most{splat(-kInfinity), splat(-kInfinity)};
#pragma GCC unroll 4
      for (size_t line = 0; line < groups_.lines; ++line) {
        prefetch_ahead(chunk + (block + line) * kLine);
        const Line logits = Type::load_unordered(chunk + (block + line) * kLine);
        if constexpr (!kIsHasty) {
          seen.add_line(logits);
        }
        most = {larger(logits.first, most.first), larger(logits.second, most.second)};
        visit(logits);
      }
      seen.add_extremes(most);
      store(maxima, most);
      maxima += kLine;
    }
  }

  /// Moments are those from near the mean of the first chunk.
  void begin_moments() {
    moments_ = {};
    if (found_.has.deviation) {
      const float reference = largest_of_first();
      const Moments first = moments_of_chunk<Type, false>(row_.chunk(0), reference);
      center_ = static_cast<float>(double{reference} + first.mean());
    }
  }

  /// Maxima and moments in one pass, where nothing is weighed.
  bool scan_moments() {
    begin_moments();
    FloatStatus seen;
    const size_t last = row_.chunks() - 1;
    for (size_t index = 0; index < last; ++index) {
      moments_ +=
          moments_of_lines<true>(center_, [&](auto add) { read_chunk<true>(index, seen, add); });
    }
    moments_ +=
        moments_of_lines<false>(center_, [&](auto add) { read_chunk<false>(last, seen, add); });
    found_.maximum = seen.maximum();
    return seen.status() == RowStatus::kOk && knows_deviation();
  }

  /// Whether the deviation is known well where it is asked for: values that are all far from the
  /// center are rounded more, and where some are -inf or NaN it is not known.
  bool knows_deviation() {
    constexpr double kLeastPart = 0.2;
    found_.deviation = moments_.deviation();
    return !found_.has.deviation ||
           found_.deviation * found_.deviation > kLeastPart * (moments_.squares / moments_.count);
  }

  const Row<Type>& row_;
  const Groups groups_;
  ScannedRow found_;
  float center_ = 0;
  Moments moments_{};
};

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
