// A core with a fault, by which the tests see that the fuzzer finds faults: the oracle as "plain",
// and as "avx512" the oracle with the fault that FAULTY_CORE names. A fault of distributions is in
// both, so that comparing the two does not find it.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "cpu/targets.h"
#include "oracle.h"
#include "oracle_ranking.h"

namespace ascend_sample::cpu {

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t{64});
}

std::byte* Scratch::reserve(Slot slot, size_t bytes) {
  Block& block = blocks_[slot];
  if (bytes > block.bytes) {
    block.memory.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
    block.bytes = bytes;
  }
  return block.memory.get();
}

namespace {

/// Without the last of several entries that are kept; the others share its mass.
void shorten(std::vector<float>& distribution) {
  size_t last = 0;
  double left = 0;
  for (size_t id = 0; id < distribution.size(); ++id) {
    const bool is_last =
        distribution[id] > 0 && !(distribution[last] > 0 && distribution[id] > distribution[last]);
    last = is_last ? id : last;
    left += distribution[id];
  }
  left -= distribution[last];
  for (float& probability : distribution) {
    probability = left > 0 ? static_cast<float>(probability / left) : probability;
  }
  distribution[last] = left > 0 ? 0.0F : distribution[last];
}

void spoil(const std::string& fault, std::vector<float>& distribution) {
  if (fault == "distribution: short") {
    shorten(distribution);
  }
  for (float& probability : distribution) {
    if (fault == "distribution: heavy") {
      probability *= 1 + 1e-5F;
    } else if (fault == "distribution: leak") {
      probability = probability == 0 ? 1e-30F : probability;
    } else if (fault == "distribution: zeros") {
      probability = std::isnan(probability) ? 0.0F : probability;
    }
  }
}

/// A row as the faulty core sees it.
template <typename Call>
testing::Row read(const Call& call, int64_t index, const std::string& fault) {
  testing::Row row(call, index);
  if (fault == "tail" && row.logits.size() % 16 == 1) {  // the last logit is not looked at
    row.logits.back() = row.nothing();
  }
  while (fault == "hang" && row.logits.size() == 33) {
    pause();
  }
  return row;
}

std::string fault_of(bool is_faulty) { return is_faulty ? std::getenv("FAULTY_CORE") : ""; }

template <bool kIsFaulty>
void sample(const OperatorCall& call, int64_t first_row, int64_t last_row, Scratch& /*scratch*/) {
  const std::string fault = fault_of(kIsFaulty);
  for (int64_t index = first_row; index < last_row; ++index) {
    const testing::Row row = read(call, index, fault);
    const testing::Oracle oracle(row);
    const int64_t start = index * call.logits.vocab_size;
    call.selected[index] = oracle.selected();
    if (call.sample_result.has_value()) {
      const auto weights = oracle.dense_weights();
      const auto ids = oracle.dense_ids();
      std::copy(weights.begin(), weights.end(), call.sample_result->weights + start);
      std::copy(ids.begin(), ids.end(), call.sample_result->ids + start);
    }
    if (call.kept.empty()) {
      continue;
    }
    const auto kept = oracle.kept();
    std::copy(kept.begin(), kept.end(), call.kept.begin() + start);
    if (fault == "overrun") {
      call.kept.data()[start + call.logits.vocab_size] = 0;
    }
  }
}

/// Lists what is kept, and tells how probable the token is in it. None is drawn near to anything.
void tell(const SamplingCall& call, int64_t index, const testing::Row& row,
          const testing::Oracle& oracle, const std::string& fault) {
  KeptList& list = *call.kept_of(index);
  std::vector<float> probabilities(row.logits.size());
  if (row.status == RowStatus::kOk) {
    probabilities = oracle.distribution();
  }
  if (row.is_greedy) {
    probabilities.assign(row.logits.size(), 0.0F);
    probabilities[static_cast<size_t>(call.selected[index])] = 1.0F;
  }
  list.resize(static_cast<size_t>(std::count_if(probabilities.begin(), probabilities.end(),
                                                [](float share) { return share > 0; })));
  size_t place = 0;
  for (size_t id = 0; id < probabilities.size(); ++id) {
    if (probabilities[id] > 0) {
      list.ids()[place] = static_cast<int32_t>(id + (fault == "list" ? 1 : 0));
      list.log_probs()[place++] = std::log(probabilities[id]);
    }
  }
  if (row.status == RowStatus::kOk && !std::isnan(call.remembering->near[index])) {
    const float share = probabilities[static_cast<size_t>(call.selected[index])];
    call.remembering->log_probs[index] = std::log(share) - (fault == "chance" ? 0.01F : 0.0F);
  }
}

template <bool kIsFaulty>
void sample_requests(const SamplingCall& call, int64_t first_row, int64_t last_row,
                     Scratch& /*scratch*/) {
  for (int64_t index = first_row; index < last_row; ++index) {
    const testing::Row row = read(call, index, fault_of(kIsFaulty));
    const testing::Oracle oracle(row);
    call.selected[index] = oracle.selected();
    call.status[index] = row.status;
    if (call.kept_of(index) != nullptr) {
      tell(call, index, row, oracle, fault_of(true));
    }
  }
}

template <bool kIsFaulty>
void filter(const FilteringCall& call, int64_t first_row, int64_t last_row, Scratch& /*scratch*/) {
  for (int64_t index = first_row; index < last_row; ++index) {
    const testing::Row row = read(call, index, fault_of(kIsFaulty));
    auto distribution = testing::Oracle(row).distribution();
    spoil(fault_of(true), distribution);
    std::copy(distribution.begin(), distribution.end(), call.kept + index * call.logits.vocab_size);
  }
}

template <bool kIsFaulty>
void rank(const RankingCall& call, int64_t first_row, int64_t last_row, Scratch& /*scratch*/) {
  for (int64_t index = first_row; index < last_row; ++index) {
    const testing::Row row = read(call, index, fault_of(kIsFaulty));
    const testing::RankingOracle oracle(row, call);
    const int64_t start = index * call.width();
    std::copy(oracle.numbers().begin(), oracle.numbers().end(), call.numbers + start);
    std::copy(oracle.ids().begin(), oracle.ids().end(), call.token_ids + start);
    if (call.given.has_value()) {
      call.given->ranks[index] = oracle.rank() + (fault_of(true) == "rank" ? 1 : 0);
    }
  }
}

void fill_noise(const NoiseKey& /*key*/, uint64_t /*first_lane*/, size_t count, float* out) {
  std::fill_n(out, count, 1.0F);
}

template <bool kIsFaulty>
constexpr Kernel kKernel{.sample = sample<kIsFaulty>,
                         .sample_requests = sample_requests<kIsFaulty>,
                         .verify = nullptr,  // which the fuzzer does not call
                         .filter = filter<kIsFaulty>,
                         .find_ranges = nullptr,  // nor ranges of values
                         .rank = rank<kIsFaulty>,
                         .lead = nullptr,  // or the parts of split rows
                         .find_first = nullptr,
                         .weigh_digits = nullptr,
                         .sum_chunks = nullptr,
                         .add_sums = nullptr,
                         .count_above = nullptr,
                         .fill_noise = fill_noise};

bool is_available() { return true; }

constexpr Target kTargets[] = {{"plain", is_available, &kKernel<false>},
                               {"avx512", is_available, &kKernel<true>}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

}  // namespace ascend_sample::cpu
