// The rules that the arguments of the operators over parts of a vocabulary obey, and their outputs.
#include <c10/util/Exception.h>

#include <iterator>
#include <optional>

#include "checks.h"
#include "contract.h"
#include "layer_operators.h"

namespace ascend_sample {

void FirstOfRowsArguments::check() const {
  check_logits(kName, logits);
  count_rows(kName, logits, rows);
  TORCH_CHECK_VALUE(count >= 1 && count <= kMaxTopK, kName, ": count must be between 1 and ",
                    kMaxTopK, ", got ", count, ". Sort the logits for more.");
  check_count(kName, count, logits);
}

void ShardHistogramArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt count = count_rows(kName, logits, rows);
  check_per_row(kName, maximum, "maximum", at::kFloat, count, logits);
  check_per_row(kName, counts, "counts", at::kBool, count, logits);
  check_per_row(kName, prefix, "prefix", at::kLong, count, logits);
  TORCH_CHECK_VALUE(digit >= 0 && digit < 4, kName, ": digit must be between 0 and 3, got ", digit,
                    ". A value has four digits of 8 bits.");
}

void ChunkSumsArguments::check() const {
  check_logits(kName, logits);
  count_rows(kName, logits, rows);
}

void LogOfSumsArguments::check() const {
  const auto check = [&](const at::Tensor& tensor, const char* name, c10::ScalarType dtype) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, kName, ": ", name, " must be ", dtype, ", got ",
                     tensor.scalar_type(), ". Pass what chunk_sums returns.");
    TORCH_CHECK_VALUE(
        tensor.dim() == 2 && tensor.sym_sizes() == maxima.sym_sizes() && tensor.sym_size(1) >= 1,
        kName, ": ", name, " must have the shape [rows, chunks] of maxima, got ",
        tensor.sym_sizes(), ". Pass what chunk_sums returns.");
    TORCH_CHECK_VALUE(tensor.device() == maxima.device(), kName, ": ", name,
                      " must be on the device of maxima (", maxima.device(), "), got ",
                      tensor.device(), ". Pass what chunk_sums returns.");
  };
  check(maxima, "maxima", at::kFloat);
  check(sums, "sums", at::kDouble);
  if (distances.has_value()) {
    check(*distances, "distances", at::kFloat);
  }
}

void CountAboveArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt count = count_rows(kName, logits, rows);
  check_per_row(kName, bounds, "bounds", at::kFloat, count, logits);
}

void ShardLeadsArguments::check() const {
  check_logits(kName, logits);
  const c10::SymInt count = count_rows(kName, logits, rows);
  const auto check = [&](const at::Tensor& tensor, const char* name, c10::ScalarType dtype) {
    check_per_row(kName, tensor, name, dtype, count, logits);
  };
  TORCH_CHECK_VALUE(first_id >= 0 && first_id <= kMaxVocabSize, kName,
                    ": first_id must be between 0 and ", kMaxVocabSize, ", got ", first_id,
                    ". It is the id of the first column.");
  TORCH_CHECK_VALUE(slack >= 0 && slack < 1, kName, ": slack must be in [0, 1), got ", slack,
                    ". It is a share of a score.");
  check(temperature, "temperature", at::kFloat);
  check(min_p, "min_p", at::kFloat);
  check(seed, "seed", at::kLong);
  check(position, "position", at::kLong);
  check_purpose(kName, purpose);
  if (maximum.has_value()) {
    check(*maximum, "maximum", at::kFloat);
  }
  const std::optional<at::Tensor>* const cuts[] = {&least_values, &most_values, &least_last_ids,
                                                   &most_last_ids};
  const char* const names[] = {"least_values", "most_values", "least_last_ids", "most_last_ids"};
  for (size_t i = 0; i < std::size(cuts); ++i) {
    TORCH_CHECK_VALUE(cuts[i]->has_value() == cuts[0]->has_value(), kName, ": ", names[i],
                      " must be given together with ", names[0],
                      ", got one of them alone. Give both cuts, or none.");
    if (cuts[i]->has_value()) {
      check(**cuts[i], names[i], i < 2 ? at::kFloat : at::kLong);
    }
  }
}

FirstOfRowsArguments::Results FirstOfRowsArguments::allocate_outputs() const {
  const c10::SymInt shape[] = {rows.has_value() ? rows->sym_size(0) : logits.sym_size(0), count};
  return {allocate(shape, at::kFloat, logits), allocate(shape, at::kLong, logits),
          allocate({shape[0]}, at::kChar, logits)};
}

at::Tensor ShardHistogramArguments::allocate_outputs() const {
  return allocate({prefix.sym_size(0), c10::SymInt(256)}, at::kDouble, logits);
}

ChunkSumsArguments::Results ChunkSumsArguments::allocate_outputs() const {
  const c10::SymInt shape[] = {rows.has_value() ? rows->sym_size(0) : logits.sym_size(0),
                               (logits.sym_size(1) + 1023) / 1024};
  return {allocate(shape, at::kFloat, logits), allocate(shape, at::kDouble, logits),
          allocate({entropy ? shape[0] : c10::SymInt(0), shape[1]}, at::kFloat, logits)};
}

LogOfSumsArguments::Results LogOfSumsArguments::allocate_outputs() const {
  const c10::SymInt rows = maxima.sym_size(0);
  return {allocate({rows}, at::kFloat, maxima), allocate({rows}, at::kDouble, maxima),
          allocate({distances.has_value() ? rows : c10::SymInt(0)}, at::kFloat, maxima)};
}

at::Tensor CountAboveArguments::allocate_outputs() const {
  return allocate({bounds.sym_size(0)}, at::kLong, logits);
}

ShardLeadsArguments::Results ShardLeadsArguments::allocate_outputs() const {
  const c10::SymInt rows = seed.sym_size(0);
  return {allocate({rows, 3, 6}, at::kDouble, logits), allocate({rows, 3}, at::kLong, logits),
          allocate({rows}, at::kFloat, logits), allocate({rows}, at::kChar, logits)};
}

}  // namespace ascend_sample
