// One row of the operator on the host, free of torch: the algorithm of docs/semantics.md, sections
// 2 to 5, on float32 values.
#pragma once

#include <cstdint>
#include <vector>

namespace ascend_sample::cpu {

struct RowParameters {
  int32_t k;
  float p;
  float eps;
  int64_t top_k_guess;
};

/// Memory that one thread reuses from row to row.
struct RowScratch {
  std::vector<float> values;    // the row in float32, filled by the caller; NaN becomes -inf
  std::vector<uint64_t> order;  // candidates, packed so that ascending integers are the total order
  std::vector<float> probabilities;  // of the candidates, in that order
  std::vector<float> weights;
};

/// Noise of one row: q[i * stride], or none when data is null.
struct RowNoise {
  const float* data;
  int64_t stride;
};

/// The drawn vocabulary id. `kept` (may be null) receives vocab_size float32: the values of the
/// kept ids, -inf elsewhere.
int64_t sample_row(RowScratch& scratch, const RowParameters& parameters, RowNoise q, float* kept);

}  // namespace ascend_sample::cpu
