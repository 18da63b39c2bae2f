"""The functions of vLLM's V2 runner that vllm-ascend replaces, with vLLM's signatures, for any device.

vLLM has a Triton kernel behind each; these are PyTorch's operators and the sampling layer. They wait for no device, and
each one's launches do not depend on its tensors' values. Signatures and laws are those of vLLM 0.27.1, which
vllm-ascend's main of August 2026 is made for. `docs/maintainers.md` says what they cost, and what is not the same.

What the arguments of several functions are:

    expanded_idx_mapping  int [rows], the slot of each row's request; -1, where it is allowed, for padding
    temperature, seed, repetition_penalty, ...  [slots], of requests; on the device or in pinned memory that it reads
    pos                   int [rows], the position of a row's token in its sequence
    expanded_local_pos    int [rows], after how many drafts of its request a row is
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.integrations._rows import to_device
from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.draws.segmented import draw_from_segments, lanes_of, whole_segments
from ascend_sample.sampling.draws.weights import base_of, cleaned_in_float32, scaled
from ascend_sample.sampling.edits import processing
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step.distribution import divisor_of, filter_logits
from ascend_sample.sampling.step.logprobs import LogprobRows, Logprobs, LogprobsMode, gather_logprobs

MOST_NUMBERS: Final = 2**26
"""So many logits are penalised at once: what is made beside them is bounded, however many rows there are."""


def apply_temperature(logits: Tensor, expanded_idx_mapping: Tensor, temperature: Tensor) -> None:
    """Divides logits, [rows, vocab_size], in place; a temperature of 0 counts as 1."""
    logits.div_(divisor_of(of_rows(temperature, expanded_idx_mapping)))


def apply_min_p(logits: Tensor, expanded_idx_mapping: Tensor, min_p: Tensor) -> None:
    """Forbids in place what is less probable than min_p times the best; ``logits`` are at the temperature."""
    least = logits.amax(1, keepdim=True) + of_rows(min_p, expanded_idx_mapping).log().unsqueeze(1)
    logits.masked_fill_(logits < least, processing.MASKED)


def apply_top_k_top_p(logits: Tensor, k: Tensor | None, p: Tensor | None, mask_value: float = -torch.inf) -> Tensor:
    """Replaces in place, by mask_value, what top-k and top-p drop of float32 [rows, vocab_size], and returns that.

    Top-k keeps every logit that is equal to the k-th. On a device rows are sorted as a whole.
    """
    if k is None and p is None:
        return logits
    kept = filter_logits(logits, top_k=k, top_p=p, keep_ties=True)
    return logits.masked_fill_(kept == -torch.inf, mask_value)


def gumbel_sample(
    logits: Tensor,
    expanded_idx_mapping: Tensor,
    temperature: Tensor,
    seed: Tensor,
    pos: Tensor,
    apply_temperature: bool,
    output_processed_logits: Tensor | None = None,
    output_processed_logits_col: Tensor | None = None,
    use_fp64: bool = False,
) -> Tensor:
    """Draws a token a row, int64 [rows], from softmax(logits); the best one where the temperature is 0.

    The noise is a function of a row's seed and position alone, so its token does not depend on the other rows.

    Args:
        logits: float [rows, vocab_size]; they stay as they are. NaN counts as -inf.
        expanded_idx_mapping: -1 for rows that nobody reads.
        temperature: of requests.
        seed: int64, of requests.
        pos: of rows.
        apply_temperature: divide by the temperature first. vLLM asks for that where it draws drafts: they have noise of
            their own, as the token that may replace a draft must not be drawn with the draft's.
        output_processed_logits: [slots, vocab_size] or [slots, steps, vocab_size], contiguous: where the logits are
            written that are drawn from.
        output_processed_logits_col: int [] or [rows], the step. None: the first.
        use_fp64: changes nothing. Noise has 63 random bits either way, and reaches what is 44 nats below the best.
    """
    is_request = expanded_idx_mapping >= 0
    slots = expanded_idx_mapping.clamp(min=0)
    temperatures = torch.where(is_request, of_rows(temperature, slots), 0.0)
    rows, vocab_size = logits.shape
    segments = whole_segments(rows, vocab_size, logits.device)
    values = segments[:, :vocab_size]
    if apply_temperature:
        torch.div(logits, divisor_of(temperatures), out=values)
    else:
        values.copy_(logits)
    if output_processed_logits is not None:
        _store(values, slots, is_request, output_processed_logits, output_processed_logits_col)
    best = cleaned_in_float32(values, is_own=True).argmax(1)
    scaled(values, base_of(values.gather(1, best.unsqueeze(1))), None, out=values).exp_()
    purpose = Purpose.DRAFT if apply_temperature else Purpose.DRAW
    noise = exponential_noise(of_rows(seed, slots), pos.to(torch.int64), lanes_of(vocab_size), purpose=purpose)
    return torch.where(temperatures == 0, best, draw_from_segments(segments, vocab_size, noise))


def _store(values: Tensor, slots: Tensor, is_request: Tensor, out: Tensor, column: Tensor | None) -> None:
    """Writes rows to where their requests have room: a row of no request writes what the first of one does."""
    rows = out.view(-1, values.shape[1])
    target = slots.to(torch.int64) * (len(rows) // len(out))
    if column is not None:
        target = target + column
    places = torch.arange(len(values), device=values.device)
    source = torch.where(is_request, places, is_request.to(torch.int32).argmax())
    target = target.index_select(0, source)
    # Without any request what is there is written again.
    is_known = is_request.index_select(0, source).unsqueeze(1)
    written = torch.where(is_known, values.index_select(0, source).to(out.dtype), rows.index_select(0, target))
    rows.index_copy_(0, target, written)


def compute_token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Returns the log-probabilities, float32 [rows, n], of given ids, int [rows, n], by logits [rows, vocab_size]."""
    ids = token_ids.to(torch.int64)
    return _logprobs(logits, LogprobsMode.RAW_LOGPROBS, 0, ids[:, 0], ids).values[:, 1:]


def compute_topk_scores(
    logits: Tensor,
    num_logprobs: int,
    sampled_token_ids: Tensor,
    cu_num_logits: list[int] | None = None,
    logprob_token_ids_state: Any = None,
    expanded_idx_mapping: Tensor | None = None,
    max_per_req_token_ids: int = 0,
    logits_mode: bool = False,
) -> Any:
    """Returns vLLM's `LogprobsTensors` of the sampled tokens, their ranks, and of the best tokens beside them.

    The best are in descending order, equals by ascending id. A rank counts what is at least as good: 1 is the best.
    Rows that name ids, in ``logprob_token_ids_state``, have those in the place of the best. A column that a row has
    nothing for holds id 0 and -inf.

    Args:
        logits: float [rows, vocab_size]; NaN counts as -inf.
        num_logprobs: how many of the best.
        sampled_token_ids: int [rows].
        cu_num_logits: is passed on.
        logprob_token_ids_state: the runner's; read where max_per_req_token_ids is not 0.
        expanded_idx_mapping: likewise.
        max_per_req_token_ids: so many ids a row names at most.
        logits_mode: report logits, not log-probabilities.
    """
    mode = LogprobsMode.RAW_LOGITS if logits_mode else LogprobsMode.RAW_LOGPROBS
    named = counts = None
    if max_per_req_token_ids:
        assert expanded_idx_mapping is not None, "rows name ids by their requests"
        counts = of_rows(logprob_token_ids_state.num_token_ids.gpu, expanded_idx_mapping).unsqueeze(1)
        named = of_rows(logprob_token_ids_state.token_ids.gpu, expanded_idx_mapping)[:, :max_per_req_token_ids]
        is_named = torch.arange(max_per_req_token_ids, device=logits.device) < counts
        named = named.to(torch.int64).masked_fill(~is_named, 0)
    found = _logprobs(logits, mode, num_logprobs, sampled_token_ids.to(torch.int64), named)
    ids, values = found.token_ids, found.values
    if counts is not None:
        widths, width = [1, num_logprobs, max_per_req_token_ids], max(num_logprobs, max_per_req_token_ids)
        (first_id, *other_ids), (first, *others) = ids.split(widths, 1), values.split(widths, 1)
        others[1] = others[1].masked_fill(~is_named, -torch.inf)
        best_ids, named_ids = (pad(each, (0, width - each.shape[1])) for each in other_ids)
        best, of_named = (pad(each, (0, width - each.shape[1]), value=-torch.inf) for each in others)
        ids = torch.cat((first_id, torch.where(counts > 0, named_ids, best_ids)), 1)
        values = torch.cat((first, torch.where(counts > 0, of_named, best)), 1)
    outputs = importlib.import_module("vllm.v1.outputs")
    return outputs.LogprobsTensors(ids, values, found.ranks, cu_num_logits)


compute_topk_logprobs = compute_topk_scores
"""The name under which vllm-ascend replaces it, which vLLM 0.27 has no more."""


def _logprobs(logits: Tensor, mode: LogprobsMode, most: int, token_ids: Tensor, named: Tensor | None) -> Logprobs:
    """Returns what `gather_logprobs` finds of all rows."""
    rows = LogprobRows.of(RowSet.all(len(logits)), mode, most, logits.device)
    return gather_logprobs(rows._replace(named=named), logits, token_ids)


def apply_penalties(
    logits: Tensor,
    expanded_idx_mapping: Tensor,
    token_ids: Tensor,
    expanded_local_pos: Tensor,
    repetition_penalty: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    prompt_bin_mask: Tensor,
    output_bin_counts: Tensor,
) -> None:
    """Applies penalties in place, and counts the drafts before each row among the output.

    Args:
        logits: float [rows, vocab_size].
        expanded_idx_mapping: of rows.
        token_ids: int [rows], the token that each row comes after: of all but a request's first row, a draft.
        expanded_local_pos: of rows.
        repetition_penalty: of requests.
        frequency_penalty: of requests.
        presence_penalty: of requests.
        prompt_bin_mask: int32 [slots, ceil(vocab_size / 32)], a bit for each id of the prompt.
        output_bin_counts: int32 [slots, vocab_size], how often each id is in the output.
    """
    rows, vocab_size = logits.shape
    every_penalty = (repetition_penalty, presence_penalty, frequency_penalty)
    of_all = [of_rows(each, expanded_idx_mapping) for each in every_penalty]
    places = torch.arange(rows, device=logits.device)
    first = places - expanded_local_pos
    ids = token_ids.to(torch.int64).clamp(0, vocab_size - 1)
    is_id, bits = ids == token_ids, processing.bits_of_bytes(logits.device)
    at_once = max(1, MOST_NUMBERS // vocab_size)
    for start in range(0, rows, at_once):
        block = slice(start, start + at_once)
        slots = expanded_idx_mapping[block]
        is_before = (places > first[block].unsqueeze(1)) & (places <= places[block].unsqueeze(1)) & is_id
        counts = output_bin_counts.index_select(0, slots)
        counts.scatter_add_(1, ids.expand(len(slots), -1), is_before.to(counts.dtype))
        in_prompt = ~processing.is_clear(prompt_bin_mask.index_select(0, slots), bits)[:, :vocab_size]
        repetition, presence, frequency = (each[block] for each in of_all)
        values = logits[block].float()
        logits[block] = processing.apply_penalties(values, in_prompt, counts, repetition, presence, frequency)


def bincount(
    expanded_idx_mapping: Tensor,
    all_token_ids: Tensor,
    prompt_len: Tensor,
    prefill_len: Tensor,
    prompt_bin_mask: Tensor,
    output_bin_counts: Tensor,
    max_prefill_len: int,
) -> None:
    """Writes what requests have seen, for `apply_penalties`: the other slots stay as they are.

    Args:
        expanded_idx_mapping: int [requests], each slot once.
        all_token_ids: int32 [slots, most tokens].
        prompt_len: of requests.
        prefill_len: of requests; behind the prompt come tokens of an output that was begun before.
        prompt_bin_mask: as for `apply_penalties`.
        output_bin_counts: as for `apply_penalties`.
        max_prefill_len: no request here has more tokens.
    """
    slots = expanded_idx_mapping.to(torch.int64)
    ids = all_token_ids[:, :max_prefill_len].index_select(0, slots).to(torch.int64)
    columns = torch.arange(ids.shape[1], device=ids.device)
    prompt_ends, ends = (of_rows(each, slots).unsqueeze(1) for each in (prompt_len, prefill_len))
    is_prompt, is_there = columns < prompt_ends, columns < ends
    ids = ids.masked_fill(~(is_prompt | is_there), 0)
    counts, words = output_bin_counts.shape[1], prompt_bin_mask.shape[1]
    both = output_bin_counts.new_zeros(2, len(slots), max(counts, words * processing.WORD))
    for of_ids, counted in zip(both, (is_prompt, is_there & ~is_prompt), strict=True):
        of_ids.scatter_add_(1, ids, counted.to(of_ids.dtype))
    output_bin_counts.index_copy_(0, slots, both[1, :, :counts])
    bits = processing.bits_of_bytes(ids.device).to(both.dtype)
    of_bytes = (both[0, :, : words * processing.WORD] > 0).view(len(slots), -1, 8) * bits
    packed = of_bytes.sum(2, dtype=both.dtype).to(torch.uint8).view(torch.int32)
    prompt_bin_mask.index_copy_(0, slots, packed)


def apply_bad_words(
    logits: Tensor,
    expanded_idx_mapping: Tensor,
    bad_word_token_ids: Tensor,
    bad_word_offsets: Tensor,
    num_bad_words: Tensor,
    all_token_ids: Tensor,
    prompt_len: Tensor,
    total_len: Tensor,
    input_ids: Tensor,
    expanded_local_pos: Tensor,
    max_num_bad_words: int,
) -> None:
    """Forbids in place the last token of each bad word whose tokens before it end a row's output, drafts included.

    Args:
        logits: float [rows, vocab_size].
        expanded_idx_mapping: of rows.
        bad_word_token_ids: int32 [slots, most tokens], the words of each request, one behind the other.
        bad_word_offsets: int32 [slots, most words + 1], where each begins, and where the last ends.
        num_bad_words: of requests.
        all_token_ids: int32 [slots, most tokens].
        prompt_len: of requests.
        total_len: of requests, prompt and output.
        input_ids: int [rows], as ``token_ids`` of `apply_penalties`.
        expanded_local_pos: of rows.
        max_num_bad_words: no request here has more.
    """
    if max_num_bad_words == 0:
        return
    slots = expanded_idx_mapping
    tokens = bad_word_token_ids.index_select(0, slots).to(torch.int64)
    most = tokens.shape[1]
    places, words = (torch.arange(count, device=logits.device) for count in (most, max_num_bad_words))
    is_word = words < of_rows(num_bad_words, slots).unsqueeze(1)
    offsets = bad_word_offsets[:, : max_num_bad_words + 1].index_select(0, slots).to(torch.int64)
    ends = (offsets[:, 1:] - 1).masked_fill(~is_word, most)  # the place of each word's last token
    word = torch.searchsorted(ends, places.expand_as(tokens).contiguous()).clamp_(max=max_num_bad_words - 1)
    back = ends.gather(1, word) - places  # how far a token is before its word's last one
    # What is so far before the token that is drawn: a draft, or a token that the request has.
    prompt_end, end = (of_rows(each, slots).unsqueeze(1) for each in (prompt_len, total_len))
    local, rows = expanded_local_pos.unsqueeze(1), torch.arange(len(logits), device=logits.device).unsqueeze(1)
    drafts = input_ids[(rows - back + 1).clamp_(0, len(logits) - 1)]
    stored = all_token_ids[slots.unsqueeze(1), (end + local - back).clamp_(0, all_token_ids.shape[1] - 1)]
    is_wrong = (back > 0) & (tokens != torch.where(back <= local, drafts, stored))
    wrong = torch.zeros_like(ends, dtype=torch.int32).scatter_add_(1, word, is_wrong.to(torch.int32))
    fits = ends - offsets[:, :-1] <= end + local - prompt_end
    is_match = is_word & (wrong == 0) & fits
    last = tokens.gather(1, ends.clamp(max=most - 1)).masked_fill_(~is_word, 0)
    # One write for all words of a row: those that do not match repeat one that does, or write what is there.
    has_match = is_match.any(1, keepdim=True)
    matching = last.gather(1, is_match.to(torch.int32).argmax(1, keepdim=True))
    target = torch.where(is_match | ~has_match, last, matching)
    logits.scatter_(1, target, logits.gather(1, target).masked_fill_(has_match, processing.MASKED))


def apply_grammar_bitmask(logits: Tensor, logits_indices: Tensor, bitmask: Tensor) -> None:
    """Forbids in place what a grammar forbids in some rows.

    Args:
        logits: float [rows, vocab_size].
        logits_indices: int [masks], the row of each mask, each row once.
        bitmask: int32 [masks, ceil(vocab_size / 32)], 32 ids in a word, the first in the lowest bit; 0 forbids.
    """
    rows = logits_indices.to(torch.int64)
    masked = logits.index_select(0, rows)
    processing.mask_out(masked, bitmask, processing.bits_of_bytes(logits.device))
    logits.index_copy_(0, rows, masked)


class GrammarBitmaskKernel:
    """`apply_grammar_bitmask` with the call of a Triton kernel, ``kernel[grid](arguments)``, which vLLM makes."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """Returns what is called with the kernel's arguments."""
        return self._launch

    @staticmethod
    def _launch(
        logits: Tensor,
        logits_stride: int,
        logits_indices: Tensor,
        bitmask: Tensor,
        bitmask_stride: int,
        vocab_size: int,
        **options: object,
    ) -> None:
        apply_grammar_bitmask(logits[:, :vocab_size], logits_indices, bitmask)


grammar_bitmask_kernel = GrammarBitmaskKernel()
"""For `_apply_grammar_bitmask_kernel` of vLLM's module `structured_outputs`."""


def of_rows(of_slots: Tensor, slots: Tensor) -> Tensor:
    """Returns what rows' requests have, of a tensor [slots, ...] that may lie in pinned memory."""
    return to_device(of_slots, slots.device).index_select(0, slots)
