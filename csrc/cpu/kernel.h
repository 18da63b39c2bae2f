// The kernel of one instruction set: included by the file that is compiled for it.
#pragma once

#include "best_tokens.h"
#include "dense.h"
#include "min_p.h"
#include "noise.h"
#include "probabilities.h"
#include "temperature.h"
#include "top_p.h"
#include "unfiltered.h"
#include "unmasked.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

/// Top-k: the first k of the total order, then perhaps top-p and min-p.
template <typename Type>
size_t sample_top_k(const Row<Type>& row, size_t k, bool use_p, const RowArguments& arguments,
                    Scratch& scratch, Workspace& work) {
  if constexpr (kHasFewValues<Type>) {
    if (k > kFewSorted) {
      return Counted<Type>(row, arguments, scratch, work).sample_top_k(k, use_p);
    }
  }
  const Groups groups = groups_for(k, row.vocab_size(), work);
  float maximum = scan_first(row, groups, arguments);
  if (arguments.kept != nullptr) {
    fill(arguments.kept, row.vocab_size(), -kInfinity);
  }
  if (maximum == -kInfinity) {
    return 0;
  }
  const Candidates candidates = first_of_total_order(row, groups, k, work);
  size_t count = candidates.count;
  double total = 0;
  if (use_p || arguments.uses_min_p() || arguments.is_drawn()) {
    if (arguments.temperature != 1.0F) {
      maximum = divide(candidates.values, count, maximum, arguments.temperature, candidates.values);
    }
    total = exp_differences(candidates.values, count, maximum, work.exponentials);
    const auto probability_of = [&](size_t rank) {
      return static_cast<float>(work.exponentials[rank] / total);
    };
    if (use_p) {
      const size_t n = count_until_exceeding(work.exponentials, count, total, arguments.target());
      count = n == 0 ? count : n;
    }
    count = arguments.count_staying(count, probability_of);
  }
  if (arguments.kept != nullptr) {
    for (size_t rank = 0; rank < count; ++rank) {
      arguments.kept[candidates.ids[rank]] = candidates.values[rank];
    }
  }
  if (!arguments.is_drawn()) {
    return candidates.ids[0];
  }
  total = arguments.is_second ? total : sum(work.exponentials, count);
  return candidates
      .ids[draw(work.exponentials, count, total, arguments.noise, arguments.eps, work.scores)];
}

/// The row with 0 for +inf and -inf for everything else: what is left where a softmax gives the
/// whole mass to the entries of +inf.
template <typename Type>
Row<Float32> infinities_of(const Row<Type>& row, Scratch& scratch, Workspace& work) {
  auto* values =
      reinterpret_cast<float*>(scratch.reserve(Scratch::kCopy, row.vocab_size() * sizeof(float)));
  const Floats infinity = splat(kInfinity);
  const size_t whole = row.vocab_size() / kLine;
  for (size_t line = 0; line < whole; ++line) {
    const Line logits = Type::load(row.line(line));
    float* out = values + line * kLine;
    store(out, select(is_equal(logits.first, infinity), Floats{}, splat(-kInfinity)));
    store(out + kLanes, select(is_equal(logits.second, infinity), Floats{}, splat(-kInfinity)));
  }
  for (size_t id = whole * kLine; id < row.vocab_size(); ++id) {
    values[id] = row.value(id) == kInfinity ? 0.0F : -kInfinity;
  }
  return {values, row.vocab_size(), work.last_chunk_of_copy};
}

/// Top-p alone.
template <typename Type>
size_t sample_top_p(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch,
                    Workspace& work) {
  TopP<Type> top_p(row, arguments, scratch, work);
  if (const std::optional<size_t> selected = top_p.sample(scratch.history)) {
    return *selected;
  }
  const Row<Float32> infinities = infinities_of(row, scratch, work);
  TopP<Float32> shared(infinities, arguments, scratch, work);
  const size_t selected = *shared.sample(scratch.history);
  for (size_t id = 0; arguments.kept != nullptr && id < row.vocab_size(); ++id) {
    arguments.kept[id] = arguments.kept[id] == 0.0F ? kInfinity : -kInfinity;
  }
  return selected;
}

/// The drawn id of a row of which little is above -inf, and its status where that is wanted; none
/// for other rows, and where the little does not decide. Without top-k, logits are divided by the
/// temperature first.
template <typename Type>
std::optional<size_t> sample_unmasked(const Row<Type>& row, RowArguments arguments, int64_t most_k,
                                      float temperature, Scratch& scratch, Workspace& work) {
  const bool use_k = arguments.uses_k(most_k);
  const bool keeps_one = arguments.keeps_one() || arguments.min_p >= 1.0F;
  const bool is_by_min_p = !use_k && !arguments.uses_p() && arguments.uses_min_p();
  // Few of a row, and what min-p alone keeps, take hardly more than a pass anyway.
  const bool is_fast = keeps_one || is_by_min_p || (use_k && arguments.k <= int32_t{kFewSorted});
  if (!arguments.is_drawn() || arguments.kept != nullptr || is_fast) {
    return std::nullopt;
  }
  const std::optional<Unmasked<Type>> unmasked = gather_unmasked(row, work);
  if (!unmasked.has_value()) {
    return std::nullopt;
  }
  if (arguments.status != nullptr) {
    *arguments.status = unmasked->status;
    arguments.status = nullptr;
  }
  const size_t count = unmasked->count;
  if (count == 0) {
    return 0;
  }
  using Storage = typename Type::Storage;
  const Row<Type> rest(unmasked->logits, count,
                       reinterpret_cast<Storage*>(work.last_chunk_of_copy));
  std::optional<size_t> place;
  if (use_k) {
    arguments.temperature = temperature;
    place = sample_top_k(rest, static_cast<size_t>(arguments.k), arguments.uses_p(), arguments,
                         scratch, work);
  } else if (temperature == 1.0F) {
    place = draw_unmasked(rest, unmasked->ids, arguments, scratch, work);
  } else {
    float maximum = -kInfinity;
    float* const values = work.run_values;  // logits of float32 are not counted
    for (size_t i = 0; i < count; ++i) {
      values[i] = rest.value(i);
      maximum = values[i] > maximum ? values[i] : maximum;
    }
    divide(values, count, maximum, temperature, values);
    const Row<Float32> divided(values, count, work.last_chunk_of_copy);
    place = draw_unmasked(divided, unmasked->ids, arguments, scratch, work);
  }
  return place.has_value() ? std::optional<size_t>(unmasked->ids[*place]) : std::nullopt;
}

/// No filter.
template <typename Type>
size_t sample_unfiltered(const Row<Type>& row, const RowArguments& arguments, Scratch& scratch,
                         Workspace& work) {
  if (arguments.kept != nullptr) {
    copy_above(row, -kInfinity, arguments.kept);
  }
  if (!arguments.is_drawn()) {
    RowArguments best = arguments;
    best.kept = nullptr;
    return sample_top_k(row, 1, false, best, scratch, work);
  }
  const float* q = contiguous(arguments.noise, row.vocab_size(), scratch);
  float maximum = 0;
  std::optional<size_t> selected = draw_unfiltered(row, q, arguments.eps, work, maximum);
  if (!selected.has_value() && maximum == kInfinity) {
    float ignored = 0;
    selected = draw_unfiltered(infinities_of(row, scratch, work), q, arguments.eps, work, ignored);
  }
  return selected.has_value() ? *selected
                              : compare_all_scores(row, Noise{q, 1}, arguments.eps, maximum,
                                                   sum_exactly(row, maximum, work), work);
}

template <typename Type>
size_t sample_row(const Row<Type>& row, const RowArguments& arguments, int64_t most_k,
                  Scratch& scratch, Workspace& work) {
  const bool use_k = arguments.uses_k(most_k);
  const bool use_p = arguments.uses_p();
  const bool is_best_wanted = !arguments.is_drawn() && arguments.kept == nullptr;
  if (is_best_wanted || arguments.keeps_one() || arguments.min_p >= 1.0F) {
    // Whatever else is kept, the first of the total order is.
    return sample_top_k(row, 1, false, arguments, scratch, work);
  }
  if (use_k) {
    return sample_top_k(row, static_cast<size_t>(arguments.k), use_p, arguments, scratch, work);
  }
  if (use_p) {
    return sample_top_p(row, arguments, scratch, work);
  }
  return arguments.uses_min_p() ? sample_min_p(row, arguments, scratch, work)
                                : sample_unfiltered(row, arguments, scratch, work);
}

/// The largest k that is honoured.
inline int64_t largest_k_of(const Batch& batch) {
  return batch.most_k < batch.vocab_size ? batch.most_k : batch.vocab_size;
}

/// A row of the sampling layer. Where division by the temperature makes logits
/// equal, top-k rows still take them by the logits, the others by the id; their weights are equal.
template <typename Type>
size_t sample_request(const Row<Type>& row, const Batch& batch, int64_t index, Scratch& scratch,
                      Workspace& work) {
  const Sampling& sampling = *batch.sampling;
  const float temperature = sampling.temperature[index];
  NoiseLanes lanes({sampling.seed[index], sampling.position[index], sampling.stream},
                   reinterpret_cast<float*>(
                       scratch.reserve(Scratch::kNoise, row.lines() * kLine * sizeof(float))));
  RowArguments arguments{.is_second = true,
                         .k = batch.k[index * batch.k_stride],
                         .p = sampling.p[index],
                         .min_p = sampling.min_p[index],
                         .eps = 0.0F,
                         .noise = {lanes.data(), 1, &lanes},
                         .kept = nullptr,
                         .has_to_exceed_p = true,
                         .status = &sampling.status[index]};
  if (!(temperature > 0.0F) || arguments.k == 1) {
    arguments.noise = {nullptr, 1};
    return sample_top_k(row, 1, false, arguments, scratch, work);
  }
  const int64_t most_k = largest_k_of(batch);
  if (const std::optional<size_t> drawn =
          sample_unmasked(row, arguments, most_k, temperature, scratch, work)) {
    return *drawn;
  }
  if (arguments.uses_k(most_k)) {
    arguments.temperature = temperature;
    return sample_row(row, arguments, most_k, scratch, work);
  }
  const FloatCensus census = take_census(row);
  *arguments.status = census.status();
  arguments.status = nullptr;
  const float maximum = census.maximum();
  if (temperature == 1.0F || maximum == kInfinity || maximum == -kInfinity) {
    return sample_row(row, arguments, most_k, scratch, work);
  }
  return sample_row(divide(row, maximum, temperature, scratch, work), arguments, most_k, scratch,
                    work);
}

/// The distribution of a row of the sampling layer, into `kept`. Rows are divided by the
/// temperature first.
template <typename Type>
void filter_request(const Row<Type>& row, const Batch& batch, int64_t index, Scratch& scratch,
                    Workspace& work) {
  const Filtering& filtering = *batch.filtering;
  const float temperature = filtering.temperature[index];
  float* kept = batch.kept + index * batch.vocab_size;
  RowArguments arguments{.is_second = true,
                         .k = batch.k[index * batch.k_stride],
                         .p = filtering.p[index],
                         .min_p = filtering.min_p[index],
                         .eps = 0.0F,
                         .noise = {nullptr, 1},
                         .kept = kept,
                         .has_to_exceed_p = true};
  const float maximum = take_census(row).maximum();
  const bool is_greedy = !(temperature > 0.0F);
  if (is_greedy) {
    arguments.k = 1;
  }
  if (is_greedy || temperature == 1.0F || maximum == kInfinity || maximum == -kInfinity) {
    sample_row(row, arguments, largest_k_of(batch), scratch, work);
    normalize_kept(kept, row.vocab_size(), maximum);
  } else {
    sample_row(divide(row, maximum, temperature, scratch, work), arguments, largest_k_of(batch),
               scratch, work);
    normalize_kept(kept, row.vocab_size(), 0.0F);
  }
}

template <typename Type>
void sample_rows_of(const Batch& batch, int64_t first_row, int64_t last_row, Scratch& scratch) {
  using Storage = typename Type::Storage;
  const auto vocab_size = static_cast<size_t>(batch.vocab_size);
  const int64_t most_k = largest_k_of(batch);
  Workspace work(scratch, vocab_size);
  for (int64_t index = first_row; index < last_row; ++index) {
    const bool is_elsewhere = batch.sampling != nullptr && batch.sampling->rows != nullptr;
    const int64_t place = is_elsewhere ? batch.sampling->rows[index] : index;
    const Storage* logits =
        static_cast<const Storage*>(batch.logits) + place * batch.logits_row_stride;
    if (batch.logits_column_stride != 1) {
      auto* copy = reinterpret_cast<Storage*>(
          scratch.reserve(Scratch::kLogits, vocab_size * sizeof(Storage)));
      for (size_t id = 0; id < vocab_size; ++id) {
        copy[id] = logits[static_cast<int64_t>(id) * batch.logits_column_stride];
      }
      logits = copy;
    }
    const Row<Type> row(logits, vocab_size, reinterpret_cast<Storage*>(work.last_chunk));
    if (batch.ranking != nullptr) {
      rank_row(row, *batch.ranking, index, scratch, work);
      continue;
    }
    if (batch.filtering != nullptr) {
      filter_request(row, batch, index, scratch, work);
      continue;
    }
    if (batch.sampling != nullptr) {
      batch.selected[index] =
          static_cast<int64_t>(sample_request(row, batch, index, scratch, work));
      continue;
    }
    const auto number_of = [index](const void* numbers, int64_t stride) {
      return Type::value_of(static_cast<const Storage*>(numbers)[index * stride]);
    };
    const RowArguments arguments{
        .is_second = batch.is_second,
        .k = batch.k[index * batch.k_stride],
        .p = number_of(batch.p, batch.p_stride),
        .min_p = batch.min_p == nullptr ? 0.0F : number_of(batch.min_p, batch.min_p_stride),
        .eps = batch.eps,
        .noise = {batch.q == nullptr ? nullptr : batch.q + index * batch.q_row_stride,
                  batch.q_column_stride},
        .kept = batch.kept == nullptr ? nullptr : batch.kept + index * batch.vocab_size};
    size_t selected = 0;
    if (batch.are_probabilities || batch.dense_weights != nullptr) {
      const int64_t start = index * batch.vocab_size;
      const DenseOutput dense{
          batch.dense_weights == nullptr ? nullptr : batch.dense_weights + start,
          batch.dense_ids == nullptr ? nullptr : batch.dense_ids + start};
      selected =
          sample_densely(row, arguments, most_k, batch.are_probabilities, dense, scratch, work);
    } else {
      const std::optional<size_t> drawn =
          sample_unmasked(row, arguments, most_k, arguments.temperature, scratch, work);
      selected = drawn.has_value() ? *drawn : sample_row(row, arguments, most_k, scratch, work);
    }
    batch.selected[index] = static_cast<int64_t>(selected);
  }
}

/// Not inline: the one definition in this namespace.
void sample_rows(const Batch& batch, int64_t first_row, int64_t last_row, Scratch& scratch) {
  switch (batch.type) {
    case LogitsType::kFloat32:
      return sample_rows_of<Float32>(batch, first_row, last_row, scratch);
    case LogitsType::kFloat16:
      return sample_rows_of<Float16>(batch, first_row, last_row, scratch);
    case LogitsType::kBFloat16:
      return sample_rows_of<BFloat16>(batch, first_row, last_row, scratch);
  }
}

/// The same.
void exponential_noise(const NoiseKey& key, uint64_t first_lane, size_t count, float* out) {
  fill_exponential(key, first_lane, count, out);
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
