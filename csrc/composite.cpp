// The operator for devices that have no kernel of their own: whole-batch ATen calls, every branch
// computed and selected by masks. Section numbers are those of docs/semantics.md.
#include "composite.h"

#include <ATen/ATen.h>
#include <torch/library.h>

namespace ascend_sample {
namespace composite {

at::ScalarType accumulate_dtype(const at::Tensor& tensor) {
  const bool has_double = tensor.is_cpu() || tensor.is_cuda();
  return has_double ? at::kDouble : at::kFloat;
}

at::Tensor where_or(const at::Tensor& condition, const at::Tensor& tensor, c10::Scalar other) {
  return at::where(condition, tensor, at::full({}, other, tensor.options()));
}

at::Tensor share_infinities(const at::Tensor& sorted, double infinite, double finite) {
  const auto is_infinite = sorted == kInfinity;
  return at::where(is_infinite.narrow(1, 0, 1),
                   at::where(is_infinite, infinite, finite).to(at::kFloat), sorted);
}

at::Tensor softmax_or_zero(const at::Tensor& values) {
  const auto weights = at::softmax(values, -1, accumulate_dtype(values)).to(at::kFloat);
  return weights.masked_fill(values == -kInfinity, 0.0);
}

at::Tensor sums_before(const at::Tensor& weights) {
  return weights.cumsum(-1, accumulate_dtype(weights)).narrow(1, 0, weights.size(1) - 1);
}

at::Tensor draw_scores(const at::Tensor& weights, const at::Tensor& massless, const at::Tensor& q,
                       double eps) {
  auto scores = weights / (q.abs() + static_cast<float>(eps));
  scores =
      at::where(weights == 0, at::zeros_like(scores), scores);  // 0 / 0 where q and eps are both 0
  scores = scores.masked_fill(q.isnan(), -1.0);
  return scores.masked_fill(massless, -kInfinity);
}

}  // namespace composite

using namespace composite;  // NOLINT: the other half of this file

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample_composite(
    const at::Tensor& logits, const at::Tensor& k, const at::Tensor& p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess) {
  const SampleArguments arguments{logits, k, p, q, eps, is_need_logits, top_k_guess};
  check_arguments(arguments);
  const auto batch_size = logits.size(0);
  const auto vocab_size = logits.size(1);
  if (batch_size == 0) {
    return allocate_outputs(arguments);
  }

  // Section 2: what is on, for each row; the total order.
  const auto p_float = p.to(at::kFloat).unsqueeze(1);
  const auto k_column = k.unsqueeze(1);
  const auto use_k = (k_column >= 1).logical_and(k_column <= std::min(vocab_size, kMaxTopK));
  const auto use_p = (p_float > 0).logical_and(p_float < 1);
  auto original = logits.to(at::kFloat);
  original = where_or(original.isnan().logical_not(), original, -kInfinity);
  const auto [sorted, ids] = original.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);

  // Section 5: entries of +inf share the whole mass.
  const auto values = share_infinities(sorted, 0.0, -kInfinity);

  // Section 3: candidates, top-p, weights.
  const auto rank = at::arange(vocab_size, ids.options()).unsqueeze(0);
  const auto limit = where_or(use_k, k_column.to(at::kLong), vocab_size);
  const auto candidate = rank < limit;
  const auto probabilities =
      softmax_or_zero(values.masked_fill(candidate.logical_not(), -kInfinity));
  auto kept = candidate.clone();
  if (vocab_size > 1) {
    kept.narrow(1, 1, vocab_size - 1)
        .logical_and_((sums_before(probabilities) <= p_float).logical_or(use_p.logical_not()));
  }
  at::Tensor selected;
  if (q.has_value()) {
    const auto only_p = use_p.logical_and(use_k.logical_not());
    const auto neither = use_p.logical_or(use_k).logical_not();
    // In branch B the operator softmaxes the probabilities a second time.
    const auto exponents =
        at::where(only_p, probabilities, values).masked_fill(kept.logical_not(), -kInfinity);
    const auto kept_values = values.masked_fill(kept.logical_not(), -kInfinity);
    const auto weights = softmax_or_zero(exponents).masked_fill(kept_values == -kInfinity, 0.0);
    const auto noise = at::where(neither, q->gather(1, ids), *q);
    const auto scores = draw_scores(weights, kept_values == -kInfinity, noise, eps);
    // The lowest i on ties: i is the vocabulary id in branch C and the rank in A and B.
    const auto index = at::where(neither, ids, rank);
    const auto best = scores == scores.amax(-1, /*keepdim=*/true);
    const auto winner = where_or(best, index, vocab_size).amin(-1, /*keepdim=*/true);
    selected = at::where(neither, winner, ids.gather(1, winner)).squeeze(1);
  } else {
    selected = ids.select(1, 0).contiguous();
  }
  if (!is_need_logits) {
    return {selected, at::empty({0}, original.options())};
  }
  const auto select = at::full_like(original, -kInfinity, at::MemoryFormat::Contiguous)
                          .scatter_(1, ids, sorted.masked_fill(kept.logical_not(), -kInfinity));
  return {selected, select};
}

TORCH_LIBRARY_IMPL(ascend_sample, CompositeExplicitAutograd, m) {
  m.impl("top_k_top_p_sample", &top_k_top_p_sample_composite);
  m.impl("top_k_top_p_sample_composite", &top_k_top_p_sample_composite);
}

}  // namespace ascend_sample
