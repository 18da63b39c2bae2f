// The rules that the arguments of the sampling layer's operators obey, and their outputs.
#include <c10/util/Exception.h>

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "checks.h"
#include "contract.h"
#include "cpu/calls.h"
#include "layer_operators.h"

namespace ascend_sample {
namespace {

constexpr Shape kTable{2, "[slots, columns]", "Give a row for each slot."};

/// The edits of rows: what operators take for them, family by family.
class EditsCheck {
 public:
  EditsCheck(const char* op, const at::Tensor& logits, c10::SymInt rows)
      : op_(op), logits_(logits), rows_(std::move(rows)) {}

  void check(const EditsArguments& arguments) const {
    if (is_given({{"addend_slot", arguments.addend_slot},
                  {"addend_ids", arguments.addend_ids},
                  {"addends", arguments.addends},
                  {"addend_lengths", arguments.addend_lengths}})) {
      const at::Tensor& ids = *arguments.addend_ids;
      check_slots(*arguments.addend_slot, "addend_slot");
      check_lists(ids, "addend_ids", *arguments.addend_lengths, "addend_lengths");
      check_table(*arguments.addends, "addends", at::kFloat, ids.sym_size(0), ids.sym_size(1),
                  "as addend_ids has");
    }
    if (is_given({{"penalty_slot", arguments.penalty_slot},
                  {"penalty_ids", arguments.penalty_ids},
                  {"penalty_lengths", arguments.penalty_lengths},
                  {"occurrences", arguments.occurrences},
                  {"penalties", arguments.penalties}})) {
      const at::Tensor& ids = *arguments.penalty_ids;
      check_slots(*arguments.penalty_slot, "penalty_slot");
      check_lists(ids, "penalty_ids", *arguments.penalty_lengths, "penalty_lengths");
      check_table(*arguments.occurrences, "occurrences", at::kInt, ids.sym_size(0),
                  logits_.sym_size(1), "a count for each id, for each slot of penalty_ids");
      check_table(*arguments.penalties, "penalties", at::kFloat, 3, rows_,
                  "repetition, presence and frequency of each row");
    }
    check_masks({"mask_slot", arguments.mask_slot}, {"masks", arguments.masks});
    check_masks({"bitmask_rows", arguments.bitmask_rows}, {"bitmask", arguments.bitmask});
    if (arguments.ranges.has_value()) {
      check_ranges(*arguments.ranges);
    }
  }

  void check_ranges(const at::Tensor& ranges) const {
    check_table(ranges, "ranges", at::kFloat, cpu::kRangeFilters, rows_,
                "the number of each filter for each row");
  }

 private:
  struct Member {
    const char* name;
    const std::optional<at::Tensor>& tensor;
  };

  /// Whether a family is there; it is whole then.
  bool is_given(std::initializer_list<Member> family) const {
    const auto is_there = [](const Member& member) { return member.tensor.has_value(); };
    const auto* const given = std::find_if(family.begin(), family.end(), is_there);
    const auto* const missing = std::find_if_not(family.begin(), family.end(), is_there);
    TORCH_CHECK_VALUE(given == family.end() || missing == family.end(), op_, ": ", missing->name,
                      " must be given together with ", given->name,
                      ", got None. Give both and what belongs to them, or none of it.");
    return given != family.end();
  }

  void check_slots(const at::Tensor& slots, const char* name) const {
    check_per_row(op_, slots, name, at::kLong, rows_, logits_);
  }

  void check_lists(const at::Tensor& ids, const char* name, const at::Tensor& lengths,
                   const char* lengths_name) const {
    check_kind(op_, ids, name, at::kLong, kTable, logits_);
    check_list(op_, lengths, lengths_name, at::kLong, logits_);
    TORCH_CHECK_VALUE(expect(lengths.sym_size(0).sym_eq(ids.sym_size(0))), op_, ": ", lengths_name,
                      " must have one value for each slot of ", name, " (", ids.sym_size(0),
                      "), got ", lengths.sym_size(0), ". Give the length of each list.");
  }

  void check_table(const at::Tensor& table, const char* name, c10::ScalarType dtype,
                   const c10::SymInt& rows, const c10::SymInt& columns, const char* what) const {
    check_kind(op_, table, name, dtype, kTable, logits_);
    TORCH_CHECK_VALUE(
        expect(table.sym_size(0).sym_eq(rows)) && expect(table.sym_size(1).sym_eq(columns)), op_,
        ": ", name, " must have shape [", rows, ", ", columns, "], got ", describe(table),
        ". Give it ", what, ".");
  }

  void check_masks(const Member& slots, const Member& masks) const {
    if (!is_given({slots, masks})) {
      return;
    }
    check_slots(*slots.tensor, slots.name);
    const at::Tensor& words = *masks.tensor;
    check_table(words, masks.name, at::kInt, words.dim() == 0 ? 0 : words.sym_size(0),
                (logits_.sym_size(1) + 31) / 32, "a word for each 32 ids of the vocabulary");
  }

  const char* op_;
  const at::Tensor& logits_;
  c10::SymInt rows_;
};

void check_parameters(const char* op, const ParametersArguments& arguments,
                      const at::Tensor& logits, const c10::SymInt& rows) {
  check_per_row(op, arguments.temperature, "temperature", at::kFloat, rows, logits);
  check_per_row(op, arguments.k, "k", at::kInt, rows, logits);
  check_per_row(op, arguments.p, "p", at::kFloat, rows, logits);
  check_per_row(op, arguments.min_p, "min_p", at::kFloat, rows, logits);
}

void check_keys(const char* op, const KeysArguments& arguments, const c10::SymInt& rows,
                const at::Tensor& model, const char* model_name = "logits") {
  check_per_row(op, arguments.seed, "seed", at::kLong, rows, model, model_name);
  check_per_row(op, arguments.position, "position", at::kLong, rows, model, model_name);
  check_purpose(op, arguments.purpose);
}

/// The parameters, keys and edits of so many rows of the sampling layer.
void check_requests(const char* op, const RequestsArguments& arguments, const at::Tensor& logits,
                    const c10::SymInt& rows) {
  check_parameters(op, arguments.parameters, logits, rows);
  check_keys(op, arguments.keys, rows, logits);
  EditsCheck(op, logits, rows).check(arguments.edits);
}

/// How many of the best tokens are reported beside one that is given.
void check_best_count(const char* op, int64_t count, const at::Tensor& logits,
                      const char* name = "count") {
  TORCH_CHECK_VALUE(count >= 0, op, ": ", name, " must be >= 0, got ", count,
                    ". 0 reports the given tokens alone.");
  check_count(op, count, logits, name);
}

/// Ids whose numbers are reported as well.
void check_named(const char* op, const at::Tensor& named, const char* name, const char* rows_name,
                 const c10::SymInt& rows, const at::Tensor& logits) {
  constexpr Shape kNamed{2, "[rows, ids]", "Give as many ids for each row."};
  check_kind(op, named, name, at::kLong, kNamed, logits);
  TORCH_CHECK_VALUE(expect(named.sym_size(0).sym_eq(rows)), op, ": ", name,
                    " must have one row for each of ", rows_name, " (", rows, "), got ",
                    named.sym_size(0), ". Repeat an id where a row names fewer.");
}

/// What drafts were drawn from.
void check_proposals(const VerifyDraftsArguments& arguments, const c10::SymInt& drafts) {
  constexpr const char* kOperator = VerifyDraftsArguments::kName;
  constexpr Shape kProposals{2, "[drafts, columns]", "Give a row for each draft."};
  const at::Tensor& logits = arguments.logits;
  TORCH_CHECK_VALUE(arguments.rule >= 0 && arguments.rule <= 2, kOperator,
                    ": rule must be 0, 1 or 2, got ", arguments.rule,
                    ". They are match, standard and block.");
  check_purpose(kOperator, arguments.acceptance_purpose, "acceptance_purpose");
  check_purpose(kOperator, arguments.resampling_purpose, "resampling_purpose");
  const auto& [probabilities, candidates] =
      std::tie(arguments.draft_probabilities, arguments.draft_candidates);
  TORCH_CHECK_VALUE(probabilities.has_value() || !candidates.has_value(), kOperator,
                    ": draft_candidates must come with draft_probabilities, got them alone. Give "
                    "both, or none.");
  if (!probabilities.has_value()) {
    return;
  }
  const auto check = [&](const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                         const c10::SymInt& columns) {
    check_kind(kOperator, tensor, name, dtype, kProposals, logits);
    TORCH_CHECK_VALUE(
        expect(tensor.sym_size(0).sym_eq(drafts)) && expect(tensor.sym_size(1).sym_eq(columns)),
        kOperator, ": ", name, " must have shape [", drafts, ", ", columns, "], got ",
        describe(tensor), ". Give a row for each draft.");
  };
  c10::SymInt columns = logits.sym_size(1);
  if (candidates.has_value()) {
    columns = candidates->dim() == 2 ? candidates->sym_size(1) : 0;
    check(*candidates, "draft_candidates", at::kLong, columns);
    TORCH_CHECK_VALUE(expect(columns.sym_ge(1)), kOperator,
                      ": draft_candidates must have at least 1 column, got 0. Give the draft "
                      "itself.");
  }
  check(*probabilities, "draft_probabilities", at::kFloat, columns);
}

}  // namespace

void NoiseArguments::check() const {
  constexpr int64_t kMostLanes = int64_t{1} << 33;
  check_list(kName, keys.seed, "seed", at::kLong, keys.seed, "seed");
  check_keys(kName, keys, keys.seed.sym_size(0), keys.seed, "seed");
  TORCH_CHECK_VALUE(lanes >= 0, kName, ": lanes must be >= 0, got ", lanes,
                    ". It is the number of values a row gets.");
  TORCH_CHECK_VALUE(first_lane >= 0 && first_lane % 2 == 0, kName,
                    ": first_lane must be even and >= 0, got ", first_lane,
                    ". Two lanes share a counter: begin one earlier.");
  TORCH_CHECK_VALUE(first_lane <= kMostLanes && lanes <= kMostLanes - first_lane, kName,
                    ": lanes must end at 2^33, got lanes ", lanes, " from first_lane ", first_lane,
                    ". Use another purpose.");
}

void SampleRowsArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt count = count_rows(kName, logits, rows);
  check_requests(kName, requests, logits, count);
  if (is_kept_wanted.has_value()) {
    check_per_row(kName, *is_kept_wanted, "is_kept_wanted", at::kBool, count, logits);
  }
  if (logprobs == kNoLogprobs) {
    return;
  }
  TORCH_CHECK_VALUE(!rows.has_value(), kName,
                    ": rows must be None where logprobs are wanted, got a tensor. Pass the logits "
                    "of these rows.");
  check_best_count(kName, logprobs, logits, "logprobs");
  count_rows(kName, logits, logprob_rows, "logprob_rows");
  if (logprob_token_ids.has_value()) {
    check_named(kName, *logprob_token_ids, "logprob_token_ids", "logprob_rows",
                logprob_rows.has_value() ? logprob_rows->sym_size(0) : count, logits);
  }
}

void VerifyDraftsArguments::check() const {
  check_logits(kName, logits);
  check_list(kName, draft_ids, "draft_ids", at::kLong, logits);
  check_list(kName, ends, "ends", at::kLong, logits);
  const c10::SymInt drafts = logits.sym_size(0) - ends.sym_size(0);
  TORCH_CHECK_VALUE(expect(draft_ids.sym_size(0).sym_eq(drafts)), kName,
                    ": draft_ids must have one id less than logits have rows for each request (",
                    drafts, "), got ", draft_ids.sym_size(0),
                    ". A request with d drafts has d + 1 rows.");
  check_requests(kName, requests, logits, logits.sym_size(0));
  check_proposals(*this, drafts);
  if (parents.has_value()) {
    check_per_row(kName, *parents, "parents", at::kLong, logits.sym_size(0), logits);
    TORCH_CHECK_VALUE(rule == 0, kName, ": parents must be None for the rule ", rule,
                      ", got a tensor. The rule match, 0, takes trees.");
  }
}

void FilterLogitsArguments::check() const {
  check_logits(kName, logits);
  check_parameters(kName, parameters, logits, logits.sym_size(0));
  TORCH_CHECK_VALUE(form >= 0 && form < cpu::kFilteredForms, kName,
                    ": form must be 0, 1, 2 or 3, got ", form,
                    ". They are probabilities, logits, divided and shifted ones.");
  EditsCheck(kName, logits, logits.sym_size(0)).check(edits);
}

void ValueRangesArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt rows = logits.sym_size(0);
  check_per_row(kName, temperature, "temperature", at::kFloat, rows, logits);
  EditsCheck(kName, logits, rows).check_ranges(ranges);
}

void RowLogprobsArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt places = count_rows(kName, logits, rows);
  if (token_ids.has_value()) {
    check_per_row(kName, *token_ids, "token_ids", at::kLong, places, logits);
  }
  check_best_count(kName, count, logits);
  TORCH_CHECK_VALUE(is_normalised || !entropy, kName,
                    ": is_normalised must be True where entropies are wanted, got False. Ask for "
                    "them together with logarithms of probabilities.");
  TORCH_CHECK_VALUE(
      !is_normalised || !largest, kName,
      ": is_normalised must be False where largest ones are wanted, got True. Ask for "
      "them together with logits.");
  if (named.has_value()) {
    check_named(kName, *named, "named", "token_ids", places, logits);
  }
  if (temperature.has_value()) {
    check_per_row(kName, *temperature, "temperature", at::kFloat, places, logits);
  }
}

void SegmentWinnersArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt rows = logits.sym_size(0);
  TORCH_CHECK_VALUE(first_id >= 0 && first_id <= kMaxVocabSize && first_id % 256 == 0, kName,
                    ": first_id must be a multiple of 256 between 0 and ", kMaxVocabSize, ", got ",
                    first_id, ". It is the id of the first column, where a segment begins.");
  check_per_row(kName, maximum, "maximum", at::kFloat, rows, logits);
  check_per_row(kName, temperature, "temperature", at::kFloat, rows, logits);
  check_per_row(kName, min_p, "min_p", at::kFloat, rows, logits);
  check_keys(kName, keys, rows, logits);
}

at::Tensor FilterLogitsArguments::allocate_outputs() const {
  return allocate(logits.sym_sizes(), at::kFloat, logits);
}

ValueRangesArguments::Results ValueRangesArguments::allocate_outputs() const {
  const c10::SymInt rows[] = {logits.sym_size(0)};
  return {allocate(rows, at::kFloat, logits), allocate(rows, at::kFloat, logits)};
}

at::Tensor NoiseArguments::allocate_outputs() const {
  return allocate({keys.seed.sym_size(0), c10::SymInt(lanes)}, at::kFloat, keys.seed);
}

VerifyDraftsArguments::Results VerifyDraftsArguments::allocate_outputs() const {
  return {allocate({logits.sym_size(0)}, at::kLong, logits),
          allocate({logits.sym_size(0)}, at::kChar, logits),
          allocate({ends.sym_size(0)}, at::kLong, logits)};
}

RowLogprobsArguments::Results RowLogprobsArguments::allocate_outputs() const {
  const c10::SymInt ids = named.has_value() ? named->sym_size(1) : c10::SymInt(0);
  const c10::SymInt shape[] = {rows.has_value() ? rows->sym_size(0) : logits.sym_size(0),
                               (token_ids.has_value() ? 1 : 0) + count + ids};
  std::vector<at::Tensor> of_rows;
  const auto add = [&](bool is_there, c10::ScalarType dtype) {
    if (is_there) {
      of_rows.push_back(allocate({shape[0]}, dtype, logits));
    }
  };
  add(token_ids.has_value(), at::kLong);
  add(entropy, at::kFloat);
  add(largest, at::kFloat);
  return {allocate(shape, at::kFloat, logits), allocate(shape, at::kLong, logits),
          std::move(of_rows)};
}

SegmentWinnersArguments::Results SegmentWinnersArguments::allocate_outputs() const {
  const c10::SymInt rows[] = {logits.sym_size(0)};
  return {allocate(rows, at::kDouble, logits), allocate(rows, at::kLong, logits)};
}

}  // namespace ascend_sample
