// The rules that the arguments of the operators over parts of a vocabulary obey, and their outputs.
#include <c10/util/Exception.h>

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

void SegmentWinnersArguments::check() const {
  check_logits(kName, logits);
  const auto check = [&](const at::Tensor& tensor, const char* name, c10::ScalarType dtype) {
    check_per_row(kName, tensor, name, dtype, logits.sym_size(0), logits);
  };
  TORCH_CHECK_VALUE(first_id >= 0 && first_id <= kMaxVocabSize && first_id % 256 == 0, kName,
                    ": first_id must be a multiple of 256 between 0 and ", kMaxVocabSize, ", got ",
                    first_id, ". It is the id of the first column, where a segment begins.");
  check(maximum, "maximum", at::kFloat);
  check(temperature, "temperature", at::kFloat);
  check(min_p, "min_p", at::kFloat);
  check(seed, "seed", at::kLong);
  check(position, "position", at::kLong);
  check_purpose(kName, purpose);
}

FirstOfRowsArguments::Results FirstOfRowsArguments::allocate_outputs() const {
  const c10::SymInt shape[] = {rows.has_value() ? rows->sym_size(0) : logits.sym_size(0), count};
  return {allocate(shape, at::kFloat, logits), allocate(shape, at::kLong, logits),
          allocate({shape[0]}, at::kChar, logits)};
}

SegmentWinnersArguments::Results SegmentWinnersArguments::allocate_outputs() const {
  const c10::SymInt shape[] = {logits.sym_size(0)};
  return {allocate(shape, at::kDouble, logits), allocate(shape, at::kLong, logits)};
}

}  // namespace ascend_sample
