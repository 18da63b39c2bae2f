// Gathering, scattering, masks and indices.
#include <algorithm>

#include "aten/operator.h"

namespace hostcann::aten {

// torch_npu passes a dimension that is not indexed (the colon of x[:, i]) as an empty tensor.
static c10::List<std::optional<at::Tensor>> index_list(OptionalInputs indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (const std::optional<at::Tensor>& index : indices) {
    list.push_back(index && index->numel() > 0 ? index : std::nullopt);
  }
  return list;
}

// A list of empty tensors alone is x[empty]: nothing is read or written, rather than everything.
static bool selects_nothing(OptionalInputs indices) {
  return std::none_of(indices.begin(), indices.end(),
                      [](const auto& index) { return index && index->numel() > 0; });
}

// CANN's numbers for `reduce` of the scatter family.
enum Reduce : int64_t { kReplace = 0, kAdd = 1, kMultiply = 2 };

template <typename Source>
static at::Tensor scatter(Input self, int64_t dim, Input index, const Source& source,
                          int64_t reduce) {
  switch (reduce) {
    case kReplace:
      return at::scatter(self, dim, index, source);
    case kAdd:
      return at::scatter(self, dim, index, source, "add");
    case kMultiply:
      return at::scatter(self, dim, index, source, "multiply");
    default:
      throw TaskError(kDeviceTaskFailed, "reduce must be 0, 1 or 2, got " + std::to_string(reduce));
  }
}

}  // namespace hostcann::aten

// ---- by index ----

OPERATOR(aclnnIndex, (ReadInPart self, OptionalInputs indices, Output out),
         if (!selects_nothing(indices)) out = at::index(self, index_list(indices)))
OPERATOR(
    aclnnIndexPutImpl,
    (WrittenInPart selfRef, OptionalInputs indices, Input values, bool accumulate, bool unsafe),
    if (!selects_nothing(indices)) {
      selfRef = at::index_put(selfRef, index_list(indices), values, accumulate);
    })
OPERATOR(aclnnIndexSelect, (ReadInPart self, int64_t dim, Input index, Output out),
         out = at::index_select(self, dim, index))
OPERATOR(aclnnIndexAdd,
         (Input self, int64_t dim, Input index, Input source, Number alpha, Output out),
         out = at::index_add(self, dim, index, source, alpha))
OPERATOR(aclnnIndexCopy, (Input self, int64_t dim, Input index, Input source, Output out),
         out = at::index_copy(self, dim, index, source))
OPERATOR(aclnnInplaceIndexCopy, (WrittenInPart selfRef, int64_t dim, Input index, Input source),
         selfRef = at::index_copy(selfRef, dim, index, source))
OPERATOR(aclnnIndexFillTensor, (Input self, int64_t dim, Integers index, Number value, Output out),
         out = at::index_fill(self, dim, at::tensor(index, at::kLong), value))
OPERATOR(aclnnInplaceIndexFillTensor, (Updated selfRef, int64_t dim, Integers index, Number value),
         selfRef = at::index_fill(selfRef, dim, at::tensor(index, at::kLong), value))
OPERATOR(aclnnEmbedding, (ReadInPart weight, Input indices, Output out),
         out = at::embedding(weight, indices))
OPERATOR(aclnnTake, (ReadInPart self, Input index, Output out), out = at::take(self, index))
OPERATOR(aclnnGather, (ReadInPart self, int64_t dim, Input index, Output out),
         out = at::gather(self, dim, index))
OPERATOR(aclnnScatter,
         (Input self, int64_t dim, Input index, Input src, int64_t reduce, Output out),
         out = scatter(self, dim, index, src, reduce))
OPERATOR(aclnnInplaceScatter,
         (WrittenInPart selfRef, int64_t dim, Input index, Input src, int64_t reduce),
         selfRef = scatter(selfRef, dim, index, src, reduce))
OPERATOR(aclnnScatterValue,
         (Input self, int64_t dim, Input index, Number value, int64_t reduce, Output out),
         out = scatter(self, dim, index, value, reduce))
OPERATOR(aclnnInplaceScatterValue,
         (WrittenInPart selfRef, int64_t dim, Input index, Number value, int64_t reduce),
         selfRef = scatter(selfRef, dim, index, value, reduce))
OPERATOR(aclnnScatterAdd, (Input self, int64_t dim, Input index, Input src, Output out),
         out = at::scatter_add(self, dim, index, src))
OPERATOR(aclnnOneHot,
         (Input self, int64_t numClasses, Input onValue, Input offValue, int64_t axis, Output out),
         const at::Tensor classes = at::arange(numClasses, self.options());
         const int64_t place = axis < 0 ? axis + self.dim() + 1 : axis;
         std::vector<int64_t> sizes(self.dim() + 1, 1); sizes[place] = numClasses;
         out = at::where(at::eq(self.unsqueeze(place), classes.view(sizes)), onValue, offValue))

// ---- by mask ----

OPERATOR(aclnnSWhere, (Input condition, Input self, Input other, Output out),
         out = at::where(condition, self, other))
OPERATOR(aclnnInplaceMaskedFillScalar, (Updated selfRef, Input mask, Number value),
         selfRef = at::masked_fill(selfRef, mask.to(at::kBool), value))
OPERATOR(aclnnInplaceMaskedFillTensor, (Updated selfRef, Input mask, Input value),
         selfRef = at::masked_fill(selfRef, mask.to(at::kBool), value.reshape({})))
OPERATOR(aclnnInplaceMaskedScatter, (Updated selfRef, Input mask, Input source),
         selfRef = at::masked_scatter(selfRef, mask.to(at::kBool), source))
