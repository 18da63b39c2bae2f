// Sorting, selecting by rank, searching in what is sorted, counting.
#include "aten/operator.h"

namespace hostcann::aten {

// ATen's CPU kernel counts float32 and float64 only. float64 holds every int32.
static at::Tensor histogram(Input self, int64_t bins, Number low, Number high) {
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return at::histc(
      integral ? self.to(at::kDouble) : self.to(at::promote_types(self.scalar_type(), at::kFloat)),
      bins, low, high);
}

}  // namespace hostcann::aten

OPERATOR(aclnnSort,
         (Input self, bool stable, int64_t dim, bool descending, Output values, Output indices),
         std::tie(values, indices) = at::sort(self, stable, dim, descending))
OPERATOR(aclnnTopk,
         (Input self, int64_t k, int64_t dim, bool largest, bool sorted, Output values,
          Output indices),
         std::tie(values, indices) = at::topk(self, k, dim, largest, sorted))
OPERATOR(aclnnKthvalue,
         (Input self, int64_t k, int64_t dim, bool keepdim, Output valuesOut, Output indicesOut),
         std::tie(valuesOut, indicesOut) = at::kthvalue(self, k, dim, keepdim))
OPERATOR(aclnnMedian, (Input self, Output valuesOut), valuesOut = at::median(self))
OPERATOR(aclnnMedianDim,
         (Input self, int64_t dim, bool keepDim, Output valuesOut, Output indicesOut),
         std::tie(valuesOut, indicesOut) = at::median(self, dim, keepDim))
OPERATOR(aclnnSearchSorted,
         (Input sortedSequence, Input self, bool outInt32, bool right, OptionalInput sorter,
          Output out),
         out = at::searchsorted(sortedSequence, self, outInt32, right, std::nullopt, sorter))
OPERATOR(aclnnBincount, (Input self, OptionalInput weights, int64_t minlength, Output out),
         out = at::bincount(self, weights, minlength))
OPERATOR(aclnnHistc, (Input self, int64_t bins, Number min, Number max, Output out),
         out = histogram(self, bins, min, max))
