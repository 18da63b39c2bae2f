// The rules that the arguments of the operators over parts of a vocabulary obey, and their outputs.
#include <c10/util/Exception.h>

#include <iterator>
#include <optional>

#include "checks.h"
#include "contract.h"

namespace ascend_sample {

using c10::ScalarType;

void check_arguments(const FirstOfRowsArguments& arguments) {
  constexpr const char* kOperator = FirstOfRowsArguments::kName;
  check_logits(kOperator, arguments.logits);
  count_rows(kOperator, arguments.logits, arguments.rows);
  TORCH_CHECK_VALUE(arguments.count >= 1 && arguments.count <= kMaxTopK, kOperator,
                    ": count must be between 1 and ", kMaxTopK, ", got ", arguments.count,
                    ". Sort the logits for more.");
  check_count(kOperator, arguments.count, arguments.logits);
}

void check_arguments(const ShardHistogramArguments& arguments) {
  constexpr const char* kOperator = ShardHistogramArguments::kName;
  const auto& [logits, rows, maximum, counts, prefix, digit] = arguments;
  check_logits(kOperator, logits);
  const c10::SymInt count = count_rows(kOperator, logits, rows);
  check_per_row(kOperator, maximum, "maximum", ScalarType::Float, count, logits, "logits");
  check_per_row(kOperator, counts, "counts", ScalarType::Bool, count, logits, "logits");
  check_per_row(kOperator, prefix, "prefix", ScalarType::Long, count, logits, "logits");
  TORCH_CHECK_VALUE(digit >= 0 && digit < 4, kOperator, ": digit must be between 0 and 3, got ",
                    digit, ". A value has four digits of 8 bits.");
}

void check_arguments(const ChunkSumsArguments& arguments) {
  check_logits(ChunkSumsArguments::kName, arguments.logits);
  count_rows(ChunkSumsArguments::kName, arguments.logits, arguments.rows);
}

void check_arguments(const LogOfSumsArguments& arguments) {
  constexpr const char* kOperator = LogOfSumsArguments::kName;
  const auto& [maxima, sums, distances] = arguments;
  const auto check = [&](const at::Tensor& tensor, const char* name, ScalarType dtype) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, kOperator, ": ", name, " must be ", dtype,
                     ", got ", tensor.scalar_type(), ". Pass what chunk_sums returns.");
    TORCH_CHECK_VALUE(
        tensor.dim() == 2 && tensor.sym_sizes() == maxima.sym_sizes() && tensor.sym_size(1) >= 1,
        kOperator, ": ", name, " must have the shape [rows, chunks] of maxima, got ",
        tensor.sym_sizes(), ". Pass what chunk_sums returns.");
    TORCH_CHECK_VALUE(tensor.device() == maxima.device(), kOperator, ": ", name,
                      " must be on the device of maxima (", maxima.device(), "), got ",
                      tensor.device(), ". Pass what chunk_sums returns.");
  };
  check(maxima, "maxima", ScalarType::Float);
  check(sums, "sums", ScalarType::Double);
  if (distances.has_value()) {
    check(*distances, "distances", ScalarType::Float);
  }
}

void check_arguments(const CountAboveArguments& arguments) {
  constexpr const char* kOperator = CountAboveArguments::kName;
  const auto& [logits, rows, bounds] = arguments;
  check_logits(kOperator, logits);
  const c10::SymInt count = count_rows(kOperator, logits, rows);
  check_per_row(kOperator, bounds, "bounds", ScalarType::Float, count, logits, "logits");
}

void check_arguments(const ShardLeadsArguments& arguments) {
  constexpr const char* kOperator = ShardLeadsArguments::kName;
  const at::Tensor& logits = arguments.logits;
  check_logits(kOperator, logits);
  const c10::SymInt count = count_rows(kOperator, logits, arguments.rows);
  const auto check = [&](const at::Tensor& tensor, const char* name, ScalarType dtype) {
    check_per_row(kOperator, tensor, name, dtype, count, logits, "logits");
  };
  TORCH_CHECK_VALUE(arguments.first_id >= 0 && arguments.first_id <= kMaxVocabSize, kOperator,
                    ": first_id must be between 0 and ", kMaxVocabSize, ", got ",
                    arguments.first_id, ". It is the id of the first column.");
  TORCH_CHECK_VALUE(arguments.slack >= 0 && arguments.slack < 1, kOperator,
                    ": slack must be in [0, 1), got ", arguments.slack,
                    ". It is a share of a score.");
  check(arguments.temperature, "temperature", ScalarType::Float);
  check(arguments.min_p, "min_p", ScalarType::Float);
  check(arguments.seed, "seed", ScalarType::Long);
  check(arguments.position, "position", ScalarType::Long);
  check_purpose(kOperator, arguments.purpose);
  if (arguments.maximum.has_value()) {
    check(*arguments.maximum, "maximum", ScalarType::Float);
  }
  const std::optional<at::Tensor>* const cuts[] = {&arguments.least_values, &arguments.most_values,
                                                   &arguments.least_last_ids,
                                                   &arguments.most_last_ids};
  const char* const names[] = {"least_values", "most_values", "least_last_ids", "most_last_ids"};
  for (size_t i = 0; i < std::size(cuts); ++i) {
    TORCH_CHECK_VALUE(cuts[i]->has_value() == cuts[0]->has_value(), kOperator, ": ", names[i],
                      " must be given together with ", names[0],
                      ", got one of them alone. Give both cuts, or none.");
    if (cuts[i]->has_value()) {
      check(**cuts[i], names[i], i < 2 ? ScalarType::Float : ScalarType::Long);
    }
  }
}

FirstOfRowsArguments::Results allocate_outputs(const FirstOfRowsArguments& arguments) {
  const auto& [logits, rows, count] = arguments;
  const c10::SymInt shape[] = {rows.has_value() ? rows->sym_size(0) : logits.sym_size(0), count};
  return {allocate(shape, c10::kFloat, logits), allocate(shape, c10::kLong, logits),
          allocate({shape[0]}, c10::kChar, logits)};
}

at::Tensor allocate_outputs(const ShardHistogramArguments& arguments) {
  return allocate({arguments.prefix.sym_size(0), c10::SymInt(256)}, c10::kDouble, arguments.logits);
}

ChunkSumsArguments::Results allocate_outputs(const ChunkSumsArguments& arguments) {
  const auto& [logits, rows, entropy] = arguments;
  const c10::SymInt shape[] = {rows.has_value() ? rows->sym_size(0) : logits.sym_size(0),
                               (logits.sym_size(1) + 1023) / 1024};
  return {allocate(shape, c10::kFloat, logits), allocate(shape, c10::kDouble, logits),
          allocate({entropy ? shape[0] : c10::SymInt(0), shape[1]}, c10::kFloat, logits)};
}

LogOfSumsArguments::Results allocate_outputs(const LogOfSumsArguments& arguments) {
  const at::Tensor& maxima = arguments.maxima;
  const c10::SymInt rows = maxima.sym_size(0);
  return {allocate({rows}, c10::kFloat, maxima), allocate({rows}, c10::kDouble, maxima),
          allocate({arguments.distances.has_value() ? rows : c10::SymInt(0)}, c10::kFloat, maxima)};
}

at::Tensor allocate_outputs(const CountAboveArguments& arguments) {
  return allocate({arguments.bounds.sym_size(0)}, c10::kLong, arguments.logits);
}

ShardLeadsArguments::Results allocate_outputs(const ShardLeadsArguments& arguments) {
  const at::Tensor& logits = arguments.logits;
  const c10::SymInt rows = arguments.seed.sym_size(0);
  return {allocate({rows, 3, 6}, c10::kDouble, logits), allocate({rows, 3}, c10::kLong, logits),
          allocate({rows}, c10::kFloat, logits), allocate({rows}, c10::kChar, logits)};
}

}  // namespace ascend_sample
