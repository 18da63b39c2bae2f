// Fused attention, which torch_npu calls for torch's scaled_dot_product_attention.
#include <algorithm>
#include <limits>

#include "hostcann/aten/operator.h"

namespace hostcann::aten {

// What CANN's attenMask means. The causal modes come with a mask of a fixed size, which says
// nothing new.
enum SparseMode : int64_t {
  kMaskAsGiven = 0,
  kWholeMask = 1,
  kCausalUpperLeft = 2,
  kCausalLowerRight = 3
};

[[noreturn]] static void refuse(const std::string& rule) {
  throw TaskError(kDeviceTaskFailed, rule);
}

// [batch, heads, length, width], whatever the layout.
static at::Tensor by_heads(Input x, Text layout, int64_t width) {
  if (layout == "BNSD") return x;
  if (layout == "BSND") return x.transpose(1, 2);
  if (layout == "BSH") return x.unflatten(2, {-1, width}).transpose(1, 2);
  if (layout == "SBH") return x.unflatten(2, {-1, width}).permute({1, 2, 0, 3});
  refuse("inputLayout must be BNSD, BSND, BSH or SBH, got " + layout);
}

static at::Tensor as_laid_out(Input x, Text layout) {
  if (layout == "BNSD") return x;
  if (layout == "BSND") return x.transpose(1, 2);
  if (layout == "BSH") return x.transpose(1, 2).flatten(2);
  return x.permute({2, 0, 1, 3}).flatten(2);
}

// What may be attended to, as torch has it (true = takes part); nothing where everything may.
static std::optional<at::Tensor> allowed(OptionalInput mask, int64_t sparse_mode, int64_t rows,
                                         int64_t columns) {
  switch (sparse_mode) {
    case kMaskAsGiven:
    case kWholeMask:
      return mask ? std::optional(mask->to(at::kBool).logical_not()) : std::nullopt;
    case kCausalUpperLeft:
    case kCausalLowerRight: {
      const int64_t diagonal = sparse_mode == kCausalUpperLeft ? 0 : columns - rows;
      return at::ones({rows, columns}, at::kBool).tril(diagonal);
    }
    default:
      refuse("sparseMode must be 0, 1, 2 or 3, got " + std::to_string(sparse_mode));
  }
}

static void attend(Input query, Input key, Input value, OptionalInput mask, double scale,
                   int64_t heads, Text layout, int64_t sparse_mode, const Output& softmax_max,
                   const Output& softmax_sum, const Output& attention) {
  const bool heads_are_flat = layout == "BSH" || layout == "SBH";
  const int64_t width = heads_are_flat ? query.size(2) / heads : query.size(3);
  const at::Tensor q = by_heads(query, layout, width);
  const at::Tensor k = by_heads(key, layout, width);
  const at::Tensor v = by_heads(value, layout, width);
  const bool grouped = q.size(1) != k.size(1);
  const std::optional<at::Tensor> keep = allowed(mask, sparse_mode, q.size(2), k.size(2));
  attention = as_laid_out(at::scaled_dot_product_attention(q, k, v, keep, /*dropout_p=*/0.0,
                                                           /*is_causal=*/false, scale, grouped),
                          layout);

  // Each row's maximum and sum of exponentials, eight times over: what the backward pass would
  // read.
  const at::Tensor every_k = grouped ? k.repeat_interleave(q.size(1) / k.size(1), 1) : k;
  at::Tensor scores =
      at::matmul(q.to(at::kFloat), every_k.to(at::kFloat).transpose(-1, -2)) * scale;
  if (keep)
    scores = scores.masked_fill(keep->logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor maximum = at::amax(scores, {-1}, /*keepdim=*/true);
  softmax_max = maximum.expand_as(softmax_max.tensor());
  softmax_sum = at::exp(scores - maximum).sum(-1, /*keepdim=*/true).expand_as(softmax_sum.tensor());
}

// Rules of hostcann, narrower than CANN's: what it does not emulate must not pass unnoticed.
static void check(bool has_mask, int64_t sparse_mode, int64_t pre_tokens, int64_t next_tokens,
                  int64_t longest, double keep_probability, bool has_others) {
  if (has_others) refuse("realShift, paddingMask and prefix must be null: they are not emulated");
  if (keep_probability != 1.0) {
    refuse("keepProb must be 1, got " + std::to_string(keep_probability) +
           ": dropout is not emulated");
  }
  if (has_mask && sparse_mode == kMaskAsGiven && std::min(pre_tokens, next_tokens) < longest) {
    refuse("preTokens and nextTokens must not narrow the mask, got " + std::to_string(pre_tokens) +
           " and " + std::to_string(next_tokens) + ": put the band into attenMask");
  }
}

}  // namespace hostcann::aten

OPERATOR(aclnnFlashAttentionScore,
         (Input query, Input key, Input value, OptionalInput realShift, OptionalInput dropMask,
          OptionalInput paddingMask, OptionalInput attenMask, OptionalIntegers prefix,
          double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
          int64_t headNum, Text inputLayout, int64_t innerPrecise, int64_t sparseMode,
          Output softmaxMax, Output softmaxSum, Output softmaxOut, Output attentionOut),
         check(attenMask.has_value(), sparseMode, preTokens, nextTokens,
               attenMask ? std::max(attenMask->size(-1), attenMask->size(-2)) : 0, keepProb,
               realShift || paddingMask || (prefix && !prefix->empty()));
         attend(query, key, value, attenMask, scaleValue, headNum, inputLayout, sparseMode,
                softmaxMax, softmaxSum, attentionOut))
