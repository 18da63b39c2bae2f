// What a rank finds of its part of rows, by the core of targets.h: shard_leads, shard_histogram and
// first_of_rows for the draw, chunk_sums, log_of_sums and count_above for logprobs, on CPU tensors.
#include <torch/library.h>

#include <span>

#include "adapter.h"
#include "dispatch.h"
#include "operators.h"
#include "values.h"

namespace ascend_sample::cpu {
namespace {

static_assert(sizeof(ShardLead) == 6 * sizeof(double));

/// The numbers of rows, side by side, for as long as this lives.
template <typename Element>
class Numbers {
 public:
  explicit Numbers(const std::optional<at::Tensor>& tensor)
      : held_(tensor.has_value() ? tensor->contiguous() : at::Tensor()) {}

  std::span<const Element> span() const {
    return held_.defined() ? std::span<const Element>(held_.const_data_ptr<Element>(),
                                                      static_cast<size_t>(held_.numel()))
                           : std::span<const Element>();
  }

 private:
  at::Tensor held_;
};

void check_places(const char* op, const Numbers<int64_t>& rows, const at::Tensor& logits) {
  check_values(op, "rows", rows.span(),
               {.least = 0,
                .end = logits.size(0),
                .end_name = "the batch size of logits",
                .remedy = "Pass None for all rows."});
}

FirstOfRowsArguments::Results first_of_rows_kernel(const FirstOfRowsArguments& arguments) {
  check_arguments(arguments);
  const at::Tensor& logits = arguments.logits;
  const Numbers<int64_t> rows(arguments.rows);
  check_places(FirstOfRowsArguments::kName, rows, logits);
  auto [values, token_ids, status] = allocate_outputs(arguments);
  serve(&Kernel::find_first,
        FirstCall{.logits = logits_of(logits),
                  .batch_size = values.size(0),
                  .rows = rows.span(),
                  .count = arguments.count,
                  .values = values.mutable_data_ptr<float>(),
                  .ids = token_ids.mutable_data_ptr<int64_t>(),
                  .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())});
  return {values, token_ids, status};
}

at::Tensor shard_histogram_kernel(const ShardHistogramArguments& arguments) {
  check_arguments(arguments);
  const at::Tensor& logits = arguments.logits;
  const Numbers<int64_t> rows(arguments.rows);
  check_places(ShardHistogramArguments::kName, rows, logits);
  const Numbers<float> maximum(arguments.maximum);
  const Numbers<bool> counts(arguments.counts);
  const Numbers<int64_t> prefix(arguments.prefix);
  at::Tensor bins = allocate_outputs(arguments);
  serve(&Kernel::weigh_digits, DigitCall{.logits = logits_of(logits),
                                         .batch_size = bins.size(0),
                                         .rows = rows.span(),
                                         .maximum = maximum.span().data(),
                                         .counts = counts.span().data(),
                                         .prefix = prefix.span().data(),
                                         .digit = arguments.digit,
                                         .bins = bins.mutable_data_ptr<double>()});
  return bins;
}

ShardLeadsArguments::Results shard_leads_kernel(const ShardLeadsArguments& arguments) {
  check_arguments(arguments);
  const at::Tensor& logits = arguments.logits;
  const Numbers<int64_t> rows(arguments.rows);
  check_places(ShardLeadsArguments::kName, rows, logits);
  const Numbers<float> temperature(arguments.temperature);
  const Numbers<float> min_p(arguments.min_p);
  const Numbers<int64_t> seed(arguments.seed);
  const Numbers<int64_t> position(arguments.position);
  const Numbers<float> maximum(arguments.maximum);
  const Numbers<float> values[] = {Numbers<float>(arguments.least_values),
                                   Numbers<float>(arguments.most_values)};
  const Numbers<int64_t> last_ids[] = {Numbers<int64_t>(arguments.least_last_ids),
                                       Numbers<int64_t>(arguments.most_last_ids)};
  auto [leads, token_ids, own_maximum, status] = allocate_outputs(arguments);
  serve(&Kernel::lead,
        ShardCall{.logits = logits_of(logits),
                  .batch_size = arguments.seed.size(0),
                  .rows = rows.span(),
                  .first_id = arguments.first_id,
                  .temperature = temperature.span().data(),
                  .min_p = min_p.span().data(),
                  .maximum = maximum.span(),
                  .cut_values = {values[0].span(), values[1].span()},
                  .cut_last_ids = {last_ids[0].span(), last_ids[1].span()},
                  .seed = seed.span().data(),
                  .position = position.span().data(),
                  .purpose = static_cast<uint32_t>(arguments.purpose),
                  .slack = arguments.slack,
                  .leads = reinterpret_cast<ShardLead*>(leads.mutable_data_ptr<double>()),
                  .ids = token_ids.mutable_data_ptr<int64_t>(),
                  .own_maximum = own_maximum.mutable_data_ptr<float>(),
                  .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())});
  return {leads, token_ids, own_maximum, status};
}

ChunkSumsArguments::Results chunk_sums_kernel(const ChunkSumsArguments& arguments) {
  check_arguments(arguments);
  const at::Tensor& logits = arguments.logits;
  const Numbers<int64_t> rows(arguments.rows);
  check_places(ChunkSumsArguments::kName, rows, logits);
  auto [maxima, sums] = allocate_outputs(arguments);
  serve(&Kernel::sum_chunks, ChunksCall{.logits = logits_of(logits),
                                        .batch_size = maxima.size(0),
                                        .rows = rows.span(),
                                        .chunks = maxima.size(1),
                                        .maxima = maxima.mutable_data_ptr<float>(),
                                        .sums = sums.mutable_data_ptr<double>()});
  return {maxima, sums};
}

LogOfSumsArguments::Results log_of_sums_kernel(const LogOfSumsArguments& arguments) {
  check_arguments(arguments);
  const Numbers<float> maxima(arguments.maxima);
  const Numbers<double> sums(arguments.sums);
  auto [maximum, log_sum] = allocate_outputs(arguments);
  serve(&Kernel::add_sums, LogSumCall{.batch_size = maximum.size(0),
                                      .chunks = arguments.maxima.size(1),
                                      .maxima = maxima.span().data(),
                                      .sums = sums.span().data(),
                                      .maximum = maximum.mutable_data_ptr<float>(),
                                      .log_sum = log_sum.mutable_data_ptr<double>()});
  return {maximum, log_sum};
}

at::Tensor count_above_kernel(const CountAboveArguments& arguments) {
  check_arguments(arguments);
  const at::Tensor& logits = arguments.logits;
  const Numbers<int64_t> rows(arguments.rows);
  check_places(CountAboveArguments::kName, rows, logits);
  const Numbers<float> bounds(arguments.bounds);
  at::Tensor counts = allocate_outputs(arguments);
  serve(&Kernel::count_above, AboveCall{.logits = logits_of(logits),
                                        .batch_size = counts.size(0),
                                        .rows = rows.span(),
                                        .bounds = bounds.span().data(),
                                        .counts = counts.mutable_data_ptr<int64_t>()});
  return counts;
}

}  // namespace

TORCH_LIBRARY_IMPL(ascend_sample, CPU, m) {
  m.impl(FirstOfRowsArguments::kName, adapted<&first_of_rows_kernel>);
  m.impl(ShardHistogramArguments::kName, adapted<&shard_histogram_kernel>);
  m.impl(ChunkSumsArguments::kName, adapted<&chunk_sums_kernel>);
  m.impl(LogOfSumsArguments::kName, adapted<&log_of_sums_kernel>);
  m.impl(CountAboveArguments::kName, adapted<&count_above_kernel>);
  m.impl(ShardLeadsArguments::kName, adapted<&shard_leads_kernel>);
}

}  // namespace ascend_sample::cpu
