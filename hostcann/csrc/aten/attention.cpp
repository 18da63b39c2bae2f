// Fused attention, which torch_npu calls for torch's scaled_dot_product_attention.
#include <algorithm>
#include <limits>

#include "aten/dropout.h"
#include "aten/operator.h"

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

static int64_t width_of(Input query, int64_t heads, Text layout) {
  return layout == "BSH" || layout == "SBH" ? query.size(2) / heads : query.size(3);
}

// A key or value for each of query's heads.
static at::Tensor for_each_head(const at::Tensor& x, const at::Tensor& query) {
  return x.size(1) == query.size(1) ? x : x.repeat_interleave(query.size(1) / x.size(1), 1);
}

static at::Tensor scores_of(const at::Tensor& query, const at::Tensor& every_key, double scale,
                            const std::optional<at::Tensor>& keep) {
  const at::Tensor scores =
      at::matmul(query.to(at::kFloat), every_key.to(at::kFloat).transpose(-1, -2)) * scale;
  if (!keep) return scores;
  return scores.masked_fill(keep->logical_not(), -std::numeric_limits<double>::infinity());
}

static at::Tensor dropped(const at::Tensor& probabilities, OptionalInput drop_mask,
                          double keep_probability) {
  return drop_mask ? drop(probabilities, *drop_mask, 1 - keep_probability) : probabilities;
}

static void attend(Input query, Input key, Input value, OptionalInput drop_mask, OptionalInput mask,
                   double scale, double keep_probability, int64_t heads, Text layout,
                   int64_t sparse_mode, const Output& softmax_max, const Output& softmax_sum,
                   const Output& attention) {
  const int64_t width = width_of(query, heads, layout);
  const at::Tensor q = by_heads(query, layout, width);
  const at::Tensor k = by_heads(key, layout, width);
  const at::Tensor v = by_heads(value, layout, width);
  const std::optional<at::Tensor> keep = allowed(mask, sparse_mode, q.size(2), k.size(2));

  // Each row's maximum and sum of exponentials, eight times over: what a device's backward pass
  // reads.
  const at::Tensor scores = scores_of(q, for_each_head(k, q), scale, keep);
  const at::Tensor maximum = at::amax(scores, {-1}, /*keepdim=*/true);
  softmax_max = maximum.expand_as(softmax_max.tensor());
  softmax_sum = at::exp(scores - maximum).sum(-1, /*keepdim=*/true).expand_as(softmax_sum.tensor());

  if (drop_mask) {
    const at::Tensor p = dropped(at::_safe_softmax(scores, -1), drop_mask, keep_probability);
    attention = as_laid_out(at::matmul(p, for_each_head(v, q).to(at::kFloat)), layout);
  } else {
    attention = as_laid_out(
        at::scaled_dot_product_attention(q, k, v, keep, /*dropout_p=*/0.0, /*is_causal=*/false,
                                         scale, /*enable_gqa=*/q.size(1) != k.size(1)),
        layout);
  }
}

// The derivatives by query, key and value: of probabilities that are computed anew, in float32.
static void differentiate(Input query, Input key, Input value, Input dy, OptionalInput drop_mask,
                          OptionalInput mask, double scale, double keep_probability, int64_t heads,
                          Text layout, int64_t sparse_mode, const Output& dq, const Output& dk,
                          const Output& dv) {
  const int64_t width = width_of(query, heads, layout);
  auto wide = [&](Input x) { return by_heads(x, layout, width).to(at::kFloat); };
  const at::Tensor q = wide(query);
  const at::Tensor k = wide(key);
  const at::Tensor d = wide(dy);
  const at::Tensor every_k = for_each_head(k, q);
  const at::Tensor every_v = for_each_head(wide(value), q);
  const at::Tensor p = at::_safe_softmax(
      scores_of(q, every_k, scale, allowed(mask, sparse_mode, q.size(2), k.size(2))), -1);
  const at::Tensor dp =
      dropped(at::matmul(d, every_v.transpose(-1, -2)), drop_mask, keep_probability);
  const at::Tensor ds = p * (dp - (dp * p).sum(-1, /*keepdim=*/true)) * scale;
  auto sum_of_groups = [&](const at::Tensor& x) {
    return as_laid_out(x.unflatten(1, {k.size(1), -1}).sum(2), layout);
  };
  dq = as_laid_out(at::matmul(ds, every_k), layout);
  dk = sum_of_groups(at::matmul(ds.transpose(-1, -2), q));
  dv = sum_of_groups(at::matmul(dropped(p, drop_mask, keep_probability).transpose(-1, -2), d));
}

// Rules of hostcann, narrower than CANN's: what it does not emulate must not pass unnoticed.
static void check(OptionalInput mask, int64_t sparse_mode, int64_t pre_tokens, int64_t next_tokens,
                  double keep_probability, OptionalInput drop_mask, bool has_others) {
  const int64_t longest = mask ? std::max(mask->size(-1), mask->size(-2)) : 0;
  if (has_others) refuse("realShift, paddingMask and prefix must be null: they are not emulated");
  if (keep_probability != 1.0 && !drop_mask) {
    refuse("keepProb must be 1 where dropMask is null, got " + std::to_string(keep_probability));
  }
  if (mask && sparse_mode == kMaskAsGiven && std::min(pre_tokens, next_tokens) < longest) {
    refuse("preTokens and nextTokens must not narrow the mask, got " + std::to_string(pre_tokens) +
           " and " + std::to_string(next_tokens) + ": put the band into attenMask");
  }
}

// Attention over keys and values of given lengths, without a gradient: what serving engines call.
static void infer(Input query, Inputs keys, Inputs values, OptionalInput mask,
                  OptionalIntegers lengths, double scale, int64_t heads, int64_t key_heads,
                  Text layout, int64_t sparse_mode, bool wants_lse, const Output& attention,
                  const Output& softmax_lse) {
  if (keys.size() != 1 || values.size() != 1)
    refuse("key and value must be lists of one tensor; lists of sequences are not emulated");
  const int64_t width = width_of(query, heads, layout);
  const at::Tensor q = by_heads(query, layout, width);
  const at::Tensor k = by_heads(keys[0], layout, width);
  const int64_t value_width = width_of(values[0], key_heads == 0 ? heads : key_heads, layout);
  const at::Tensor v = by_heads(values[0], layout, value_width);
  std::optional<at::Tensor> keep = allowed(mask, sparse_mode, q.size(2), k.size(2));
  if (lengths && !lengths->empty()) {
    const at::Tensor within =
        at::arange(k.size(2)).unsqueeze(0).lt(at::tensor(*lengths, at::kLong).unsqueeze(1));
    const at::Tensor by_row = within.unsqueeze(1).unsqueeze(1);
    keep = keep ? keep->logical_and(by_row) : by_row;
  }
  const at::Tensor scores = scores_of(q, for_each_head(k, q), scale, keep);
  const at::Tensor probabilities = at::_safe_softmax(scores, -1);
  attention = as_laid_out(at::matmul(probabilities, for_each_head(v, q).to(at::kFloat)), layout);
  softmax_lse = wants_lse ? at::logsumexp(scores, {-1}, /*keepdim=*/true)
                          : at::zeros_like(softmax_lse.tensor());
}

// What infer() has no way to honour.
static void refuse_if_given(std::initializer_list<std::optional<at::Tensor>> tensors) {
  for (OptionalInput tensor : tensors) {
    if (tensor)
      refuse("quantization, paged keys, padding, prefixes, rope and biases are not emulated here");
  }
}

}  // namespace hostcann::aten

OPERATOR(aclnnFlashAttentionScore,
         (Input query, Input key, Input value, OptionalInput realShift, OptionalInput dropMask,
          OptionalInput paddingMask, OptionalInput attenMask, OptionalIntegers prefix,
          double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
          int64_t headNum, Text inputLayout, int64_t innerPrecise, int64_t sparseMode,
          Output softmaxMax, Output softmaxSum, Output softmaxOut, Output attentionOut),
         check(attenMask, sparseMode, preTokens, nextTokens, keepProb, dropMask,
               realShift || paddingMask || (prefix && !prefix->empty()));
         attend(query, key, value, dropMask, attenMask, scaleValue, keepProb, headNum, inputLayout,
                sparseMode, softmaxMax, softmaxSum, attentionOut))
OPERATOR(aclnnFlashAttentionScoreGrad,
         (Input query, Input key, Input value, Input dy, OptionalInput pseShift,
          OptionalInput dropMask, OptionalInput paddingMask, OptionalInput attenMask,
          OptionalInput softmaxMax, OptionalInput softmaxSum, OptionalInput softmaxIn,
          OptionalInput attentionIn, OptionalIntegers prefix, double scaleValue, double keepProb,
          int64_t preTokens, int64_t nextTokens, int64_t headNum, Text inputLayout,
          int64_t innerPrecise, int64_t sparseMode, Output dqOut, Output dkOut, Output dvOut,
          OptionalOutput dpseOut),
         check(attenMask, sparseMode, preTokens, nextTokens, keepProb, dropMask,
               pseShift || paddingMask || (prefix && !prefix->empty()));
         differentiate(query, key, value, dy, dropMask, attenMask, scaleValue, keepProb, headNum,
                       inputLayout, sparseMode, dqOut, dkOut, dvOut))

// The parameters that the versions of CANN's inference attention share, in their order.
#define INFERENCE_TENSORS                                                                      \
  Input query, Inputs key, Inputs value, OptionalInput pseShift, OptionalInput attenMask,      \
      OptionalIntegers actualSeqLengths, OptionalIntegers actualSeqLengthsKv,                  \
      OptionalInput deqScale1, OptionalInput quantScale1, OptionalInput deqScale2,             \
      OptionalInput quantScale2, OptionalInput quantOffset2, OptionalInput antiquantScale,     \
      OptionalInput antiquantOffset, OptionalInput blockTable, OptionalInput queryPaddingSize, \
      OptionalInput kvPaddingSize, OptionalInput keyAntiquantScale,                            \
      OptionalInput keyAntiquantOffset, OptionalInput valueAntiquantScale,                     \
      OptionalInput valueAntiquantOffset, OptionalInput keySharedPrefix,                       \
      OptionalInput valueSharedPrefix, OptionalIntegers actualSharedPrefixLen,                 \
      OptionalInput queryRope, OptionalInput keyRope, OptionalInput keyRopeAntiquantScale
#define INFERENCE_NUMBERS                                                                       \
  int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, Text inputLayout, \
      int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize,    \
      int64_t antiquantMode, bool softmaxLseFlag, int64_t keyAntiquantMode,                     \
      int64_t valueAntiquantMode
#define INFERENCE                                                                                 \
  refuse_if_given({pseShift,                                                                      \
                   deqScale1,                                                                     \
                   quantScale1,                                                                   \
                   deqScale2,                                                                     \
                   quantScale2,                                                                   \
                   quantOffset2,                                                                  \
                   antiquantScale,                                                                \
                   antiquantOffset,                                                               \
                   blockTable,                                                                    \
                   queryPaddingSize,                                                              \
                   kvPaddingSize,                                                                 \
                   keyAntiquantScale,                                                             \
                   keyAntiquantOffset,                                                            \
                   valueAntiquantScale,                                                           \
                   valueAntiquantOffset,                                                          \
                   keySharedPrefix,                                                               \
                   valueSharedPrefix,                                                             \
                   queryRope,                                                                     \
                   keyRope,                                                                       \
                   keyRopeAntiquantScale});                                                       \
  check(attenMask, sparseMode, preTokens, nextTokens, /*keep_probability=*/1, std::nullopt,       \
        false);                                                                                   \
  infer(query, key, value, attenMask, actualSeqLengthsKv, scaleValue, numHeads, numKeyValueHeads, \
        inputLayout, sparseMode, softmaxLseFlag, attentionOut, softmaxLse)
// The workspace that is enough for all lengths: none, as for each.
#define MAX_WORKSPACE(name, count)                                                         \
  extern "C" HOSTCANN_API int name##GetMaxWorkspaceSize(                                   \
      ATEN_PARAMETERS_##count(name), uint64_t* workspace_size, aclOpExecutor** executor) { \
    return name##GetWorkspaceSize(ATEN_ARGUMENTS_##count, workspace_size, executor);       \
  }

OPERATOR(aclnnFusedInferAttentionScoreV3,
         (INFERENCE_TENSORS, INFERENCE_NUMBERS, Output attentionOut, Output softmaxLse), INFERENCE)
MAX_WORKSPACE(aclnnFusedInferAttentionScoreV3, 42)
OPERATOR(aclnnFusedInferAttentionScoreV4,
         (INFERENCE_TENSORS, OptionalInput dequantScaleQuery, OptionalInput learnableSink,
          INFERENCE_NUMBERS, int64_t queryQuantMode, Output attentionOut, Output softmaxLse),
         refuse_if_given({dequantScaleQuery, learnableSink});
         INFERENCE)
MAX_WORKSPACE(aclnnFusedInferAttentionScoreV4, 45)
