// top_k_top_p_sample_v2 for devices that have no kernel of their own: whole-batch ATen calls, every
// case computed and selected by masks. Section numbers are those of docs/semantics_v2.md.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "composite.h"

namespace ascend_sample {
namespace {

using namespace composite;  // NOLINT: what both composites are made of

/// The rows in the total order.
struct Sorted {
  at::Tensor original;  // float32 by id, with what section 5 makes of special values
  at::Tensor values;    // original, by rank
  at::Tensor ids;       // of the entry at each rank
  at::Tensor massless;  // by rank: no weight, and never drawn while another entry is there
};

Sorted sort_rows(const at::Tensor& logits, bool input_is_logits) {
  Sorted rows;
  rows.original = logits.to(at::kFloat);
  // A probability that is not above 0, or NaN, counts as 0, as such a logit counts as -inf.
  const auto usable = input_is_logits ? rows.original.isnan().logical_not() : rows.original > 0;
  const double nothing = input_is_logits ? -kInfinity : 0.0;
  rows.original = where_or(usable, rows.original, nothing);
  std::tie(rows.values, rows.ids) =
      rows.original.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  rows.massless = rows.values == nothing;
  return rows;
}

/// By rank; 0 for what is no candidate (section 3.2).
at::Tensor weights_of(const Sorted& rows, const at::Tensor& candidate, bool input_is_logits) {
  const auto excluded = candidate.logical_not();
  if (input_is_logits) {
    return softmax_or_zero(
        share_infinities(rows.values, 0.0, -kInfinity).masked_fill(excluded, -kInfinity));
  }
  const auto weights = share_infinities(rows.values, 1.0, 0.0).masked_fill(excluded, 0.0);
  const auto infinite = (rows.values == kInfinity).logical_and(candidate);
  return at::where(infinite, weights / infinite.sum(-1, /*keepdim=*/true), weights);
}

}  // namespace

SampleV2Outputs top_k_top_p_sample_v2_composite(const at::Tensor& logits, const at::Tensor& k,
                                                const at::Tensor& p,
                                                const std::optional<at::Tensor>& q,
                                                const std::optional<at::Tensor>& min_p, double eps,
                                                bool is_need_logits, int64_t top_k_guess,
                                                int64_t ks_max, bool input_is_logits,
                                                bool is_need_sample_result) {
  const SampleV2Arguments arguments{logits,
                                    k,
                                    p,
                                    q,
                                    min_p,
                                    eps,
                                    is_need_logits,
                                    top_k_guess,
                                    ks_max,
                                    input_is_logits,
                                    is_need_sample_result};
  check_arguments(arguments);
  const auto vocab_size = logits.size(1);
  auto [selected, select, dense_ids, dense_weights] = allocate_outputs(arguments);
  if (logits.size(0) == 0) {
    return {selected, select, dense_ids, dense_weights};
  }

  // Section 2: what is on, for each row.
  const auto p_float = p.to(at::kFloat).unsqueeze(1);
  const auto k_column = k.unsqueeze(1);
  const auto use_k = (k_column >= 1).logical_and(k_column <= largest_k(ks_max, vocab_size));
  const auto use_p = p_float < 1;  // p <= 0 as well, which keeps one; false for NaN
  const auto by_rank = use_k.logical_or(use_p);
  const auto rows = sort_rows(logits, input_is_logits);

  // Section 3: candidates, weights, top-p, min-p. Every kept set is a prefix of the order.
  const auto rank = at::arange(vocab_size, rows.ids.options()).unsqueeze(0);
  const auto candidate = rank < where_or(use_k, k_column.to(at::kLong), vocab_size);
  const auto weights = weights_of(rows, candidate, input_is_logits);
  auto kept = candidate.clone();
  if (vocab_size > 1) {
    // An entry but the first stays while the sum before it is below p.
    kept.narrow(1, 1, vocab_size - 1)
        .logical_and_(
            (sums_before(weights) < p_float.clamp_min(0)).logical_or(use_p.logical_not()));
  }
  if (min_p.has_value()) {
    const auto accumulate = accumulate_dtype(weights);
    const auto m = min_p->to(accumulate).unsqueeze(1);
    const auto wide = weights.to(accumulate);
    const auto reaches = (wide >= m * wide.narrow(1, 0, 1)).logical_and(m < 1);
    kept.logical_and_(reaches.logical_or((m > 0).logical_not()).logical_or(rank == 0));
  }

  // Section 4: the kept entries, densely, in the order in which q is read.
  if (q.has_value() || is_need_sample_result) {
    const auto place = at::where(by_rank, rank, rows.ids);
    const auto dense = std::get<1>(at::where(kept, place, place + vocab_size).sort(-1));
    const auto is_kept = kept.gather(1, dense);
    dense_ids = rows.ids.gather(1, dense);
    dense_weights = weights.gather(1, dense).masked_fill(is_kept.logical_not(), 0.0);
    if (q.has_value()) {
      const auto massless = rows.massless.gather(1, dense).logical_or(is_kept.logical_not());
      const auto scores = draw_scores(dense_weights, massless, *q, eps);
      const auto best = scores == scores.amax(-1, /*keepdim=*/true);
      const auto winner = where_or(best, rank, vocab_size).amin(-1, /*keepdim=*/true);
      selected = dense_ids.gather(1, winner).squeeze(1);
    }
  }
  if (!q.has_value()) {
    selected = rows.ids.select(1, 0).contiguous();
  }
  if (!is_need_sample_result) {
    dense_ids = at::empty({0}, rows.ids.options());
    dense_weights = at::empty({0}, rows.original.options());
  }
  if (is_need_logits) {
    const double filler = input_is_logits ? -kInfinity : 0.0;
    select = at::full_like(rows.original, filler, at::MemoryFormat::Contiguous)
                 .scatter_(1, rows.ids, rows.values.masked_fill(kept.logical_not(), filler));
  }
  return {selected, select, dense_ids, dense_weights};
}

TORCH_LIBRARY_IMPL(ascend_sample, CompositeExplicitAutograd, m) {
  m.impl("top_k_top_p_sample_v2", &top_k_top_p_sample_v2_composite);
  m.impl("top_k_top_p_sample_v2_composite", &top_k_top_p_sample_v2_composite);
}

}  // namespace ascend_sample
