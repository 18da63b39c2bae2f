// Division by a temperature: (logit - maximum) / temperature, each of the two operations rounded to
// float32. It never overflows upwards, and to -inf only where the weight is 0, unless logits more
// than 3.4e38 apart meet a temperature above 4e36.
#pragma once

#include "cpu/rows/formats.h"
#include "cpu/rows/workspace.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

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

/// Divides a row whose maximum is finite; -inf divided by +inf is NaN, which counts as -inf too.
/// The row itself is not to be read any more.
template <typename Type>
Row<Float32> divide(const Row<Type>& row, float maximum, float temperature, Scratch& scratch,
                    Workspace& work) {
  const size_t padded = row.lines() * kLine;
  auto* values =
      reinterpret_cast<float*>(scratch.reserve(Scratch::kDivided, padded * sizeof(float)));
  const Floats maxima = splat(maximum);
  const Floats temperatures = splat(temperature);
  const auto quotient = [&](const Floats& logits) { return (logits - maxima) / temperatures; };
  for (size_t line = 0; line < row.lines(); ++line) {
    const Line logits = Type::load(row.line(line));
    store(values + line * kLine, quotient(logits.first));
    store(values + line * kLine + kLanes, quotient(logits.second));
  }
  return {values, row.vocab_size(), work.last_chunk};
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
