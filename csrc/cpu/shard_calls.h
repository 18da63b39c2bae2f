// What the CPU kernel is asked for of rows that are parts of rows: docs/vocabulary_parallel.md. As
// in calls.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/calls.h"

namespace ascend_sample::cpu {

/// segment_winners: the segmented draw of rows that are parts of rows.
struct WinnersCall {
  Logits logits;
  int64_t batch_size;
  int64_t first_id;  // of the first column, where a segment begins
  const float* temperature;
  const float* min_p;
  const float* maximum;  // of whole rows
  const int64_t* seed;
  const int64_t* position;
  uint32_t purpose;
  double* scores;  // [batch_size], of the segment that wins; 0 where nothing has weight
  int64_t* ids;    // the same, in the part
};

/// first_of_rows: the first of the total order of rows, and what was seen in them.
struct FirstCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // of the logits, one for each of the batch; empty: the same
  int64_t count;                  // 1 to kMaxTopK
  float* values;                  // [batch_size, count]; -inf where a row has no more
  int64_t* ids;                   // the same; 0 then
  RowStatus* status;              // [batch_size]
};

}  // namespace ascend_sample::cpu
