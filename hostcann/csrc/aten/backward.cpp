// The derivatives of activations, softmaxes, losses and embeddings: what training asks for.
#include <ATen/core/Reduction.h>

#include "aten/operator.h"

OPERATOR(aclnnTanhBackward, (Input gradOutput, Input output, Output gradInput),
         gradInput = at::tanh_backward(gradOutput, output))
OPERATOR(aclnnSigmoidBackward, (Input gradOutput, Input output, Output gradInput),
         gradInput = at::sigmoid_backward(gradOutput, output))
OPERATOR(aclnnThresholdBackward, (Input gradOutput, Input self, Number threshold, Output out),
         out = at::threshold_backward(gradOutput, self, threshold))
OPERATOR(aclnnSiluBackward, (Input gradOutput, Input self, Output gradInput),
         gradInput = at::silu_backward(gradOutput, self))
OPERATOR(aclnnGeluBackward, (Input gradOutput, Input self, Output gradInput),
         gradInput = at::gelu_backward(gradOutput, self))
OPERATOR(aclnnGeluBackwardV2, (Input gradOutput, Input self, Text approximate, Output gradInput),
         gradInput = at::gelu_backward(gradOutput, self, approximate))
OPERATOR(aclnnFastGeluBackward, (Input gradOutput, Input self, Output gradInput),
         const auto sigmoid = at::sigmoid(self * 1.702);
         gradInput = gradOutput * sigmoid * (1 + self * 1.702 * (1 - sigmoid)))
OPERATOR(aclnnSwiGluGrad, (Input gradOutput, Input x, int64_t dim, Output out),
         const auto halves = x.chunk(2, dim);
         const auto gradGate = at::silu_backward(gradOutput * halves.at(1), halves.at(0));
         out = at::cat({gradGate, gradOutput * at::silu(halves.at(0))}, dim))
OPERATOR(aclnnSoftmaxBackward, (Input gradOutput, Input output, int64_t dim, Output gradInput),
         gradInput = at::_softmax_backward_data(gradOutput, output, dim, output.scalar_type()))
OPERATOR(aclnnLogSoftmaxBackward, (Input gradOutput, Input output, int64_t dim, Output out),
         out = at::_log_softmax_backward_data(gradOutput, output, dim, output.scalar_type()))
OPERATOR(aclnnEmbeddingDenseBackward,
         (Input grad, Input indices, uint64_t numWeights, uint64_t paddingIdx, bool scaleGradByFreq,
          Output out),
         out = at::embedding_dense_backward(grad, indices, static_cast<int64_t>(numWeights),
                                            static_cast<int64_t>(paddingIdx), scaleGradByFreq))
OPERATOR(aclnnMseLoss, (Input self, Input target, int64_t reduction, Output out),
         out = at::mse_loss(self, target, reduction))
OPERATOR(aclnnMseLossBackward,
         (Input gradOutput, Input self, Input target, int64_t reduction, Output gradInput),
         gradInput = at::mse_loss_backward(gradOutput, self, target, reduction))
OPERATOR(aclnnBinaryCrossEntropyWithLogits,
         (Input self, Input target, OptionalInput weightOptional, OptionalInput posWeightOptional,
          int64_t reduction, Output out),
         out = at::binary_cross_entropy_with_logits(self.to(at::kFloat), target.to(at::kFloat),
                                                    weightOptional, posWeightOptional, reduction))
OPERATOR(aclnnBinaryCrossEntropyWithLogitsBackward,
         (Input gradOutput, Input self, Input target, OptionalInput weightOptional,
          OptionalInput posWeightOptional, int64_t reduction, Output out),
         const at::Tensor hits = posWeightOptional ? *posWeightOptional * target : target;
         at::Tensor gradient = ((hits + 1 - target) * at::sigmoid(self) - hits) * gradOutput;
         if (weightOptional) gradient = gradient * *weightOptional;
         out = reduction == at::Reduction::Mean ? gradient / self.numel() : gradient)
OPERATOR(aclnnNLLLoss,
         (Input self, Input target, Input weight, int64_t reduction, int64_t ignoreIndex,
          Output out, Output totalWeightOut),
         std::tie(out, totalWeightOut) = at::nll_loss_forward(self, target, weight, reduction,
                                                              ignoreIndex))
OPERATOR(aclnnNLLLossBackward,
         (Input gradOutput, Input self, Input target, Input weight, int64_t reduction,
          int64_t ignoreIndex, Input totalWeight, Output out),
         out = at::nll_loss_backward(gradOutput, self, target, weight, reduction, ignoreIndex,
                                     totalWeight))
OPERATOR(aclnnLayerNormBackward,
         (Input gradOut, Input input, Integers normalizedShape, Input mean, Input rstd,
          OptionalInput weight, OptionalInput bias, Booleans outputMask, OptionalOutput gradInput,
          OptionalOutput gradWeight, OptionalOutput gradBias),
         std::tie(gradInput, gradWeight, gradBias) = at::native_layer_norm_backward(
             gradOut, input, normalizedShape, mean, rstd, weight, bias,
             {outputMask.at(0), outputMask.at(1), outputMask.at(2)}))
