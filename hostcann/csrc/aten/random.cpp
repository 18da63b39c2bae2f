// Random numbers. Seed and offset are arguments: the same two give the same numbers, on every
// thread and in every run. The sequence is that of ATen's CPU generator, not a device's.
#include <ATen/CPUGeneratorImpl.h>

#include "aten/dropout.h"
#include "aten/operator.h"

namespace hostcann::aten {

// Mixes seed and offset so that (seed, offset + 1) and (seed + 1, offset) start unrelated
// sequences. The constants are splitmix64's.
static at::Generator generator_of(uint64_t seed, uint64_t offset) {
  uint64_t state = seed + 0x9e3779b97f4a7c15ull * (offset + 1);
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ull;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebull;
  return at::make_generator<at::CPUGeneratorImpl>(state ^ (state >> 31));
}

// What captured graphs call: seed and offset lie in device memory, so that each replay draws anew.
static at::Generator generator_of(Input seed, Input offset, uint64_t offset_in_graph) {
  return generator_of(static_cast<uint64_t>(seed.item<int64_t>()),
                      static_cast<uint64_t>(offset.item<int64_t>()) + offset_in_graph);
}

static at::Tensor draw_mask(int64_t bytes, double p, const at::Generator& generator) {
  const at::Tensor kept = at::empty({bytes, 8}, at::kByte).bernoulli_(1 - p, generator);
  return at::sum(at::bitwise_left_shift(kept, at::arange(8, at::kByte)), {1}, false, at::kByte);
}

at::Tensor drop(Input self, Input mask, double p) {
  const at::Tensor bits = at::bitwise_right_shift(mask.unsqueeze(1), at::arange(8, at::kByte));
  const at::Tensor kept = at::bitwise_and(bits, 1).flatten().narrow(0, 0, self.numel());
  return at::where(kept.view(self.sizes()).to(at::kBool), self * (1 / (1 - p)),
                   at::zeros_like(self));
}

}  // namespace hostcann::aten

OPERATOR(aclnnInplaceUniform,
         (Output selfRef, double from, double to, uint64_t seed, uint64_t offset),
         selfRef.tensor().uniform_(from, to, generator_of(seed, offset)))
OPERATOR(aclnnInplaceUniformTensor,
         (Output selfRef, double from, double to, Input seed, Input offset, uint64_t offsetInGraph),
         selfRef.tensor().uniform_(from, to, generator_of(seed, offset, offsetInGraph)))
OPERATOR(aclnnInplaceNormal, (Output selfRef, float mean, float std, int64_t seed, int64_t offset),
         selfRef.tensor().normal_(mean, std, generator_of(seed, offset)))
OPERATOR(aclnnInplaceNormalTensor,
         (Output selfRef, float mean, float std, Input seed, Input offset, int64_t offsetInGraph),
         selfRef.tensor().normal_(mean, std, generator_of(seed, offset, offsetInGraph)))
OPERATOR(aclnnInplaceRandom,
         (Output selfRef, int64_t from, int64_t to, uint64_t seed, uint64_t offset),
         selfRef.tensor().random_(from, to, generator_of(seed, offset)))
OPERATOR(aclnnInplaceRandomTensor,
         (Output selfRef, int64_t from, int64_t to, Input seed, Input offset,
          uint64_t offsetInGraph),
         selfRef.tensor().random_(from, to, generator_of(seed, offset, offsetInGraph)))
OPERATOR(aclnnInplaceBernoulli, (Output selfRef, Number prob, int64_t seed, int64_t offset),
         selfRef.tensor().bernoulli_(prob.toDouble(), generator_of(seed, offset)))
OPERATOR(aclnnInplaceBernoulliTensor, (Output selfRef, Input prob, int64_t seed, int64_t offset),
         selfRef.tensor().bernoulli_(prob, generator_of(seed, offset)))
// What torch_npu calls for exponential_ on Ascend950; elsewhere it composes exponential_ of
// aclnnInplaceUniform and others.
OPERATOR(aclnnSimThreadExponential,
         (Output selfRef, int64_t count, double lambd, int64_t seed, int64_t offset),
         selfRef.tensor().exponential_(lambd, generator_of(seed, offset)))
OPERATOR(aclnnMultinomial,
         (Input self, int64_t numsamples, bool replacement, int64_t seed, int64_t offset,
          Output out),
         out = at::multinomial(self, numsamples, replacement, generator_of(seed, offset)))
OPERATOR(aclnnMultinomialTensor,
         (Input self, int64_t numsamples, bool replacement, Input seed, Input offset,
          int64_t offsetInGraph, Output out),
         out = at::multinomial(self, numsamples, replacement,
                               generator_of(seed, offset, offsetInGraph)))
OPERATOR(aclnnRandperm, (int64_t n, int64_t seed, int64_t offset, Output out),
         out = at::randperm(n, generator_of(seed, offset), out.options()))
OPERATOR(aclnnDropoutGenMaskV2,
         (Integers shape, double prob, int64_t seed, int64_t offset, DataType probDataType,
          Output out),
         out = draw_mask(out.tensor().numel(), prob, generator_of(seed, offset)))
OPERATOR(aclnnDropoutGenMaskV2Tensor,
         (Integers shape, double prob, Input seed, Input offset, int64_t offsetInGraph,
          DataType probDataType, Output out),
         out = draw_mask(out.tensor().numel(), prob, generator_of(seed, offset, offsetInGraph)))
OPERATOR(aclnnDropoutDoMask, (Input self, Input mask, double prob, Output out),
         out = drop(self, mask, prob))
