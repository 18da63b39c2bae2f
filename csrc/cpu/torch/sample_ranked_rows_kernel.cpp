// sample_ranked_rows for CPU tensors: sample_rows, and what row_logprobs reports of rows and the
// tokens that were drawn from them, while a row is near to the processor: by the core of targets.h.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <vector>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

/// Of each row of a batch, its place among those that ask; -1: none. Empty `asking`: all ask.
std::vector<int64_t> places_of(std::span<const int64_t> asking, bool all_ask, int64_t count) {
  std::vector<int64_t> places(static_cast<size_t>(count), -1);
  for (size_t place = 0; place < (all_ask ? places.size() : asking.size()); ++place) {
    int64_t& of_row = places[all_ask ? place : static_cast<size_t>(asking[place])];
    TORCH_CHECK_VALUE(of_row < 0, SampleRankedRowsArguments::kName,
                      ": asking must have each row once, got ", asking[place],
                      " twice. Leave out what is repeated.");
    of_row = static_cast<int64_t>(place);
  }
  return places;
}

SampleRankedRowsArguments::Results sample_ranked_rows_kernel(
    const SampleRankedRowsArguments& arguments) {
  const auto& [logits, asking, count, is_normalised, requests, is_processed] = arguments;
  arguments.check();
  Reader reader;
  const auto asked = reader.rows(SampleRankedRowsArguments::kName, asking, logits, "asking");
  const std::vector<int64_t> places = places_of(asked, !asking.has_value(), logits.size(0));
  auto [token_ids, status, numbers, ids, ranks] = arguments.allocate_outputs();
  SamplingCall call = sampling_call_of(arguments, reader, token_ids, status);
  std::vector<float> temperatures;  // of the rows that ask
  for (int64_t place = 0; is_processed && place < ranks.size(0); ++place) {
    const int64_t row = asked.empty() ? place : asked[static_cast<size_t>(place)];
    temperatures.push_back(call.requests.temperature[row]);
  }
  const RankedDraws ranked{
      .ranking = {.logits = call.logits,
                  .batch_size = ranks.size(0),
                  .rows = asked,
                  .count = count,
                  .temperature = 1.0F,
                  .is_normalised = is_normalised,
                  .given = GivenTokens{call.selected, asked, ranks.mutable_data_ptr<int64_t>()},
                  .numbers = numbers.mutable_data_ptr<float>(),
                  .token_ids = ids.mutable_data_ptr<int64_t>(),
                  .entropies = {},
                  .temperatures = temperatures},
      .places = places.data(),
      .is_filtered = is_processed};
  call.ranked = &ranked;
  serve(&Kernel::sample_requests, call);
  return {token_ids, status, numbers, ids, ranks};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SampleRankedRowsArguments::kName, adapted<&sample_ranked_rows_kernel>);
}

}  // namespace ascend_sample::cpu
