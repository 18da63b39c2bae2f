"""The operators' public functions."""

from __future__ import annotations

import torch

from ascend_sample import backend
from ascend_sample._contract import APPLY_NAME, OPERATOR_NAME, OPERATOR_V2_NAME, TopKTopPSample, TopKTopPSampleV2
from ascend_sample._validate import (
    check_types,
    check_types_v2,
    convert_filters,
    convert_k,
    convert_min_p,
    convert_p,
    explain,
)

__all__ = ["TopKTopPSample", "TopKTopPSampleV2", "apply_top_k_top_p", "top_k_top_p_sample", "top_k_top_p_sample_v2"]


def top_k_top_p_sample(
    logits: torch.Tensor,
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> TopKTopPSample:
    """Samples one token id a row: top-k, then top-p, then a draw weighted by exponential noise.

    Each of the three is on or off, the first two row by row, which makes eight scenarios:

    ============== ==================== ==========================================================
    top-k (k)      top-p (p)            result of the row without q / with q
    ============== ==================== ==========================================================
    off            off                  the best id / a draw from softmax(logits)
    on             off                  the best id / a draw among the k best
    off            on                   the best id / a draw among the nucleus, *flattened* (note)
    on             on                   the best id / a draw among the nucleus of the k best
    ============== ==================== ==========================================================

    Top-k is on where 1 <= k <= min(vocab_size, 1024), top-p where 0 < p < 1. The nucleus is the shortest prefix of
    the sorted row whose probability exceeds p. Equal logits are ordered by id. With q drawn from Exponential(1),
    argmax(w / q) is a draw from w.

    Note: with top-p alone the device operator softmaxes the probabilities a second time before it draws, so the draw
    among the nucleus is much flatter than softmax(logits): the weights differ by a factor of e at most. This function
    reproduces that.

    Args:
        logits: float32, float16 or bfloat16 [batch, vocab_size], vocab_size <= 2**20, any strides.
        k: an int, an integer tensor [batch], or None for no top-k.
        p: a float, a floating-point tensor [batch], or None for no top-p. It is rounded to the dtype of logits, but a
            p inside (0, 1) stays inside.
        q: float32 [batch, vocab_size], noise from Exponential(1), or None to return the best id. With top-k or top-p,
            q[b, i] is the noise of the entry of rank i, else that of id i. Its sign is ignored; an entry of NaN is
            not drawn.
        eps: added to abs(q) before the division; finite and >= 0.
        is_need_logits: whether to return the logits of the kept ids.
        top_k_guess: how many of the best entries top-p tries before it looks at the whole row; >= 1. Never changes
            the result.

    Returns:
        A `TopKTopPSample`, which has

        - logits_select_idx: int64 [batch], the drawn ids.
        - logits_top_kp_select: float32 [batch, vocab_size], the logits of the kept ids and -inf elsewhere; None unless
          asked for.

    Raises:
        TypeError: an argument has a wrong type, dtype or layout.
        ValueError: an argument has a wrong shape, device or value.
        RuntimeError: the backend that ASCEND_SAMPLE_BACKEND or use_backend names cannot serve these tensors.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
        >>> q = torch.tensor([[4.0, 1.0, 1.0, 1.0]])
        >>> result = top_k_top_p_sample(logits, k=2, p=None, q=q, is_need_logits=True)
        >>> result.logits_select_idx  # the second best: its noise is four times smaller
        tensor([2])
        >>> result.logits_top_kp_select
        tensor([[-inf, 3., 2., -inf]])

    Source: aclnnTopKTopPSample, CANN's operator documentation; docs/semantics.md says where this project differs.
    """
    check_types(logits, q, eps, is_need_logits, top_k_guess)
    try:
        row_k, row_p = convert_k(k, logits), convert_p(p, logits)
        sample = backend.implementation(logits, OPERATOR_NAME)
        selected, kept = sample(logits, row_k, row_p, q, eps, is_need_logits, top_k_guess)
    except (RuntimeError, TypeError) as error:
        explain(error, OPERATOR_NAME, logits=logits, k=k, p=p, q=q)
        raise
    return TopKTopPSample(selected, kept if is_need_logits else None)


def top_k_top_p_sample_v2(
    logits: torch.Tensor,
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    min_p: float | torch.Tensor | None = None,
    *,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> TopKTopPSampleV2:
    """Samples one token id a row: top-k, top-p, min-p, then a draw weighted by exponential noise.

    The newer of CANN's two operators. Each filter is on or off row by row; they are applied in this order:

    ======= ===================== =======================================================================
    filter  on where              keeps
    ======= ===================== =======================================================================
    top-k   1 <= k <= K           the k best; K is min(vocab_size, ks_max rounded up to a multiple of 8)
    top-p   p < 1                 the shortest prefix of the sorted row whose weights sum to p or more;
                                  one entry for p <= 0
    min-p   min_p > 0             what weighs at least min_p times the heaviest; the best for min_p >= 1
    ======= ===================== =======================================================================

    The weights are softmax(logits) among the k best with top-k, else over the whole row, and stay what they are: a draw
    with q is a draw from softmax(logits) among what is kept, with top-p alone too. With input_is_logits=False the
    logits are probabilities and are the weights themselves. Equal logits are ordered by id.

    Args:
        logits: float32, float16 or bfloat16 [batch, vocab_size], vocab_size <= 2**20, any strides.
        k: an int, an integer tensor [batch], or None for no top-k.
        p: a float, a floating-point tensor [batch], or None for no top-p; rounded as :func:`top_k_top_p_sample` does.
        q: float32 [batch, vocab_size], noise from Exponential(1), or None to return the best id. It is read as there,
            but with min-p alone q[b, i] is the noise of the i-th kept id. Must be None with is_need_sample_result.
        min_p: a float, a floating-point tensor [batch], or None for no min-p; rounded as p.
        eps: added to abs(q) before the division; finite and >= 0.
        is_need_logits: whether to return the logits of the kept ids.
        top_k_guess: how many of the best entries top-p tries first; >= 1. Never changes the result.
        ks_max: bounds the k that is honoured; between 1 and 1024.
        input_is_logits: False where logits are probabilities already.
        is_need_sample_result: whether to return the kept ids and their weights.

    Returns:
        A `TopKTopPSampleV2`, which has

        - logits_select_idx: int64 [batch], the drawn ids.
        - logits_top_kp_select: float32 [batch, vocab_size], the logits of the kept ids and elsewhere -inf, or 0 where
          input_is_logits is False; None unless asked for.
        - logits_idx: int64 [batch, vocab_size], the kept ids first: in the order of the row where top-k or top-p is on,
          else ascending. What follows them is undefined. None unless asked for.
        - logits_sort_masked: float32 [batch, vocab_size], the weights of those ids, then zeros; None unless asked for.

    Raises:
        TypeError: an argument has a wrong type, dtype or layout.
        ValueError: an argument has a wrong shape, device or value.
        RuntimeError: the backend that ASCEND_SAMPLE_BACKEND or use_backend names cannot serve these tensors.

    Example:
        >>> logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
        >>> result = top_k_top_p_sample_v2(logits, min_p=0.3, is_need_logits=True)
        >>> result.logits_select_idx  # exp(2 - 3) is above 0.3, exp(1 - 3) is not
        tensor([1])
        >>> result.logits_top_kp_select
        tensor([[-inf, 3., 2., -inf]])

    Source: aclnnTopKTopPSampleV2, CANN's operator documentation; docs/semantics_v2.md says where this project differs.
    """
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    check_types_v2(logits, q, *options)
    try:
        row_k, row_p = convert_k(k, logits, OPERATOR_V2_NAME), convert_p(p, logits, OPERATOR_V2_NAME)
        sample = backend.implementation(logits, OPERATOR_V2_NAME)
        selected, kept, ids, weights = sample(logits, row_k, row_p, q, convert_min_p(min_p, logits), *options)
    except (RuntimeError, TypeError) as error:
        explain(error, OPERATOR_V2_NAME, logits=logits, k=k, p=p, q=q, min_p=min_p)
        raise
    return TopKTopPSampleV2(
        selected,
        kept if is_need_logits else None,
        ids if is_need_sample_result else None,
        weights if is_need_sample_result else None,
    )


def apply_top_k_top_p(
    logits: torch.Tensor,
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Sets the logits to -inf that top-k and then top-p drop, and draws nothing.

    ======= ================== ==============================================================================
    filter  on where           keeps
    ======= ================== ==============================================================================
    top-k   1 <= k < V         what is at least the k-th largest logit: all of its ties
    top-p   p is no NaN        of the row in ascending order, what lies where the sum of the probabilities up to
                               it, its own included, exceeds 1 - p; the largest logit whatever p is
    ======= ================== ==============================================================================

    k has no upper bound. The probabilities are softmax(logits) among what top-k keeps. Of equal logits the one with
    the lower id is dropped first. At p = 1, top-p drops what has no weight in float32 alone; above 1, nothing.

    Args:
        logits: float32, float16 or bfloat16 [batch, vocab_size], vocab_size <= 2**20, any strides.
        k: an int, an integer tensor [batch], or None for no top-k.
        p: a float, a floating-point tensor [batch], or None for no top-p; rounded as :func:`top_k_top_p_sample` does.

    Returns:
        [batch, vocab_size] in the dtype of logits: the logits that are kept, and -inf elsewhere.

    Raises:
        TypeError: an argument has a wrong type, dtype or layout.
        ValueError: an argument has a wrong shape, device or value, or k and p are both None.
        RuntimeError: the backend that ASCEND_SAMPLE_BACKEND or use_backend names cannot serve these tensors.

    Example:
        >>> logits = torch.tensor([[0.0, 3.0, 2.0, 2.0]])
        >>> apply_top_k_top_p(logits, k=2)  # the second largest occurs twice
        tensor([[-inf, 3., 2., 2.]])
        >>> apply_top_k_top_p(logits, p=0.7)
        tensor([[-inf, 3., -inf, 2.]])

    Source: aclnnApplyTopKTopP, CANN's operator documentation; docs/semantics_apply.md says where this project differs.
    """
    try:
        converted = convert_filters(logits, k, p)
        filtered: torch.Tensor = backend.implementation(logits, APPLY_NAME)(logits, *converted)
    except (RuntimeError, TypeError) as error:
        explain(error, APPLY_NAME, logits=logits, k=k, p=p)
        raise
    return filtered
