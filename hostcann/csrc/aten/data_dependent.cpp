// Operators whose results' sizes depend on values. The caller gives buffers that hold the largest
// result; the kernel fills their beginnings and says the sizes, which the caller reads with
// aclGetViewShape once it has synchronised.
#include "aten/operator.h"

namespace hostcann::aten {

constexpr int64_t kFlattened = 1000;  // the dim of aclnnUniqueConsecutive that means "none"

using UniqueResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

static UniqueResult unique_consecutive(Input self, bool return_inverse, bool return_counts,
                                       int64_t dim) {
  const std::optional<int64_t> along = dim == kFlattened ? std::nullopt : std::optional(dim);
  return at::unique_consecutive(self, return_inverse, return_counts, along);
}

// Inverse and counts that the caller did not ask for leave their buffers alone.
static void assign(const UniqueResult& result, bool return_inverse, bool return_counts,
                   const SizedOutput& values, const SizedOutput& inverse,
                   const SizedOutput& counts) {
  values = std::get<0>(result);
  if (return_inverse) inverse = std::get<1>(result);
  if (return_counts) counts = std::get<2>(result);
}

}  // namespace hostcann::aten

OPERATOR(aclnnNonzero, (Input self, SizedOutput out), out = at::nonzero(self))
// One row for each dimension, where aclnnNonzero has one row for each element.
OPERATOR(aclnnNonzeroV2, (Input self, SizedOutput out), out = at::nonzero(self).t())
OPERATOR(aclnnMaskedSelect, (Input self, Input mask, SizedOutput out),
         out = at::masked_select(self, mask.to(at::kBool)))
OPERATOR(aclnnUnique,
         (Input self, bool sorted, bool returnInverse, SizedOutput valueOut,
          SizedOutput inverseOut),
         assign(at::_unique2(self, sorted, returnInverse, false), returnInverse, false, valueOut,
                inverseOut, inverseOut))
OPERATOR(aclnnUnique2,
         (Input self, bool sorted, bool returnInverse, bool returnCounts, SizedOutput valueOut,
          SizedOutput inverseOut, SizedOutput countsOut),
         assign(at::_unique2(self, sorted, returnInverse, returnCounts), returnInverse,
                returnCounts, valueOut, inverseOut, countsOut))
OPERATOR(aclnnUniqueConsecutive,
         (Input self, bool returnInverse, bool returnCounts, int64_t dim, SizedOutput valueOut,
          SizedOutput inverseOut, SizedOutput countsOut),
         assign(unique_consecutive(self, returnInverse, returnCounts, dim), returnInverse,
                returnCounts, valueOut, inverseOut, countsOut))
