#include "placed_case.h"

#include <algorithm>

namespace ascend_sample::cpu::testing {
namespace {

constexpr bool kIsWanted = true;

size_t spread(size_t count, int64_t stride) {
  return (count - 1) * static_cast<size_t>(stride) + 1;
}

}  // namespace

PlacedCase::PlacedCase(const FuzzCase& fuzz_case)
    : placement_(fuzz_case.placement), call_(call_of(fuzz_case)) {}

AnyCall PlacedCase::call_of(const FuzzCase& fuzz_case) {
  const size_t size = size_of(fuzz_case.type);
  const size_t vocab_size = fuzz_case.logits.size();
  std::vector<std::byte> bytes(spread(vocab_size, fuzz_case.logits_stride) * size,
                               std::byte{0x7B});  // large between the strides
  for (size_t id = 0; id < vocab_size; ++id) {
    std::memcpy(&bytes[id * static_cast<size_t>(fuzz_case.logits_stride) * size],
                &fuzz_case.logits[id], size);
  }
  const Logits logits{.type = fuzz_case.type,
                      .vocab_size = static_cast<int64_t>(vocab_size),
                      .data = list(bytes),
                      .row_stride = 0,
                      .column_stride = fuzz_case.logits_stride};
  if (fuzz_case.ranking.has_value()) {
    return ranking_call(*fuzz_case.ranking, logits);
  }
  if (fuzz_case.wants_distribution()) {
    return filtering_call(fuzz_case, logits);
  }
  if (fuzz_case.request.has_value()) {
    return sampling_call(fuzz_case, logits);
  }
  return operator_call(fuzz_case, logits);
}

OperatorCall PlacedCase::operator_call(const FuzzCase& fuzz_case, const Logits& logits) {
  const size_t vocab_size = fuzz_case.logits.size();
  OperatorCall call{.logits = logits,
                    .batch_size = 1,
                    .rules = fuzz_case.is_second ? kSecondOperator : kFirstOperator,
                    .k = {number(fuzz_case.k), 0},
                    .p = {number_of(fuzz_case.type, fuzz_case.p), 0},
                    .min_p = std::nullopt,
                    .q = std::nullopt,
                    .eps = fuzz_case.eps,
                    .selected = number(kNotSelected),
                    .kept = {}};
  call.rules.most_k = fuzz_case.most_k;
  if (fuzz_case.min_p.has_value()) {
    call.min_p = {number_of(fuzz_case.type, *fuzz_case.min_p), 0};
  }
  if (fuzz_case.q.has_value()) {
    std::vector<float> q(
        spread(vocab_size, fuzz_case.q_stride));  // 0 between the strides would win
    for (size_t lane = 0; lane < vocab_size; ++lane) {
      q[lane * static_cast<size_t>(fuzz_case.q_stride)] = (*fuzz_case.q)[lane];
    }
    call.q = {list(q), 0, fuzz_case.q_stride};
  }
  if (fuzz_case.is_need_logits) {
    call.kept = {not_written<float>(vocab_size), vocab_size};
  }
  return call;
}

SamplingCall PlacedCase::sampling_call(const FuzzCase& fuzz_case, const Logits& logits) {
  const FuzzCase::Request& request = *fuzz_case.request;
  SamplingCall call{.logits = logits,
                    .batch_size = 1,
                    .rows = {},
                    .requests = requests(fuzz_case),
                    .keys = {.seed = number(request.seed),
                             .position = number(request.position),
                             .purpose = request.purpose},
                    .selected = number(kNotSelected),
                    .status = number(RowStatus{-1})};  // has to be written
  if (request.wants_list) {
    call.kept = {.is_wanted = &kIsWanted, .lists = &list_};
  }
  return call;
}

FilteringCall PlacedCase::filtering_call(const FuzzCase& fuzz_case, const Logits& logits) {
  return {.logits = logits,
          .batch_size = 1,
          .requests = requests(fuzz_case),
          .form = FilteredForm::kProbabilities,
          .kept = not_written<float>(fuzz_case.logits.size())};
}

RankingCall PlacedCase::ranking_call(const FuzzCase::Ranking& ranking, const Logits& logits) {
  RankingCall call{.logits = logits,
                   .batch_size = 1,
                   .rows = {},
                   .count = std::min(ranking.count, logits.vocab_size),
                   .is_normalised = ranking.is_normalised,
                   .given = std::nullopt,
                   .numbers = nullptr,
                   .token_ids = nullptr,
                   .entropies = {},
                   .temperatures = {number(ranking.temperature), 1}};
  if (ranking.given >= 0) {  // the row may have been cut down
    const int64_t id = std::min(ranking.given, logits.vocab_size - 1);
    call.given = GivenTokens{number(id), {}, number(kNotSelected)};
  }
  call.numbers = not_written<float>(static_cast<size_t>(call.width()));
  call.token_ids = not_written<int64_t>(static_cast<size_t>(call.width()));
  return call;
}

Requests PlacedCase::requests(const FuzzCase& fuzz_case) {
  return {.temperature = number(fuzz_case.request->temperature),
          .k = number(fuzz_case.k),
          .p = number(fuzz_case.request->p),
          .min_p = number(fuzz_case.request->min_p),
          .keeps_ties = fuzz_case.request->keeps_ties,
          .edits = edits(fuzz_case.request->edits)};
}

/// In slot 0 of tables of their own.
Edits PlacedCase::edits(const FuzzEdits& given) {
  Edits edits;
  const int64_t* const slot = number(int64_t{0});
  if (const auto& addends = given.addends; addends.has_value()) {
    edits.addends = {
        .slots = slot,
        .lists = {{list(addends->ids), 0}, number(static_cast<int64_t>(addends->ids.size()))},
        .addends = {list(addends->addends), 0}};
  }
  if (const auto& penalties = given.penalties; penalties.has_value()) {
    edits.penalties = {
        .slots = slot,
        .lists = {{list(penalties->ids), 0}, number(static_cast<int64_t>(penalties->ids.size()))},
        .occurrences = {list(penalties->occurrences), 0},
        .repetition = number(penalties->repetition),
        .presence = number(penalties->presence),
        .frequency = number(penalties->frequency)};
  }
  if (given.mask.has_value()) {
    edits.masks = {slot, {list(*given.mask), 0}};
  }
  if (given.bitmask.has_value()) {
    edits.bitmask = {slot, {list(*given.bitmask), 0}};
  }
  if (given.ranges.has_value()) {
    edits.ranges = {{list(*given.ranges), 0}};
  }
  return edits;
}

}  // namespace ascend_sample::cpu::testing
