// What the CPU kernel is asked for, free of torch: docs/semantics.md, docs/semantics_v2.md,
// docs/sampling.md and docs/vocabulary_parallel.md on rows in memory. Arguments are valid; strides
// are in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "contract.h"

namespace ascend_sample::cpu {

enum class LogitsType : uint8_t { kFloat32, kFloat16, kBFloat16 };

/// Rows of logits.
struct Logits {
  LogitsType type;
  int64_t vocab_size;  // 1 to kMaxVocabSize
  const void* data;
  int64_t row_stride;
  int64_t column_stride;
};

/// A number for each row. Those of void have the type of the logits.
template <typename Element>
struct Column {
  const Element* data;
  int64_t stride;
};

/// Noise for each logit.
struct NoiseRows {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

/// Where the operators and the sampling layer differ: docs/semantics_v2.md, "The differences".
struct Rules {
  bool softmaxes_again;   // what is kept, before it is drawn from
  bool has_to_exceed_p;   // the sum of a nucleus' probabilities; else it has to reach p
  bool keeps_one_at_p_0;  // else p <= 0 keeps everything
  int64_t most_k;         // a larger k, or one above vocab_size, skips top-k
};

inline constexpr Rules kFirstOperator{.softmaxes_again = true,
                                      .has_to_exceed_p = true,
                                      .keeps_one_at_p_0 = false,
                                      .most_k = kMaxTopK};
inline constexpr Rules kSecondOperator{.softmaxes_again = false,
                                       .has_to_exceed_p = false,
                                       .keeps_one_at_p_0 = true,
                                       .most_k = kMaxTopK};  // or what ks_max makes it
inline constexpr Rules kSamplingLayer{.softmaxes_again = false,
                                      .has_to_exceed_p = true,
                                      .keeps_one_at_p_0 = true,
                                      .most_k = kMaxTopK};

/// top_k_top_p_sample or top_k_top_p_sample_v2, as the rules say, but for probabilities as input
/// and sample results.
struct OperatorCall {
  Logits logits;
  int64_t batch_size;
  Rules rules;
  Column<int32_t> k;
  Column<void> p;
  std::optional<Column<void>> min_p;
  std::optional<NoiseRows> q;  // none: no draw
  float eps;
  int64_t* selected;      // [batch_size]
  std::span<float> kept;  // [batch_size, vocab_size]; empty: not wanted
};

/// What a row's noise is a function of, besides the lane: ascend_sample/sampling/draws/noise.py.
struct NoiseKey {
  int64_t seed;
  int64_t position;
  uint32_t purpose;
};

/// Those of rows.
struct NoiseKeys {
  const int64_t* seed;
  const int64_t* position;
  uint32_t purpose;

  NoiseKey of(int64_t index) const { return {seed[index], position[index], purpose}; }
};

/// A table whose columns follow one another.
template <typename Element>
struct Table {
  const Element* data;
  int64_t row_stride;

  const Element* row(int64_t index) const { return data + index * row_stride; }
};

/// Lists of ids, one for each slot. What is behind a list's length does not count.
struct IdLists {
  Table<int64_t> ids;
  const int64_t* lengths;

  std::span<const int64_t> of(int64_t slot) const {
    return {ids.row(slot), static_cast<size_t>(lengths[slot])};
  }
};

/// What is added to some logits: finite, or -inf, which forbids an id whatever its logit is.
struct Addends {
  const int64_t* slots;  // a slot for each row, or -1: none
  IdLists lists;
  Table<float> addends;  // by slot, as the lists
};

/// Penalties of ids that have occurred. A list may have an id several times.
struct Penalties {
  const int64_t* slots;  // as those of addends
  IdLists lists;
  Table<int32_t> occurrences;  // of each id: 2 * its count in the output, + 1 if in the prompt
  const float* repetition;     // a number for each row, as the others
  const float* presence;
  const float* frequency;
};

/// Which ids may be drawn: bit j of word w is that of id 32 w + j. Bits beyond the vocabulary do
/// not count.
struct Masks {
  const int64_t* slots;  // as those of addends
  Table<int32_t> words;
};

/// Filters that keep a range of a row's values. Typical sampling is off at 1, the others at 0.
enum RangeFilter : uint8_t {
  kTypicalP,
  kEpsilonCutoff,
  kEtaCutoff,
  kTopA,
  kTopNSigma,
  kMinPBeforeExclusion,  // min-p of rows whose top choices are excluded
  kExclusionThreshold,   // of what may be excluded, in this step
  kRangeFilters
};

/// A number for each row, by filter.
struct Ranges {
  Table<float> numbers;
};

/// What is done to rows before they are sampled: addends, then penalties, then masks, each of which
/// has to allow an id, then ranges.
struct Edits {
  std::optional<Addends> addends;
  std::optional<Penalties> penalties;
  std::optional<Masks> masks;
  std::optional<Masks> bitmask;
  std::optional<Ranges> ranges;
};

/// What rows are sampled with: a number for each, and edits.
struct Requests {
  const float* temperature;  // not above 0, or NaN: the first of the total order
  const int32_t* k;
  const float* p;
  const float* min_p;
  bool keeps_ties;  // of top-k
  Edits edits;
};

/// What was seen in a row: NaN before +inf, +inf before nothing but -inf.
enum class RowStatus : int8_t { kOk = 0, kAllMasked = 1, kNanSeen = 2, kInfinitySeen = 3 };

/// What is kept of a row after all filters: ids, ascending, and their log-probabilities. It is made
/// when their number is known, so that it takes no more than that.
class KeptList {
 public:
  /// Makes room for so many; what was there is lost.
  void resize(size_t count) {
    if (count > room_) {
      numbers_.reset(new std::byte[count * (sizeof(int32_t) + sizeof(float))]);
      room_ = count;
    }
    count_ = count;
  }
  void clear() {
    numbers_.reset();
    count_ = room_ = 0;
  }

  size_t count() const { return count_; }
  int32_t* ids() const { return reinterpret_cast<int32_t*>(numbers_.get()); }
  float* log_probs() const {
    return reinterpret_cast<float*>(numbers_.get() + count_ * sizeof(int32_t));
  }

 private:
  std::unique_ptr<std::byte[]> numbers_;  // not initialised
  size_t count_ = 0;
  size_t room_ = 0;
};

/// Tokens whose own numbers and ranks are wanted, one for each row of the batch.
struct GivenTokens {
  const int64_t* ids;
  std::span<const int64_t> places;  // of each among the ids; empty: the same
  int64_t* ranks;
};

/// row_logprobs and sample_rows: the best ones of each row, the first first, behind one that is
/// given, before some that are named.
struct RankingCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // of the logits, one for each of the batch; empty: the same
  int64_t count;                  // 0 to vocab_size
  bool is_normalised;  // logarithms of probabilities are wanted, not the logits themselves
  std::optional<GivenTokens> given;
  float* numbers;                    // [batch_size, width()]
  int64_t* token_ids;                // the same
  std::span<float> entropies;        // [batch_size]; empty: unwanted. Of what is normalised
  std::span<float> largest{};        // likewise, but of what is not; NaN where there is one
  std::span<const int64_t> named{};  // [batch_size, named_count]
  int64_t named_count = 0;
  std::span<const float> temperatures{};  // [batch_size]; empty: 1. The order stays that of logits

  int64_t width() const { return count + named_count + (given.has_value() ? 1 : 0); }
  /// What a row is divided by; a greedy one is not.
  float divisor(int64_t index) const {
    const float own = temperatures.empty() ? 1.0F : temperatures[static_cast<size_t>(index)];
    return own > 0.0F ? own : 1.0F;
  }
};

/// What is written of what the filters keep of a row: ascend_sample/sampling/step/distribution.py.
enum class FilteredForm : uint8_t {
  kProbabilities,  // 0 for the rest
  kLogits,         // as they were; -inf for the rest
  kDivided,        // logit / temperature, the logit of a greedy row; likewise
  kShifted,        // (logit - maximum) / temperature, 0 for +inf; likewise
};
inline constexpr int64_t kFilteredForms = 4;

/// What is ranked of rows as soon as their tokens are drawn, which are those that are given.
struct RankedDraws {
  RankingCall ranking;
  const int64_t* places;  // of each row of the batch, its place in the ranking; -1: none
  bool is_filtered;       // what edits and filters leave is ranked, not the logits as they came
};

/// Where what is kept of rows goes: [batch_size] each.
struct KeptSets {
  const bool* is_wanted;
  KeptList* lists;
};

/// sample_rows: a token for each request, and what else is wanted of some.
struct SamplingCall {
  Logits logits;
  int64_t batch_size;
  std::span<const int64_t> rows;  // of the logits, one for each request; empty: the same
  Requests requests;
  NoiseKeys keys;
  int64_t* selected;  // [batch_size]
  RowStatus* status;  // [batch_size]
  std::optional<KeptSets> kept = std::nullopt;
  std::optional<RankedDraws> ranked = std::nullopt;

  /// Where what is kept goes; null: it is not wanted of this row.
  KeptList* kept_of(int64_t index) const {
    return kept.has_value() && kept->is_wanted[index] ? kept->lists + index : nullptr;
  }
};

/// What stands where no token was drawn.
inline constexpr int64_t kNoToken = -1;

/// What drafts were drawn from: a row for each of them.
struct Proposals {
  Table<float> probabilities;
  Table<int64_t> candidates;  // whose probabilities they are; no data: those of all ids
  int64_t columns;            // 0: drafts were not drawn

  bool is_dense() const { return columns > 0 && candidates.data == nullptr; }
};

/// Which drafts stay: docs/drafts.md.
enum class DraftRule : uint8_t { kMatch, kStandard, kBlock };

/// By kBlock, draft i of a call that begins at a position is judged with the noise of that one plus
/// i times this.
inline constexpr int64_t kBlockApart = int64_t{1} << 40;

/// The places of requests whose drafts are trees.
struct Trees {
  const int64_t* parents;  // [places], of each the number of the one before it
  int64_t* path;           // [places], what is accepted
};

/// verify_drafts: a token for each place that is reached, of requests whose places follow one
/// another: those of its drafts, and one behind them.
struct VerifyingCall {
  SamplingCall places;  // a row for each place
  int64_t batch_size;
  const int64_t* ends;    // where the places of each request end
  const int64_t* drafts;  // of all requests, one less than places for each
  DraftRule rule;
  Proposals proposals;  // of the rules that look at them
  uint32_t acceptance;  // purposes of the noise of the latter
  uint32_t resampling;
  int64_t* accepted;           // [batch_size]
  std::optional<Trees> trees;  // none: chains

  int64_t first_place(int64_t request) const { return request == 0 ? 0 : ends[request - 1]; }

  std::span<const int64_t> drafts_of(int64_t request) const {
    const int64_t first = first_place(request);
    return {drafts + first - request, static_cast<size_t>(ends[request] - first - 1)};
  }

  /// Returns the first place of a tree that follows a place with a token; 0: none does.
  int64_t next_of(int64_t request, int64_t place, int64_t token) const {
    const std::span<const int64_t> tokens = drafts_of(request);
    const auto places = static_cast<int64_t>(tokens.size()) + 1;
    for (int64_t next = place + 1; next < places; ++next) {
      if (trees->parents[first_place(request) + next] == place &&
          tokens[static_cast<size_t>(next - 1)] == token) {
        return next;
      }
    }
    return 0;
  }
};

/// filter_logits: what each request is drawn from.
struct FilteringCall {
  Logits logits;
  int64_t batch_size;
  Requests requests;
  FilteredForm form;
  float* kept;  // [batch_size, vocab_size]
};

/// value_ranges: the range of its values that each row keeps.
struct RangesCall {
  Logits logits;
  int64_t batch_size;
  const float* temperature;
  Ranges ranges;
  float* least;  // [batch_size]
  float* most;   // the same
};

/// segment_winners: the segmented draw of rows that are parts of rows.
struct WinnersCall {
  Logits logits;
  int64_t batch_size;
  int64_t first_id;  // of the first column, where a segment begins
  const float* temperature;
  const float* min_p;
  const float* maximum;  // of whole rows
  NoiseKeys keys;
  double* scores;  // [batch_size], of the segment that wins; 0 where nothing has weight
  int64_t* ids;    // the same, in the part
};

}  // namespace ascend_sample::cpu
