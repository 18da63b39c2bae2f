// What the sampling layer is made of on the CPU, described as CANN's operators are in operators.h.
// Other devices take its routes in torch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace ascend_sample {

/// What names the noise of rows: docs/seeds.md.
struct KeysArguments {
  /// Their part of a schema.
  static constexpr const char* kSchema = "Tensor seed, Tensor position, int purpose=0";

  const at::Tensor& seed;
  const at::Tensor& position;
  int64_t purpose;
};

struct NoiseArguments {
  static constexpr const char* kName = "exponential_noise";
  static inline const std::string kSchema =
      std::string("(int lanes, ") + KeysArguments::kSchema + ", int first_lane=0)";
  static constexpr const char* kResults = "Tensor";  // float32 [batch, lanes]
  using Results = at::Tensor;
  void check() const;
  Results allocate_outputs() const;

  int64_t lanes;
  KeysArguments keys;
  int64_t first_lane;
};

/// What is done to the logits of rows first. Each family is there as a whole, or not at all.
struct EditsArguments {
  /// Their part of a schema.
  static constexpr const char* kSchema =
      "Tensor? addend_slot=None, Tensor? addend_ids=None, Tensor? addends=None, "
      "Tensor? addend_lengths=None, Tensor? penalty_slot=None, Tensor? penalty_ids=None, "
      "Tensor? penalty_lengths=None, Tensor? occurrences=None, Tensor? penalties=None, "
      "Tensor? mask_slot=None, Tensor? masks=None, Tensor? bitmask_rows=None, "
      "Tensor? bitmask=None, Tensor? ranges=None";

  const std::optional<at::Tensor>& addend_slot;
  const std::optional<at::Tensor>& addend_ids;
  const std::optional<at::Tensor>& addends;
  const std::optional<at::Tensor>& addend_lengths;
  const std::optional<at::Tensor>& penalty_slot;
  const std::optional<at::Tensor>& penalty_ids;
  const std::optional<at::Tensor>& penalty_lengths;
  const std::optional<at::Tensor>& occurrences;
  const std::optional<at::Tensor>& penalties;
  const std::optional<at::Tensor>& mask_slot;
  const std::optional<at::Tensor>& masks;
  const std::optional<at::Tensor>& bitmask_rows;
  const std::optional<at::Tensor>& bitmask;
  const std::optional<at::Tensor>& ranges;  // float32 [filters, rows]: cpu/calls.h names them
};

/// What every row is filtered with: a number for each.
struct ParametersArguments {
  /// Their part of a schema.
  static constexpr const char* kSchema = "Tensor temperature, Tensor k, Tensor p, Tensor min_p";

  const at::Tensor& temperature;
  const at::Tensor& k;
  const at::Tensor& p;
  const at::Tensor& min_p;
};

/// What each row, or place, is sampled with.
struct RequestsArguments {
  static inline const std::string kSchema = std::string(ParametersArguments::kSchema) + ", " +
                                            KeysArguments::kSchema + ", bool keep_ties=False, " +
                                            EditsArguments::kSchema;

  ParametersArguments parameters;
  KeysArguments keys;
  bool keep_ties;
  EditsArguments edits;
};

/// A token for each row; of rows of which that is wanted what the filters keep, as CSR, and what
/// row_logprobs reports of the tokens: by the logits as they came, or as filter_logits leaves them.
struct SampleRowsArguments {
  static constexpr const char* kName = "sample_rows";
  static constexpr int64_t kNoLogprobs = -1;
  static inline const std::string kSchema =
      std::string("(Tensor logits, Tensor? rows, ") + RequestsArguments::kSchema +
      ", *, Tensor? is_kept_wanted=None, int logprobs=-1, Tensor? logprob_rows=None, "
      "Tensor? logprob_token_ids=None, bool is_normalised=True, bool is_processed=False)";
  /// int64 [rows], int8 [rows]. Kept sets, where one is wanted: offsets, int64 [rows + 1]; ids and
  /// logprobs, int32 and float32 [kept]; their counts, int32 [rows]. Logprobs, where they are:
  /// values and ids, float32 and int64 [asking, 1 + logprobs + ids that are named]; ranks, int64
  /// [asking].
  static constexpr const char* kResults =
      "(Tensor token_ids, Tensor status, Tensor[] kept, Tensor[] logprobs)";
  using Results =
      std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>>;
  void check() const;
  // No allocate_outputs(): how much is kept depends on the logits. The fake kernel is in Python,
  // which has symbols for such sizes (sampling/step/kept.py).

  const at::Tensor& logits;
  const std::optional<at::Tensor>& rows;
  RequestsArguments requests;

  const std::optional<at::Tensor>& is_kept_wanted;  // bool [rows]; None: of none
  int64_t logprobs;  // how many of the best tokens are reported; or kNoLogprobs
  const std::optional<at::Tensor>& logprob_rows;       // int64, each once; None: all rows ask
  const std::optional<at::Tensor>& logprob_token_ids;  // int64 [asking, ids], reported as well
  bool is_normalised;
  bool is_processed;
};

struct VerifyDraftsArguments {
  static constexpr const char* kName = "verify_drafts";
  static inline const std::string kSchema =
      std::string("(Tensor logits, Tensor draft_ids, Tensor ends, ") + RequestsArguments::kSchema +
      ", int rule=0, Tensor? draft_probabilities=None, Tensor? draft_candidates=None, "
      "int acceptance_purpose=2, int resampling_purpose=3, Tensor? parents=None)";
  /// int64 [places], int8 [places], int64 [requests].
  static constexpr const char* kResults = "(Tensor token_ids, Tensor status, Tensor accepted)";
  using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  const at::Tensor& draft_ids;
  const at::Tensor& ends;
  RequestsArguments requests;  // of places

  // What drafts were drawn from, and the noise by which they are judged then.
  int64_t rule;  // 0: match, 1: standard, 2: block
  const std::optional<at::Tensor>& draft_probabilities;
  const std::optional<at::Tensor>& draft_candidates;
  int64_t acceptance_purpose;
  int64_t resampling_purpose;

  // int64 [places], of each the place that it follows among its request's, -1 for the first. None:
  // they are chains.
  const std::optional<at::Tensor>& parents;
};

/// Whole rows of what is drawn from.
struct FilterLogitsArguments {
  static constexpr const char* kName = "filter_logits";
  static inline const std::string kSchema =
      std::string("(Tensor logits, ") + ParametersArguments::kSchema +
      ", int form, bool keep_ties=False, " + EditsArguments::kSchema + ")";
  static constexpr const char* kResults = "Tensor";  // float32 [batch, vocab_size]
  using Results = at::Tensor;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  ParametersArguments parameters;
  int64_t form;  // what is written: FilteredForm in cpu/calls.h
  bool keep_ties;
  EditsArguments edits;
};

/// Which values of each row its ranges keep: docs/filters.md, "Ranges of values".
struct ValueRangesArguments {
  static constexpr const char* kName = "value_ranges";
  static constexpr const char* kSchema = "(Tensor logits, Tensor temperature, Tensor ranges)";
  /// float32 [batch], float32 [batch]: the least and the most.
  static constexpr const char* kResults = "(Tensor least, Tensor most)";
  using Results = std::tuple<at::Tensor, at::Tensor>;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  const at::Tensor& temperature;
  const at::Tensor& ranges;
};

/// The first of the total order of rows, behind a token that is given and before some that are
/// named: their logits, or the logarithms of their probabilities.
struct RowLogprobsArguments {
  static constexpr const char* kName = "row_logprobs";
  static constexpr const char* kSchema =
      "(Tensor logits, Tensor? rows, Tensor? token_ids, int count, bool is_normalised=True, "
      "bool entropy=False, Tensor? named=None, Tensor? temperature=None, bool largest=False)";
  /// float32 and int64 [rows, given + count + named ids]. Of each row, where they are there: the
  /// rank of the given token, int64; the entropy, float32; the largest logit, float32, or NaN where
  /// there is one.
  static constexpr const char* kResults = "(Tensor values, Tensor token_ids, Tensor[] of_rows)";
  using Results = std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>>;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  const std::optional<at::Tensor>& rows;
  const std::optional<at::Tensor>& token_ids;  // int64 [rows], one for each
  int64_t count;
  bool is_normalised;
  bool entropy;                            // of what is normalised
  const std::optional<at::Tensor>& named;  // int64 [rows, ids], whose numbers follow the best ones'
  // float32 [rows], which numbers are divided by: the order stays that of the logits. 0 counts
  // as 1.
  const std::optional<at::Tensor>& temperature;
  bool largest;  // of what is not normalised
};

/// What a rank that has a part of the vocabulary finds of rows: docs/vocabulary_parallel.md.
struct SegmentWinnersArguments {
  static constexpr const char* kName = "segment_winners";
  static inline const std::string kSchema =
      std::string(
          "(Tensor logits, int first_id, Tensor maximum, Tensor temperature, "
          "Tensor min_p, ") +
      KeysArguments::kSchema + ")";
  /// float64 [rows], int64 [rows].
  static constexpr const char* kResults = "(Tensor scores, Tensor token_ids)";
  using Results = std::tuple<at::Tensor, at::Tensor>;
  void check() const;
  Results allocate_outputs() const;

  const at::Tensor& logits;
  int64_t first_id;
  const at::Tensor& maximum;
  const at::Tensor& temperature;
  const at::Tensor& min_p;
  KeysArguments keys;
};

/// Calls `visit` for each operator of the sampling layer.
template <typename Visit>
void for_each_of_layer(Visit visit) {
  [&]<typename... Arguments>(std::tuple<Arguments*...>) {
    (visit.template operator()<Arguments>(), ...);
  }(std::tuple<NoiseArguments*, SampleRowsArguments*, VerifyDraftsArguments*,
               FilterLogitsArguments*, ValueRangesArguments*, RowLogprobsArguments*,
               SegmentWinnersArguments*>());
}

}  // namespace ascend_sample
