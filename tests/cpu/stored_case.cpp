#include "stored_case.h"

#include <algorithm>
#include <cstring>

namespace ascend_sample::cpu::testing {

StoredCase::StoredCase(const FuzzCase& fuzz_case)
    : k_(fuzz_case.k),
      p_(fuzz_case.p),
      min_p_(fuzz_case.min_p.value_or(0)),
      kept_(fuzz_case.is_need_logits ? fuzz_case.logits.size() : 0),
      weights_(fuzz_case.is_need_sample_result ? fuzz_case.logits.size() : 0),
      ids_(weights_.size()),
      request_(fuzz_case.request.value_or(FuzzCase::Request{})) {
  const size_t size = size_of(fuzz_case.type);
  const size_t vocab_size = fuzz_case.logits.size();
  const auto spread = [vocab_size](int64_t stride) {
    return (vocab_size - 1) * static_cast<size_t>(stride) + 1;
  };
  logits_.resize(spread(fuzz_case.logits_stride) * size,
                 std::byte{0x7B});              // large between the strides
  for (size_t id = 0; id < vocab_size; ++id) {  // the first bytes of the bits: little endian
    std::memcpy(&logits_[id * static_cast<size_t>(fuzz_case.logits_stride) * size],
                &fuzz_case.logits[id], size);
  }
  if (fuzz_case.q.has_value()) {
    q_.resize(spread(fuzz_case.q_stride), 0.0F);  // would win
    for (size_t lane = 0; lane < vocab_size; ++lane) {
      q_[lane * static_cast<size_t>(fuzz_case.q_stride)] = (*fuzz_case.q)[lane];
    }
  }
  const Logits logits{.type = fuzz_case.type,
                      .vocab_size = static_cast<int64_t>(vocab_size),
                      .data = logits_.data(),
                      .row_stride = 0,
                      .column_stride = fuzz_case.logits_stride};
  const Requests requests{
      .temperature = &request_.temperature, .k = &k_, .p = &request_.p, .min_p = &request_.min_p};
  if (fuzz_case.ranking.has_value()) {
    call_ = ranking_call(*fuzz_case.ranking, logits);
  } else if (fuzz_case.wants_distribution()) {
    call_ = FilteringCall{.logits = logits,
                          .batch_size = 1,
                          .requests = requests,
                          .edits = edits(),
                          .kept = kept_.data()};
  } else if (fuzz_case.request.has_value()) {
    call_ = SamplingCall{.logits = logits,
                         .batch_size = 1,
                         .rows = {},
                         .requests = requests,
                         .edits = edits(),
                         .seed = &request_.seed,
                         .position = &request_.position,
                         .purpose = request_.purpose,
                         .keeps_ties = request_.keeps_ties,
                         .selected = &selected_,
                         .status = &status_};
    if (request_.near.has_value()) {
      near_ = *request_.near;
      SamplingCall& call = std::get<SamplingCall>(call_);
      call.is_kept_wanted = &kIsWanted;
      call.kept = &list_;
      call.remembering = &remembering_;
    }
  } else {
    call_ = operator_call(fuzz_case, logits);
  }
}

/// Those of the stored request, in slot 0 of tables of their own.
Edits StoredCase::edits() {
  Edits edits;
  if (auto& addends = request_.edits.addends; addends.has_value()) {
    addend_length_ = static_cast<int64_t>(addends->ids.size());
    edits.addends = {.slots = &kSlot,
                     .lists = {{addends->ids.data(), 0}, &addend_length_},
                     .addends = {addends->addends.data(), 0}};
  }
  if (auto& penalties = request_.edits.penalties; penalties.has_value()) {
    penalty_length_ = static_cast<int64_t>(penalties->ids.size());
    edits.penalties = {.slots = &kSlot,
                       .lists = {{penalties->ids.data(), 0}, &penalty_length_},
                       .occurrences = {penalties->occurrences.data(), 0},
                       .repetition = &penalties->repetition,
                       .presence = &penalties->presence,
                       .frequency = &penalties->frequency};
  }
  const auto masks = [](const std::optional<std::vector<int32_t>>& words) {
    return words.has_value() ? std::optional(Masks{&kSlot, {words->data(), 0}}) : std::nullopt;
  };
  edits.masks = masks(request_.edits.mask);
  edits.bitmask = masks(request_.edits.bitmask);
  return edits;
}

RankingCall StoredCase::ranking_call(const FuzzCase::Ranking& ranking, const Logits& logits) {
  const bool is_given = ranking.given >= 0;
  given_ = std::min(ranking.given, logits.vocab_size - 1);  // the row may have been cut down
  const int64_t count = std::min(ranking.count, logits.vocab_size);
  weights_.resize(static_cast<size_t>(count + (is_given ? 1 : 0)));
  ids_.resize(weights_.size());
  return {.logits = logits,
          .batch_size = 1,
          .rows = {},
          .count = count,
          .temperature = ranking.temperature,
          .is_normalised = ranking.is_normalised,
          .given = is_given ? std::optional(GivenTokens{&given_, {}, &rank_}) : std::nullopt,
          .numbers = weights_.data(),
          .token_ids = ids_.data(),
          .entropies = {}};
}

OperatorCall StoredCase::operator_call(const FuzzCase& fuzz_case, const Logits& logits) {
  OperatorCall call{.logits = logits,
                    .batch_size = 1,
                    .rules = fuzz_case.is_second ? kSecondOperator : kFirstOperator,
                    .k = {&k_, 0},
                    .p = {&p_, 0},
                    .min_p = std::nullopt,
                    .q = std::nullopt,
                    .eps = fuzz_case.eps,
                    .are_probabilities = fuzz_case.are_probabilities,
                    .selected = &selected_,
                    .kept = kept_,
                    .sample_result = std::nullopt};
  call.rules.most_k = fuzz_case.most_k;
  if (fuzz_case.min_p.has_value()) {
    call.min_p = {&min_p_, 0};
  }
  if (fuzz_case.q.has_value()) {
    call.q = {q_.data(), 0, fuzz_case.q_stride};
  }
  if (fuzz_case.is_need_sample_result) {
    call.sample_result = {weights_.data(), ids_.data()};
  }
  return call;
}

}  // namespace ascend_sample::cpu::testing
