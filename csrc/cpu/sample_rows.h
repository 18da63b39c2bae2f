// Both operators on the host, free of torch: docs/semantics.md and docs/semantics_v2.md on batches
// in memory. One source, compiled once per instruction set; the results are the same, bit for bit,
// for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "contract.h"

namespace ascend_sample::cpu {

enum class LogitsType : uint8_t { kFloat32, kFloat16, kBFloat16 };

/// What a row's noise is a function of, besides the lane: ascend_sample/sampling/noise.py.
struct NoiseKey {
  int64_t seed;
  int64_t position;
  uint32_t stream;
};

/// What was seen in a row: NaN before +inf, +inf before nothing but -inf.
enum class RowStatus : int8_t { kOk = 0, kAllMasked = 1, kNanSeen = 2, kInfinitySeen = 3 };

/// What the sampling layer gives instead of p, q and min_p. The rows are those that are sampled.
struct Sampling {
  const int64_t* rows;       // their logits' places; null: the same
  const float* temperature;  // not above 0, or NaN: the first of the total order
  const float* p;
  const float* min_p;
  const int64_t* seed;
  const int64_t* position;
  uint32_t stream;
  RowStatus* status;
};

/// The same where not a token is wanted but the distribution of each row: its kept logits /
/// temperature become probabilities.
struct Filtering {
  const float* temperature;
  const float* p;
  const float* min_p;
};

/// One batch of valid arguments. Strides are in elements.
struct Batch {
  LogitsType type;
  int64_t batch_size;
  int64_t vocab_size;  // 1 to kMaxVocabSize
  const void* logits;
  int64_t logits_row_stride;
  int64_t logits_column_stride;
  const int32_t* k;
  int64_t k_stride;
  int64_t* selected = nullptr;  // [batch_size]; not written where there is `filtering`
  float* kept = nullptr;        // [batch_size, vocab_size], contiguous; null: not wanted

  // Of both operators.
  const void* p = nullptr;  // of the type of logits
  int64_t p_stride = 0;
  const float* q = nullptr;  // null: no draw
  int64_t q_row_stride = 0;
  int64_t q_column_stride = 0;
  float eps = 0.0F;

  // Of the second operator alone.
  bool is_second = false;
  int64_t most_k = kMaxTopK;    // a larger k, or one above vocab_size, skips top-k
  const void* min_p = nullptr;  // of the type of logits; null: no min-p
  int64_t min_p_stride = 0;
  bool are_probabilities = false;
  float* dense_weights = nullptr;  // [batch_size, vocab_size], contiguous; null: not wanted
  int64_t* dense_ids = nullptr;    // the same

  // Of the sampling layer, which has the second operator's weights and the first one's rule for p.
  const Sampling* sampling = nullptr;
  const Filtering* filtering = nullptr;  // with `kept`; or this
};

/// What worked for the nucleus of the row before is tried first, since rows tend to be alike.
/// Results do not depend on it.
struct History {
  enum FirstTry : uint8_t { kFew, kRoughSum, kExactSum };

  FirstTry first_try = kFew;
  double depth = 0;  // of the nucleus: from the logarithm of the row's sum to its last logit
};

/// Memory that one thread reuses from row to row: a few times the size of a row.
class Scratch {
 public:
  History history;

  enum Slot : uint8_t { kRow, kLogits, kNoise, kCopy, kDivided, kSort, kTally, kSlots };

  /// At least `bytes`, aligned to 64. What the slot held before is lost when it grows.
  std::byte* reserve(Slot slot, size_t bytes);

  /// The same, but zeros where it grows.
  std::byte* reserve_zeros(Slot slot, size_t bytes);

  /// What the slot holds now.
  std::span<const std::byte> held(Slot slot) const {
    return {blocks_[slot].memory.get(), blocks_[slot].bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    size_t bytes = 0;
  };
  Block blocks_[kSlots];
};

/// The code paths, from the most portable to the widest.
enum class Capability : uint8_t { kPlain, kNeon, kAvx2, kAvx512 };

inline constexpr Capability kCapabilities[] = {Capability::kPlain, Capability::kNeon,
                                               Capability::kAvx2, Capability::kAvx512};

/// "plain", "neon", "avx2" or "avx512".
std::string_view name_of(Capability capability);
std::optional<Capability> capability_named(std::string_view name);

/// Whether this build has the code and this machine the instructions.
bool is_available(Capability capability);

/// The widest that is available.
Capability best_capability();

/// Samples the rows [first_row, last_row) on the calling thread.
void sample_rows(Capability capability, const Batch& batch, int64_t first_row, int64_t last_row,
                 Scratch& scratch);

/// Writes the exponential noise of `count` lanes of a row from `first_lane`, which is even.
void exponential_noise(Capability capability, const NoiseKey& key, uint64_t first_lane,
                       size_t count, float* out);

}  // namespace ascend_sample::cpu
