// Fused attention, which torch_npu calls for torch's scaled_dot_product_attention.
#include <limits>

#include "hostcann/aten/operator.h"

namespace hostcann::aten {

// Where CANN takes the causal mask from: the upper left corner of the scores, or the lower right one.
enum SparseMode : int64_t { kMaskAsGiven = 0, kWholeMask = 1, kCausalUpperLeft = 2, kCausalLowerRight = 3 };

[[noreturn]] static void refuse(const std::string& rule) {
  throw TaskError(kDeviceTaskFailed, rule);
}

// [batch, heads, length, width], whatever the layout.
static at::Tensor by_heads(Input x, Text layout, int64_t heads) {
  if (layout == "BNSD") return x;
  if (layout == "BSND") return x.transpose(1, 2);
  if (layout == "BSH") return x.unflatten(2, {heads, -1}).transpose(1, 2);
  if (layout == "SBH") return x.unflatten(2, {heads, -1}).permute({1, 2, 0, 3});
  refuse("inputLayout must be BNSD, BSND, BSH or SBH, got " + layout);
}

// What may be attended to, as torch has it (true = take part); undefined where everything may.
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
  const at::Tensor q = by_heads(query, layout, heads);
  const int64_t width = q.size(3);
  const int64_t key_heads = key.numel() / std::max<int64_t>(1, key.numel() / (key.size(2)));
  (void)key_heads;
  (void)width;
}

}  // namespace hostcann::aten
