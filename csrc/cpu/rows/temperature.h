// Division by a temperature: (logit - maximum) / temperature, each of the two operations rounded to
// float32. It never overflows upwards, and to -inf only where the weight is 0, unless logits more
// than 3.4e38 apart meet a temperature above 4e36. Entries of +inf share the mass at any
// temperature.
#pragma once

#include <span>

#include "cpu/rows/formats.h"
#include "cpu/vectors/exponential.h"
#include "cpu/vectors/total_order.h"
#include "cpu/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// What a row's logits become before they are weighed: exp((logit - maximum) / temperature).
struct Scale {
  float maximum;
  float temperature;

  /// The exponent, rounded as that of a row that is divided.
  double of(float logit) const {
    return temperature == 1.0F ? double{logit} - double{maximum}
                               : double{(logit - maximum) / temperature};
  }
  /// The logit that has an exponent.
  double value_at(double exponent) const {
    return double{maximum} + double{temperature} * exponent;
  }
};

/// Divides a few logits with this maximum; returns what it becomes. Only copies where it is +inf,
/// whose entries share the mass at any temperature.
inline float divide(const float* logits, size_t count, float maximum, float temperature,
                    float* out) {
  const bool is_kept = maximum == kInfinity;
  for (size_t i = 0; i < count; ++i) {
    out[i] = is_kept ? logits[i] : (logits[i] - maximum) / temperature;
  }
  return is_kept ? maximum : 0.0F;
}

/// The least value that min-p keeps beside a maximum: by weights in float64.
inline float least_of_min_p(float min_p, float maximum, float temperature) {
  const auto stays = [&](float value) {
    float quotient = value;
    const float shift =
        temperature == 1.0F ? maximum : divide(&value, 1, maximum, temperature, &quotient);
    return exp_not_positive(double{quotient} - double{shift}) >= double{min_p};
  };
  return next_above(last_before(-kInfinity, maximum, stays));
}

/// Divides a row whose maximum is finite; -inf divided by +inf is NaN, which counts as -inf too.
template <typename Type>
Row<Float32> divide(const Row<Type>& row, float maximum, float temperature, Workspace& work) {
  float* const values = work.divided.reserve(row.padded());
  const Floats maxima = splat(maximum);
  const Floats temperatures = splat(temperature);
  const auto quotient = [&](const Floats& logits) { return (logits - maxima) / temperatures; };
  for (size_t line = 0; line < row.lines(); ++line) {
    const Line logits = Type::load(row.line(line));
    store(values + line * kLine, quotient(logits.first));
    store(values + line * kLine + kLanes, quotient(logits.second));
  }
  return {values, row.vocab_size()};
}

/// The row with 0 for +inf and -inf for everything else: what is left where a softmax gives the
/// whole mass to the entries of +inf.
template <typename Type>
Row<Float32> infinities_of(const Row<Type>& row, Workspace& work) {
  float* const values = work.infinities.reserve(row.padded());
  const Floats infinity = splat(kInfinity);
  for (size_t line = 0; line < row.lines(); ++line) {
    const Line logits = Type::load(row.line(line));
    float* out = values + line * kLine;
    store(out, select(is_equal(logits.first, infinity), Floats{}, splat(-kInfinity)));
    store(out + kLanes, select(is_equal(logits.second, infinity), Floats{}, splat(-kInfinity)));
  }
  return {values, row.vocab_size()};
}

/// Subtracts the maximum from logits that are kept, and divides. 0 becomes of the maximum, +inf
/// too.
inline void scale_kept(std::span<float> kept, float maximum, float temperature) {
  for (float& each : kept) {
    const float scaled = each == maximum ? 0.0F : (each - maximum) / temperature;
    each = each > -kInfinity ? scaled : -kInfinity;
  }
}

/// Puts the logits divided by the temperature in the place of all that is kept.
template <typename Type>
void write_divided(const Row<Type>& row, float temperature, std::span<float> kept) {
  const Floats temperatures = splat(temperature);
  const Floats lows = splat(-kInfinity);
  const size_t whole = row.vocab_size() / kLine;
  const auto divide_at = [&](float* out, const Floats& logits) {
    store(out, select(is_greater(load_floats(out), lows), logits / temperatures, lows));
  };
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    float* out = kept.data() + line * kLine;
    divide_at(out, logits.first);
    divide_at(out + kLanes, logits.second);
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    kept[id] = kept[id] > -kInfinity ? row.value(id) / temperature : -kInfinity;
  }
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
