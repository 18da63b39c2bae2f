// What the CPU kernel is asked for of rows that are parts of rows: docs/vocabulary_parallel.md. As
// in calls.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/calls.h"

namespace ascend_sample::cpu {

/// What a shard knows of a race among segments of the vocabulary.
struct ShardLead {
  double score;        // of a segment, or of a part of one
  double most;         // the same with the larger cut
  double other;        // what no other segment exceeds
  double place;        // the score of the leading place in it; 0 where the lesser cut drops that
  double most_place;   // the same where it does not
  double other_place;  // what no other place exceeds
};

/// Of each row the segments that may be a part, the first and the last, and between them the best.
inline constexpr int64_t kShardLeads = 3;

/// shard_leads: the segmented draw of rows that are parts of rows.
struct ShardCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // of the logits, one for each of the batch; empty: the same
  int64_t first_id;
  const float* temperature;
  const float* min_p;
  std::span<const float> maximum;            // of whole rows; empty: that of the part stands for it
  std::span<const float> cut_values[2];      // the lesser cut and the larger one; empty: none
  std::span<const int64_t> cut_last_ids[2];  // in the part; -1: no equal is kept
  const int64_t* seed;
  const int64_t* position;
  uint32_t purpose;
  double slack;
  ShardLead* leads;    // [batch_size, kShardLeads]
  int64_t* ids;        // the same, in the part
  float* own_maximum;  // [batch_size]
  RowStatus* status;   // [batch_size]
};

/// first_of_rows: the first of the total order of rows, and what was seen in them.
struct FirstCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // as those of ShardCall
  int64_t count;                  // 1 to kMaxTopK
  float* values;                  // [batch_size, count]; -inf where a row has no more
  int64_t* ids;                   // the same; 0 then
  RowStatus* status;              // [batch_size]
};

/// A digit of the order of values: 32 bits that grow with the value have four.
inline constexpr size_t kDigitBins = 256;

/// shard_histogram: what weighs how much, by one digit of those whose digits before are known.
struct DigitCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // as those of ShardCall
  const float* maximum;           // finite
  const bool* counts;             // rather than exp(logit - maximum)
  const int64_t* prefix;          // the digits before
  int64_t digit;                  // 0 to 3
  double* bins;                   // [batch_size, kDigitBins]
};

/// chunk_sums: what a row's sum is made of, chunk by chunk.
struct ChunksCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // as those of ShardCall
  int64_t chunks;                 // of a row
  float* maxima;                  // [batch_size, chunks]
  double* sums;  // the same, of exp(logit - maximum); of +inf, how many there are in the chunk
  std::span<float> distances;  // the same: the mean, by weight, of maximum - logit; empty: unwanted
};

/// log_of_sums: the logarithms of rows' sums, and their entropies, from what chunk_sums found of
/// all their chunks.
struct LogSumCall {
  int64_t batch_size;
  int64_t chunks;
  const float* maxima;               // [batch_size, chunks]
  const double* sums;                // the same
  std::span<const float> distances;  // the same; empty: no entropies are wanted
  float* maximum;                    // [batch_size]
  double* log_sum;                   // the same; 0 for a row of -inf
  float* entropies;                  // the same
};

/// count_above: how many logits of rows are above a bound.
struct AboveCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // as those of ShardCall
  const float* bounds;            // [batch_size]
  int64_t* counts;                // the same
};

}  // namespace ascend_sample::cpu
