#include "oracle_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/targets.h"

namespace ascend_sample::cpu::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// IEEE binary16, by its definition.
float half_to_float(uint16_t bits) {
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  if (exponent == 0x1F) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * kInfinity;
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(mantissa), -24);
  }
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float value_at(LogitsType type, const void* data, int64_t index) {
  if (type == LogitsType::kFloat32) {
    return static_cast<const float*>(data)[index];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == LogitsType::kFloat16 ? half_to_float(bits)
                                      : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace

Row::Row(const OperatorCall& call, int64_t row)
    : k(call.k.data[row * call.k.stride]),
      p(value_at(call.logits.type, call.p.data, row * call.p.stride)),
      has_q(call.q.has_value()),
      eps(call.eps),
      is_second(!call.rules.softmaxes_again),
      most_k(call.rules.most_k) {
  if (call.min_p.has_value()) {
    min_p = value_at(call.logits.type, call.min_p->data, row * call.min_p->stride);
  }
  for (int64_t id = 0; has_q && id < call.logits.vocab_size; ++id) {
    q.push_back(call.q->data[row * call.q->row_stride + id * call.q->column_stride]);
  }
  load(call.logits, row);
  settle();
}

Row::Row(const SamplingCall& call, int64_t row) {
  load(call.logits, row);
  edit(call.requests.edits, row);
  settle();
  keep_range(call.requests, row);
  read(call.requests, row);
  const float temperature = call.requests.temperature[row];
  has_q = temperature > 0.0F && k != 1;
  is_greedy = !has_q;
  if (is_greedy) {
    return;
  }
  // The noise has tests of its own (tests/sampling).
  is_segmented = call.requests.keeps_ties || !uses_k();
  q.resize(is_segmented ? 256 + (logits.size() + 255) / 256 : logits.size());
  targets()[0].kernel->fill_noise(call.keys.of(row), 0, q.size(), q.data());
  if (is_segmented) {
    cut_at_k(call.requests.keeps_ties);
  } else {  // by the logits, also where division makes some equal
    order = logits;
  }
  divide(temperature);
}

Row::Row(const FilteringCall& call, int64_t row) : wants_distribution(true) {
  load(call.logits, row);
  edit(call.requests.edits, row);
  settle();
  keep_range(call.requests, row);
  read(call.requests, row);
  const float temperature = call.requests.temperature[row];
  is_greedy = !(temperature > 0.0F) || k == 1;  // then ties are not kept
  if (is_greedy) {
    k = 1;
    return;
  }
  if (call.requests.keeps_ties || !uses_k()) {
    cut_at_k(call.requests.keeps_ties);
  } else {
    order = logits;
  }
  divide(temperature);
}

Row::Row(const RankingCall& call, int64_t row) {
  load(call.logits, row);
  settle();
  order = logits;  // also where division makes some equal
  divide(call.divisor(row));
}

void Row::load(const Logits& rows, int64_t row) {
  for (int64_t id = 0; id < rows.vocab_size; ++id) {
    logits.push_back(
        value_at(rows.type, rows.data, row * rows.row_stride + id * rows.column_stride));
  }
}

/// Addends, penalties and masks, id by id over the whole vocabulary. What is computed of two
/// float32 in double, and then rounded to float32, is rounded as if once.
void Row::edit(const Edits& edits, int64_t row) {
  const auto rounded = [](double value) { return static_cast<float>(value); };
  if (edits.addends.has_value() && edits.addends->slots[row] >= 0) {
    is_edited = true;
    const int64_t slot = edits.addends->slots[row];
    const auto& [ids, lengths] = edits.addends->lists;
    const auto& addends = edits.addends->addends;
    for (int64_t i = 0; i < lengths[slot]; ++i) {
      float& logit = logits[static_cast<size_t>(ids.data[slot * ids.row_stride + i])];
      const double addend = addends.data[slot * addends.row_stride + i];
      logit = addend < -1e300 ? -kInfinity : rounded(logit + addend);
    }
  }
  if (edits.penalties.has_value() && edits.penalties->slots[row] >= 0) {
    is_edited = true;
    const int64_t slot = edits.penalties->slots[row];
    const auto& [ids, lengths] = edits.penalties->lists;
    const auto& occurrences = edits.penalties->occurrences;
    std::vector<bool> is_listed(logits.size());
    for (int64_t i = 0; i < lengths[slot]; ++i) {
      is_listed[static_cast<size_t>(ids.data[slot * ids.row_stride + i])] = true;
    }
    for (size_t id = 0; id < logits.size(); ++id) {
      const int32_t seen =
          occurrences.data[slot * occurrences.row_stride + static_cast<int64_t>(id)];
      if (!is_listed[id] || seen == 0) {
        continue;
      }
      float& logit = logits[id];
      const double repetition = edits.penalties->repetition[row];
      logit = rounded(logit > 0 ? logit / repetition : logit * repetition);
      const double count = rounded(seen / 2);
      const double loss = rounded(edits.penalties->frequency[row] * count);
      logit = rounded(logit - loss);
      logit = rounded(logit - (count > 0 ? double{edits.penalties->presence[row]} : 0.0));
    }
  }
  for (const std::optional<Masks>* masks : {&edits.masks, &edits.bitmask}) {
    if (masks->has_value() && (*masks)->slots[row] >= 0) {
      is_edited = true;
      const auto& [slots, words] = **masks;
      for (size_t id = 0; id < logits.size(); ++id) {
        const auto word = static_cast<uint32_t>(
            words.data[slots[row] * words.row_stride + static_cast<int64_t>(id / 32)]);
        logits[id] = (word & (1U << (id % 32))) != 0 ? logits[id] : -kInfinity;
      }
    }
  }
}

/// The status, and numbers for what is none.
void Row::settle() {
  for (float& logit : logits) {
    const float value = logit;
    logit = std::isnan(value) ? -kInfinity : value;
    status = std::isnan(value)                                     ? RowStatus::kNanSeen
             : value == kInfinity && status != RowStatus::kNanSeen ? RowStatus::kInfinitySeen
                                                                   : status;
  }
  const float maximum = *std::max_element(logits.begin(), logits.end());
  if (status == RowStatus::kOk && maximum == -kInfinity) {
    status = RowStatus::kAllMasked;
  }
}

/// What range filters leave, as the kernel's operator for ranges finds it, which has tests of its
/// own (tests/sampling): here it is compared with the search that a draw makes.
void Row::keep_range(const Requests& requests, int64_t row) {
  if (!requests.edits.ranges.has_value()) {
    return;
  }
  is_edited = true;
  const Table<float>& numbers = requests.edits.ranges->numbers;
  float least = -kInfinity;
  float most = kInfinity;
  Workspace workspace;
  targets()[0].kernel->find_ranges({.logits = {.type = LogitsType::kFloat32,
                                               .vocab_size = static_cast<int64_t>(logits.size()),
                                               .data = logits.data(),
                                               .row_stride = 0,
                                               .column_stride = 1},
                                    .batch_size = 1,
                                    .temperature = requests.temperature + row,
                                    .ranges = {{numbers.row(row), 0}},
                                    .least = &least,
                                    .most = &most},
                                   0, 1, workspace);
  for (float& logit : logits) {
    logit = least <= logit && logit <= most ? logit : -kInfinity;
  }
}

void Row::read(const Requests& requests, int64_t row) {
  is_request = true;
  k = requests.k[row];
  p = requests.p[row];
  min_p = requests.min_p[row];
}

bool Row::uses_k() const {
  return k >= 1 && k <= std::min(static_cast<int64_t>(logits.size()), most_k);
}

/// Any k of the vocabulary, before all else.
void Row::cut_at_k(bool keeps_ties) {
  if (k >= 1 && static_cast<size_t>(k) < logits.size()) {
    std::vector<size_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), size_t{0});
    std::stable_sort(ids.begin(), ids.end(),
                     [this](size_t one, size_t other) { return logits[one] > logits[other]; });
    const float last = logits[ids[static_cast<size_t>(k) - 1]];
    for (size_t rank = static_cast<size_t>(k); rank < ids.size(); ++rank) {
      float& logit = logits[ids[rank]];
      logit = keeps_ties && logit == last ? logit : -kInfinity;
    }
  }
  k = 0;
}

void Row::divide(float temperature) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  is_divided = temperature != 1.0F && !std::isinf(maximum);
  for (float& logit : logits) {
    if (is_divided) {
      const float difference = logit - maximum;
      const float quotient = difference / temperature;
      logit = std::isnan(quotient) ? -kInfinity : quotient;  // -inf / inf
    }
  }
}

}  // namespace ascend_sample::cpu::testing
