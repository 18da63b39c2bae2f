// The operators for devices that have no kernel of their own: whole-batch ATen calls, no loop over
// rows and no synchronisation; every branch is computed and selected by masks. Section numbers are
// those of docs/semantics.md and docs/semantics_v2.md, which have the same ones; `filter` has those
// of docs/semantics_apply.md.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>

#include "adapter.h"
#include "checks.h"
#include "operators.h"

namespace ascend_sample {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestFinite = std::numeric_limits<float>::max();

/// Where the operators differ, and what the second has beyond the first: here as the first has it.
struct Rules {
  bool is_second = false;
  int64_t ks_max = kMaxTopK;
  std::optional<at::Tensor> min_p;
  bool input_is_logits = true;
  bool is_need_sample_result = false;
};

Rules rules_of(const SampleArguments&) { return {}; }

Rules rules_of(const SampleV2Arguments& arguments) {
  return {.is_second = true,
          .ks_max = arguments.ks_max,
          .min_p = arguments.min_p,
          .input_is_logits = arguments.input_is_logits,
          .is_need_sample_result = arguments.is_need_sample_result};
}

/// Sums are integers, in units of 2^-40 of a row's largest weight: exact in whatever order a device
/// adds, and far from overflow with 2^20 entries. (Sums in float32 were off by 1e-3 in such rows,
/// and a float64 is missing or emulated on many devices.)
constexpr double kSumUnits = static_cast<double>(int64_t{1} << 40);
/// A limit that no sum of a row reaches, also where probabilities do not sum to 1.
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// q-weighted score of every candidate (section 4), with the special values of section 5.
/// `masked` entries lose against all others.
at::Tensor draw_scores(const at::Tensor& weights, const at::Tensor& masked, const at::Tensor& q,
                       double eps) {
  auto scores = weights / (q.abs() + static_cast<float>(eps));
  scores = scores.masked_fill(weights == 0, 0.0);  // 0 / 0 where q and eps are both 0
  scores = scores.masked_fill(q.isnan(), -1.0);
  return scores.masked_fill(masked, -kInfinity);
}

/// The rows in the total order.
struct Sorted {
  at::Tensor original;     // float32 by id, with what section 5 makes of special values
  at::Tensor values;       // original, by rank
  at::Tensor ids;          // of the entry at each rank
  at::Tensor largest;      // [rows, 1] of the values
  at::Tensor is_infinite;  // [rows, 1]: the largest is
  at::Tensor massless;     // by rank: no weight
  at::Tensor masked;       // by rank: never drawn while another entry is there
};

Sorted sort_rows(const at::Tensor& logits, const Rules& rules) {
  Sorted rows;
  // A probability that is not above 0, or NaN, counts as 0, as such a logit counts as -inf.
  const double nothing = rules.input_is_logits ? -kInfinity : 0.0;
  rows.original = logits.to(at::kFloat).nan_to_num(nothing, kInfinity, -kInfinity);
  if (!rules.input_is_logits) rows.original.masked_fill_(rows.original <= 0, 0.0);
  std::tie(rows.values, rows.ids) =
      rows.original.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  rows.largest = rows.values.narrow(1, 0, 1);
  rows.is_infinite = rows.largest == kInfinity;
  rows.masked = rows.values == nothing;
  // Beside +inf, finite logits of the first operator weigh nothing, and are drawn where NaN noise
  // forbids the others.
  rows.massless = rules.is_second
                      ? rows.masked
                      : rows.values <= at::where(rows.is_infinite, kLargestFinite, nothing);
  return rows;
}

/// The weights of the candidates (section 3), by rank.
struct Weights {
  at::Tensor parts;  // float32, in proportion to the weights; 0 for what is no candidate
  at::Tensor sums;   // int64, of each with all before it
  at::Tensor whole;  // int64 [rows, 1]: what a weight of 1 adds

  at::Tensor normalized() const { return parts / (whole.to(at::kFloat) / kSumUnits); }
};

Weights weights_of(const Sorted& rows, const at::Tensor& candidate, const Rules& rules) {
  // Entries of +inf share the whole mass, and a row of -inf has none.
  Weights weights;
  auto& parts = weights.parts;
  if (rules.input_is_logits) {
    const auto below = rows.values - rows.largest.clamp_min(-kLargestFinite);
    parts = below.nan_to_num_(/*nan=*/0.0, /*posinf=*/0.0, /*neginf=*/-kInfinity).exp_();
  } else {
    parts = at::where(rows.is_infinite, (rows.values == kInfinity).to(at::kFloat), rows.values);
  }
  parts.masked_fill_(candidate.logical_not(), 0.0);
  weights.sums = (parts.clamp_max(1.0) * kSumUnits).to(at::kLong).cumsum(-1);
  weights.whole = weights.sums.narrow(1, weights.sums.size(1) - 1, 1).clamp_min(1);
  if (!rules.input_is_logits) {
    weights.whole = at::where(rows.is_infinite, weights.whole, static_cast<int64_t>(kSumUnits));
  }
  return weights;
}

/// Of each entry, by rank, its position among the kept ids of the row in the order of the
/// vocabulary; of no meaning for an entry that is not kept.
at::Tensor position_among_kept(const at::Tensor& ids, const at::Tensor& kept) {
  const auto by_id =
      at::zeros_like(kept, kept.options().dtype(at::kFloat)).scatter_(1, ids, kept.to(at::kFloat));
  const auto count = by_id.cumsum(-1).gather(1, ids);  // exact in float32: at most 2^20
  return (count - 1).clamp_min(0).to(at::kLong);
}

template <typename Arguments>
SampleV2Arguments::Results sample(const Arguments& arguments) {
  const auto& logits = arguments.logits;
  const auto vocab_size = logits.size(1);
  const Rules rules = rules_of(arguments);

  // Section 2: what is on, for each row.
  const auto p = arguments.p.to(at::kFloat).unsqueeze(1);
  const auto k = arguments.k.unsqueeze(1);
  const auto use_k = (k >= 1).logical_and(k <= largest_k(rules.ks_max, vocab_size));
  // False for NaN. Where p <= 0, the second operator has one candidate, whatever its sums are.
  const auto use_p = rules.is_second ? p < 1 : (p > 0).logical_and(p < 1);
  const auto by_rank = use_k.logical_or(use_p);
  auto candidates = k.masked_fill(use_k.logical_not(), vocab_size);
  if (rules.is_second) candidates.masked_fill_(p <= 0, 1);
  const auto rows = sort_rows(logits, rules);
  const auto& ids = rows.ids;

  // Section 3: candidates, weights, top-p, min-p. Every kept set is a prefix of the order.
  const auto rank = at::arange(vocab_size, ids.options()).unsqueeze(0);
  auto kept = rank < candidates;
  const auto weights = weights_of(rows, kept, rules);
  if (vocab_size > 1) {
    // An entry but the first stays while the sum before it is at most p: below p, of the second.
    const auto before = weights.sums.narrow(1, 0, vocab_size - 1);
    const auto limit = (weights.whole * p).to(at::kLong).masked_fill(use_p.logical_not(), kNoLimit);
    kept.narrow(1, 1, vocab_size - 1)
        .logical_and_(rules.is_second ? before < limit : before <= limit);
  }
  if (rules.min_p.has_value()) {
    const auto m = rules.min_p->to(at::kFloat).unsqueeze(1);
    const auto reaches = (weights.parts >= m * weights.parts.narrow(1, 0, 1)).logical_and(m < 1);
    kept.logical_and_(reaches.logical_or((m > 0).logical_not()).logical_or(rank == 0));
  }
  const auto dropped = kept.logical_not();

  // Section 4: the draw. `place` is that of an entry's noise, and decides ties.
  const auto place = at::where(by_rank, rank, ids);
  at::Tensor selected;
  if (arguments.q.has_value()) {
    auto drawn = weights.normalized();
    if (!rules.is_second) {
      // A softmax among the kept, which differs by a factor; with top-p alone, of probabilities.
      const auto only_p = use_p.logical_and(use_k.logical_not());
      drawn = at::where(only_p, drawn.exp(), drawn);
    }
    const auto noise_place =
        rules.min_p.has_value() ? at::where(by_rank, rank, position_among_kept(ids, kept)) : place;
    const auto scores =
        draw_scores(drawn.masked_fill(rows.massless, 0.0), rows.masked.logical_or(dropped),
                    arguments.q->gather(1, noise_place), arguments.eps);
    const auto best = (scores == scores.amax(-1, /*keepdim=*/true)).logical_and(kept);
    const auto winner = at::where(best, place, vocab_size).amin(-1, /*keepdim=*/true);
    selected = at::where(by_rank, ids.gather(1, winner), winner).squeeze(1);
  } else {
    // A copy also of one id, which would keep the whole row alive.
    selected = ids.select(1, 0).clone(at::MemoryFormat::Contiguous);
  }

  // What else is wanted.
  auto select = at::empty({0}, rows.original.options());
  auto dense_ids = at::empty({0}, ids.options());
  auto dense_weights = at::empty({0}, rows.original.options());
  if (arguments.is_need_logits) {
    const double filler = rules.input_is_logits ? -kInfinity : 0.0;
    select = at::full_like(rows.original, filler, at::MemoryFormat::Contiguous)
                 .scatter_(1, ids, rows.values.masked_fill(dropped, filler));
  }
  if (rules.is_need_sample_result) {
    const auto dense = std::get<1>(at::where(kept, place, place + vocab_size).sort(-1));
    dense_ids = ids.gather(1, dense);
    dense_weights =
        weights.normalized().gather(1, dense).masked_fill(dropped.gather(1, dense), 0.0);
  }
  return {selected, select, dense_ids, dense_weights};
}

/// The third operator: of each row in ascending order, what is kept is its end.
at::Tensor filter(const ApplyArguments& arguments) {
  const auto vocab_size = arguments.logits.size(1);
  const auto original = arguments.logits.nan_to_num(-kInfinity, kInfinity, -kInfinity);
  const auto [values, ids] = original.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/false);
  auto dropped = at::zeros_like(values, values.options().dtype(at::kBool));
  if (arguments.k.has_value()) {  // top-k: ties at the k-th value stay
    const auto k = arguments.k->unsqueeze(1).to(at::kLong);
    const auto is_off = (k <= 0).logical_or(k >= vocab_size);
    dropped = values < values.gather(1, (vocab_size - k).masked_fill(is_off, 0));
  }
  if (arguments.p.has_value()) {  // top-p
    Sorted in_float32;
    in_float32.values = values.to(at::kFloat);
    in_float32.largest = in_float32.values.narrow(1, vocab_size - 1, 1);
    const auto weights = weights_of(in_float32, dropped.logical_not(), Rules());
    const auto tail = (1.0F - arguments.p->to(at::kFloat)).nan_to_num(-1.0).unsqueeze(1);
    const auto limit = (weights.whole * tail.clamp(0.0, 1.0)).to(at::kLong);
    // A weight may be less than a unit of the sums, and exceeds a tail of 0 all the same.
    const auto exceeds = at::where(tail == 0, weights.parts > 0, weights.sums > limit);
    dropped.logical_or_(exceeds.logical_or(tail < 0).logical_not());
  }
  dropped.narrow(1, vocab_size - 1, 1).fill_(false);
  return at::full_like(original, -kInfinity, at::MemoryFormat::Contiguous)
      .scatter_(1, ids, values.masked_fill(dropped, -kInfinity));
}

template <typename Arguments>
typename Arguments::Results composite(const Arguments& arguments) {
  arguments.check();
  if (arguments.logits.size(0) == 0) {
    return arguments.allocate_outputs();
  }
  if constexpr (std::is_same_v<Arguments, ApplyArguments>) {
    return {filter(arguments)};
  } else {
    const auto results = sample(arguments);
    if constexpr (std::is_same_v<Arguments, SampleV2Arguments>) {
      return results;
    } else {
      return {std::get<0>(results), std::get<1>(results)};
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CompositeExplicitAutograd, m) {
  for_each_of_cann([&]<typename Arguments>() {
    m.impl(Arguments::kName, adapted<&composite<Arguments>>);
    m.impl(variant_name<Arguments>(kComposite).c_str(), adapted<&composite<Arguments>>);
  });
}

}  // namespace ascend_sample
