// sample_rows for CPU tensors: the sampling layer's rows, what is kept of them, and what
// row_logprobs reports of the tokens that were drawn, while a row is near to the processor: by the
// core of targets.h.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "requests_reader.h"

namespace ascend_sample::cpu {
namespace {

constexpr const char* kSampleRows = SampleRowsArguments::kName;

/// Puts the lists of all rows one behind the other; each goes when it has been copied. To wake
/// other threads takes longer than to copy a few.
void gather(std::vector<KeptList>& lists, const int64_t* offsets, int32_t* ids, float* log_probs) {
  constexpr int64_t kFew = 1 << 16;
  const auto rows = static_cast<int64_t>(lists.size());
  const int64_t grain = offsets[rows] < kFew ? rows + 1 : 1;
  at::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      KeptList& list = lists[static_cast<size_t>(row)];
      std::copy_n(list.ids(), list.count(), ids + offsets[row]);
      std::copy_n(list.log_probs(), list.count(), log_probs + offsets[row]);
      list.clear();
    }
  });
}

/// Returns what is kept of all rows, as CSR: offsets, ids, log-probabilities and counts.
std::vector<at::Tensor> kept_sets_of(std::vector<KeptList>& lists) {
  const auto count = static_cast<int64_t>(lists.size());
  const at::Tensor offsets = at::empty({count + 1}, at::kLong);
  const at::Tensor counts = at::empty({count}, at::kInt);
  auto* const ends = offsets.mutable_data_ptr<int64_t>();
  auto* const sizes = counts.mutable_data_ptr<int32_t>();
  ends[0] = 0;
  for (int64_t row = 0; row < count; ++row) {
    sizes[row] = static_cast<int32_t>(lists[static_cast<size_t>(row)].count());
    ends[row + 1] = ends[row] + sizes[row];
  }
  const at::Tensor ids = at::empty({ends[count]}, at::kInt);
  const at::Tensor logprobs = at::empty({ends[count]}, at::kFloat);
  gather(lists, ends, ids.mutable_data_ptr<int32_t>(), logprobs.mutable_data_ptr<float>());
  return {offsets, ids, logprobs, counts};
}

/// What is reported of the tokens of the rows that ask, and where it goes. It stays where it is.
class Report {
 public:
  Report(const SampleRowsArguments& arguments, const SamplingCall& call, Reader& reader)
      : asking_(reader.rows(kSampleRows, arguments.logprob_rows, arguments.logits, "logprob_rows")),
        named_(reader.ids(kSampleRows, arguments.logprob_token_ids, arguments.logits,
                          "logprob_token_ids")),
        places_(places_of(arguments.logprob_rows.has_value(), call.batch_size)) {
    const int64_t rows =
        arguments.logprob_rows.has_value() ? arguments.logprob_rows->size(0) : call.batch_size;
    const int64_t named =
        arguments.logprob_token_ids.has_value() ? arguments.logprob_token_ids->size(1) : 0;
    const int64_t width = 1 + arguments.logprobs + named;
    values = at::empty({rows, width}, at::kFloat);
    ids = at::empty({rows, width}, at::kLong);
    ranks = at::empty({rows}, at::kLong);
    for (int64_t place = 0; arguments.is_processed && place < rows; ++place) {
      const int64_t row = asking_.empty() ? place : asking_[static_cast<size_t>(place)];
      temperatures_.push_back(call.requests.temperature[row]);
    }
    draws = {
        .ranking = {.logits = call.logits,
                    .batch_size = rows,
                    .rows = asking_,
                    .count = arguments.logprobs,
                    .is_normalised = arguments.is_normalised,
                    .given = GivenTokens{call.selected, asking_, ranks.mutable_data_ptr<int64_t>()},
                    .numbers = values.mutable_data_ptr<float>(),
                    .token_ids = ids.mutable_data_ptr<int64_t>(),
                    .entropies = {},
                    .named = named_,
                    .named_count = named,
                    .temperatures = temperatures_},
        .places = places_.data(),
        .is_filtered = arguments.is_processed};
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  at::Tensor values;
  at::Tensor ids;
  at::Tensor ranks;
  RankedDraws draws;

 private:
  /// Of each row of a batch, its place among those that ask; -1: none.
  std::vector<int64_t> places_of(bool are_named, int64_t count) const {
    std::vector<int64_t> places(static_cast<size_t>(count), -1);
    for (size_t place = 0; place < (are_named ? asking_.size() : places.size()); ++place) {
      int64_t& of_row = places[are_named ? static_cast<size_t>(asking_[place]) : place];
      TORCH_CHECK_VALUE(of_row < 0, kSampleRows, ": logprob_rows must have each row once, got ",
                        asking_[place], " twice. Leave out what is repeated.");
      of_row = static_cast<int64_t>(place);
    }
    return places;
  }

  std::span<const int64_t> asking_;
  std::span<const int64_t> named_;
  std::vector<int64_t> places_;
  std::vector<float> temperatures_;  // of the rows that ask
};

SampleRowsArguments::Results sample_rows_kernel(const SampleRowsArguments& arguments) {
  arguments.check();
  Reader reader;
  const auto rows = reader.rows(kSampleRows, arguments.rows, arguments.logits);
  const int64_t count = arguments.requests.keys.seed.size(0);
  const at::Tensor token_ids = at::empty({count}, at::kLong);
  const at::Tensor status = at::empty({count}, at::kChar);
  SamplingCall call = sampling_call_of(arguments, reader, token_ids, status);
  call.rows = rows;
  std::vector<KeptList> lists;
  if (arguments.is_kept_wanted.has_value()) {
    lists.resize(static_cast<size_t>(count));
    call.kept = {.is_wanted = reader.list<bool>(*arguments.is_kept_wanted), .lists = lists.data()};
  }
  std::optional<Report> report;
  if (arguments.logprobs != SampleRowsArguments::kNoLogprobs) {
    report.emplace(arguments, call, reader);
    call.ranked = report->draws;
  }
  serve(&Kernel::sample_requests, call);
  std::vector<at::Tensor> kept;
  std::vector<at::Tensor> logprobs;
  if (arguments.is_kept_wanted.has_value()) {
    kept = kept_sets_of(lists);
  }
  if (report.has_value()) {
    logprobs = {report->values, report->ids, report->ranks};
  }
  return {token_ids, status, std::move(kept), std::move(logprobs)};
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(SampleRowsArguments::kName, adapted<&sample_rows_kernel>);
}

}  // namespace ascend_sample::cpu
