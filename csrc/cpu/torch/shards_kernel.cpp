// What a rank finds of its part of rows, by the core of targets.h: shard_leads, shard_histogram and
// first_of_rows for the draw, chunk_sums, log_of_sums and count_above for logprobs, on CPU tensors.
#include <torch/library.h>

#include "adapter.h"
#include "dispatch.h"
#include "layer_operators.h"
#include "reader.h"

namespace ascend_sample::cpu {
namespace {

static_assert(sizeof(ShardLead) == 6 * sizeof(double));

FirstOfRowsArguments::Results first_of_rows_kernel(const FirstOfRowsArguments& arguments) {
  arguments.check();
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  const auto rows = reader.rows(FirstOfRowsArguments::kName, arguments.rows, logits);
  auto [values, token_ids, status] = arguments.allocate_outputs();
  serve(&Kernel::find_first,
        FirstCall{.logits = logits_of(logits),
                  .batch_size = values.size(0),
                  .rows = rows,
                  .count = arguments.count,
                  .values = values.mutable_data_ptr<float>(),
                  .ids = token_ids.mutable_data_ptr<int64_t>(),
                  .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())});
  return {values, token_ids, status};
}

at::Tensor shard_histogram_kernel(const ShardHistogramArguments& arguments) {
  arguments.check();
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  const auto rows = reader.rows(ShardHistogramArguments::kName, arguments.rows, logits);
  at::Tensor bins = arguments.allocate_outputs();
  serve(&Kernel::weigh_digits, DigitCall{.logits = logits_of(logits),
                                         .batch_size = bins.size(0),
                                         .rows = rows,
                                         .maximum = reader.list<float>(arguments.maximum),
                                         .counts = reader.list<bool>(arguments.counts),
                                         .prefix = reader.list<int64_t>(arguments.prefix),
                                         .digit = arguments.digit,
                                         .bins = bins.mutable_data_ptr<double>()});
  return bins;
}

ShardLeadsArguments::Results shard_leads_kernel(const ShardLeadsArguments& arguments) {
  arguments.check();
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  const auto rows = reader.rows(ShardLeadsArguments::kName, arguments.rows, logits);
  auto [leads, token_ids, own_maximum, status] = arguments.allocate_outputs();
  serve(&Kernel::lead,
        ShardCall{.logits = logits_of(logits),
                  .batch_size = arguments.seed.size(0),
                  .rows = rows,
                  .first_id = arguments.first_id,
                  .temperature = reader.list<float>(arguments.temperature),
                  .min_p = reader.list<float>(arguments.min_p),
                  .maximum = reader.numbers<float>(arguments.maximum),
                  .cut_values = {reader.numbers<float>(arguments.least_values),
                                 reader.numbers<float>(arguments.most_values)},
                  .cut_last_ids = {reader.numbers<int64_t>(arguments.least_last_ids),
                                   reader.numbers<int64_t>(arguments.most_last_ids)},
                  .seed = reader.list<int64_t>(arguments.seed),
                  .position = reader.list<int64_t>(arguments.position),
                  .purpose = static_cast<uint32_t>(arguments.purpose),
                  .slack = arguments.slack,
                  .leads = reinterpret_cast<ShardLead*>(leads.mutable_data_ptr<double>()),
                  .ids = token_ids.mutable_data_ptr<int64_t>(),
                  .own_maximum = own_maximum.mutable_data_ptr<float>(),
                  .status = reinterpret_cast<RowStatus*>(status.mutable_data_ptr<int8_t>())});
  return {leads, token_ids, own_maximum, status};
}

ChunkSumsArguments::Results chunk_sums_kernel(const ChunkSumsArguments& arguments) {
  arguments.check();
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  const auto rows = reader.rows(ChunkSumsArguments::kName, arguments.rows, logits);
  auto [maxima, sums, distances] = arguments.allocate_outputs();
  serve(&Kernel::sum_chunks, ChunksCall{.logits = logits_of(logits),
                                        .batch_size = maxima.size(0),
                                        .rows = rows,
                                        .chunks = maxima.size(1),
                                        .maxima = maxima.mutable_data_ptr<float>(),
                                        .sums = sums.mutable_data_ptr<double>(),
                                        .distances = written<float>(distances)});
  return {maxima, sums, distances};
}

LogOfSumsArguments::Results log_of_sums_kernel(const LogOfSumsArguments& arguments) {
  arguments.check();
  Reader reader;
  auto [maximum, log_sum, entropies] = arguments.allocate_outputs();
  serve(&Kernel::add_sums, LogSumCall{.batch_size = maximum.size(0),
                                      .chunks = arguments.maxima.size(1),
                                      .maxima = reader.list<float>(arguments.maxima),
                                      .sums = reader.list<double>(arguments.sums),
                                      .distances = reader.numbers<float>(arguments.distances),
                                      .maximum = maximum.mutable_data_ptr<float>(),
                                      .log_sum = log_sum.mutable_data_ptr<double>(),
                                      .entropies = entropies.mutable_data_ptr<float>()});
  return {maximum, log_sum, entropies};
}

at::Tensor count_above_kernel(const CountAboveArguments& arguments) {
  arguments.check();
  const at::Tensor& logits = arguments.logits;
  Reader reader;
  const auto rows = reader.rows(CountAboveArguments::kName, arguments.rows, logits);
  at::Tensor counts = arguments.allocate_outputs();
  serve(&Kernel::count_above, AboveCall{.logits = logits_of(logits),
                                        .batch_size = counts.size(0),
                                        .rows = rows,
                                        .bounds = reader.list<float>(arguments.bounds),
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
