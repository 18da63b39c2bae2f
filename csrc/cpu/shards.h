// The segmented draw of a row of which this is a part: docs/vocabulary_parallel.md.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/draws/segments.h"
#include "cpu/each_row.h"
#include "cpu/filters/top_k.h"
#include "cpu/rows/compaction.h"
#include "cpu/rows/temperature.h"
#include "cpu/shard_calls.h"

namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET {

template <typename Type>
void find_first_of_row(const Row<Type>& row, const FirstCall& call, int64_t index,
                       Workspace& work) {
  const auto count = static_cast<size_t>(call.count);
  float* const values = call.values + index * call.count;
  int64_t* const ids = call.ids + index * call.count;
  RowArguments arguments{.rules = kSamplingLayer, .k = 0, .p = 1.0F, .min_p = 0.0F, .eps = 0.0F};
  arguments.status = {call.status + index, 1};
  const Groups groups = groups_for(count, row.vocab_size(), work);
  size_t found = 0;
  if (scan_first(row, groups, arguments) != -kInfinity) {
    const Candidates candidates = first_of_total_order(row, groups, count, work);
    for (; found < candidates.count; ++found) {
      values[found] = candidates.values[found];
      ids[found] = candidates.ids[found];
    }
  }
  std::fill(values + found, values + count, -kInfinity);
  std::fill(ids + found, ids + count, 0);
}

/// -inf and NaN have no weight, and are not counted.
template <typename Type>
void weigh_digits_of_row(const Row<Type>& row, const DigitCall& call, int64_t index) {
  double* const bins = call.bins + index * static_cast<int64_t>(kDigitBins);
  std::fill_n(bins, kDigitBins, 0.0);
  const Floats maximum = splat(call.maximum[index]);
  const bool counts = call.counts[index];
  const auto shift = static_cast<uint32_t>(24 - 8 * call.digit);
  const auto prefix = static_cast<uint64_t>(call.prefix[index]);
  float values[kLine];
  float weights[kLine];
  for (size_t i = 0; i < row.lines(); ++i) {
    const Line line = Type::load(row.line(i));
    store(values, line.first);
    store(values + kLanes, line.second);
    if (!counts) {
      store(weights, exp_not_positive(line.first - maximum));
      store(weights + kLanes, exp_not_positive(line.second - maximum));
    }
    for (size_t lane = 0; lane < kLine; ++lane) {
      const uint32_t key = static_cast<uint32_t>(ordinal_of(values[lane])) ^ 0x80000000U;
      if (uint64_t{key} >> shift >> 8 == prefix && values[lane] > -kInfinity) {
        bins[key >> shift & 0xFF] += counts ? 1.0 : double{weights[lane]};
      }
    }
  }
}

/// Leads of a part whose segments are aligned. `before` are the places that it does not have.
template <typename Type>
void find_leads(const Row<Type>& row, const Groups& groups, float maximum, float temperature,
                const Cut& least, const Cut& most, const ShardCall& call, int64_t index,
                size_t before, Workspace& work) {
  const NoiseKey key{call.seed[index], call.position[index], call.purpose};
  const size_t first_segment = static_cast<size_t>(call.first_id) / kSegment;
  SegmentedDraw<Type> draw(row, groups, maximum, temperature, key, work, first_segment);
  const size_t last = draw.segments() - 1;
  const Lead leads[kShardLeads] = {
      draw.score_of_segment(0, least, most),
      draw.leading_segment(1, last, least, most, call.slack),
      last == 0 ? Lead{} : draw.score_of_segment(last, least, most),
  };
  for (int64_t i = 0; i < kShardLeads; ++i) {
    const Lead& segment = leads[i];
    ShardLead& out = call.leads[index * kShardLeads + i];
    int64_t& id = call.ids[index * kShardLeads + i];
    if (!(segment.most > 0)) {
      out = {};
      id = 0;
      continue;
    }
    const Lead place = draw.leading_place(segment.index, least, most);
    out = {segment.score, segment.most, segment.other, place.score, place.most, place.other};
    id = static_cast<int64_t>(place.index) - static_cast<int64_t>(before);
  }
}

/// The leads of one row's part, whose segments are aligned.
template <typename Type>
void lead_part(const Row<Type>& row, const ShardCall& call, int64_t index, size_t before,
               Scratch& scratch, Workspace& work) {
  const auto place = static_cast<size_t>(index);
  const Groups groups{kSegmentLines, work.maxima};
  RowArguments arguments{.rules = kSamplingLayer, .k = 0, .p = 1.0F, .min_p = 0.0F, .eps = 0.0F};
  arguments.status = {call.status + index, 1};
  const float own = scan_first(row, groups, arguments);
  call.own_maximum[index] = own;
  const float maximum = call.maximum.empty() ? own : call.maximum[place];
  std::fill_n(call.leads + index * kShardLeads, kShardLeads, ShardLead{});
  std::fill_n(call.ids + index * kShardLeads, kShardLeads, 0);
  if (own == -kInfinity || std::isnan(maximum) || (maximum == kInfinity && own != kInfinity)) {
    return;  // nothing here has weight
  }
  if (maximum == kInfinity) {
    const Row<Float32> infinities = infinities_of(row, scratch, work);
    scan_maxima(infinities, groups);
    return find_leads(infinities, groups, 0.0F, 1.0F, kNoCut, kNoCut, call, index, before, work);
  }
  const float temperature = call.temperature[index];
  Cut cuts[2] = {kNoCut, kNoCut};
  for (size_t i = 0; i < 2; ++i) {
    if (!call.cut_values[i].empty()) {
      const int64_t last_id = call.cut_last_ids[i][place];
      const float value = call.cut_values[i][place];
      cuts[i] = last_id < 0 ? Cut{next_above(value), row.vocab_size() - 1}
                            : Cut{value, static_cast<size_t>(last_id) + before};
    }
    if (call.min_p[index] > 0.0F) {
      // Where top-p comes before min-p, probabilities are rounded before they are compared.
      const double room = call.cut_values[i].empty() ? 0.0 : i == 0 ? 2 * kUnsure : -2 * kUnsure;
      const auto min_p = static_cast<float>(double{call.min_p[index]} * (1 + room));
      const Cut other = cut_of_min_p(min_p, maximum, temperature, row.vocab_size());
      cuts[i] = other.value > cuts[i].value ? other : cuts[i];
    }
  }
  find_leads(row, groups, maximum, temperature, cuts[0], cuts[1], call, index, before, work);
}

/// The leads of some rows' parts. Segments begin where those of the vocabulary do: what a part's
/// first one lacks is -inf, in a copy.
template <typename Type>
void lead_parts(const ShardCall& call, int64_t first_row, int64_t last_row, Scratch& scratch) {
  using Storage = typename Type::Storage;
  const Logits& logits = call.logits;
  const size_t before = static_cast<size_t>(call.first_id) % kSegment;
  const size_t count = before + static_cast<size_t>(logits.vocab_size);
  Workspace work(scratch, count);
  for (int64_t index = first_row; index < last_row; ++index) {
    const Storage* data =
        static_cast<const Storage*>(logits.data) + place_in(call.rows, index) * logits.row_stride;
    if (before != 0 || logits.column_stride != 1) {
      auto* const copy =
          reinterpret_cast<Storage*>(scratch.reserve(Scratch::kLogits, count * sizeof(Storage)));
      std::fill_n(copy, before, Type::kMinusInfinity);
      if (logits.column_stride == 1) {
        std::copy_n(data, logits.vocab_size, copy + before);
      } else {
        for (size_t id = before; id < count; ++id) {
          copy[id] = data[static_cast<int64_t>(id - before) * logits.column_stride];
        }
      }
      data = copy;
    }
    lead_part(Row<Type>(data, count, reinterpret_cast<Storage*>(work.last_chunk)), call, index,
              before, scratch, work);
  }
}

inline void lead(const ShardCall& call, int64_t first_row, int64_t last_row, Scratch& scratch) {
  for_type(call.logits.type,
           [&]<typename Type>(Type) { lead_parts<Type>(call, first_row, last_row, scratch); });
}

inline void find_first(const FirstCall& call, int64_t first_row, int64_t last_row,
                       Scratch& scratch) {
  for_rows(call.logits, call.rows, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& work) {
             find_first_of_row(row, call, index, work);
           });
}

inline void weigh_digits(const DigitCall& call, int64_t first_row, int64_t last_row,
                         Scratch& scratch) {
  for_rows(call.logits, call.rows, first_row, last_row, scratch,
           [&](const auto& row, int64_t index, Workspace& /*work*/) {
             weigh_digits_of_row(row, call, index);
           });
}

}  // namespace ascend_sample::cpu::ASCEND_SAMPLE_TARGET
