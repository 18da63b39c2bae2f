"""Group beam search has groups that avoid one another's tokens, so that what they find differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from ascend_sample._errors import check_integer, check_number, refuse
from ascend_sample.decoding.beams.endings import EarlyStopping, FinishedPool, check_early_stopping
from ascend_sample.decoding.beams.run import BeamRun, Candidates, check_beams, choose, exists
from ascend_sample.decoding.beams.search import search_beams
from ascend_sample.decoding.checks import check_length_penalty
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.reading import SeldomTrue
from ascend_sample.decoding.request import GenerationOptions, check_request
from ascend_sample.sampling.draws.best_tokens import all_log_probs, best_entries


@torch.no_grad()
def group_beam_search(
    model: StepModel,
    input_ids: Tensor,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    num_beams: int,
    num_beam_groups: int,
    diversity_penalty: float,
    num_return_sequences: int = 1,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Searches with num_beam_groups groups of beams for each prompt, one group after the other in each step.

    A group is a beam search of its own, with its own pool of num_beams / num_beam_groups ended hypotheses. Before it
    chooses, diversity_penalty is subtracted from a token's log-probability for each beam of the groups before it, of
    the same prompt, that has chosen the token in this step; the processors come after that. The penalty is part of the
    scores. A group that is done counts as beams that choose the padding token, as in transformers 4.49.

    Two rules of transformers 4.49 differ from `beam_search`'s: a group's chance to get better is that of its best
    continuation, also where this one ends; and at max_new_tokens all beams that go on come into the pool, unless the
    group is done.

    Args:
        model: the model that computes steps.
        input_ids: int64 [batch, length], the prompts.
        max_new_tokens: at least 1, for all prompts or for each.
        num_beams: how many beams all groups of a prompt have together; a multiple of num_beam_groups.
        num_beam_groups: how many groups each prompt has.
        diversity_penalty: what is subtracted for each earlier choice of a token; at least 0.
        num_return_sequences: how many are returned of each prompt, the best of all groups; at most num_beams.
        length_penalty: the exponent of the length that sums of log-probabilities are divided by, see `beam_search`.
        early_stopping: when a group with enough ended hypotheses is done, see `beam_search`.
        **common: see `GenerationOptions`. Processors are called for each group, with its rows.

    Returns:
        What `beam_search` returns. Groups may have found the same sequence with different scores.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        The second group avoids what the first has chosen.

        >>> from ascend_sample.decoding import ModuleModel
        >>> model = ModuleModel(lambda input_ids: torch.tensor([0.5, 0.3, 0.2]).log().expand(*input_ids.shape, 3))
        >>> found = group_beam_search(
        ...     model,
        ...     torch.tensor([[0]]),
        ...     max_new_tokens=2,
        ...     num_beams=2,
        ...     num_beam_groups=2,
        ...     diversity_penalty=1.0,
        ...     num_return_sequences=2,
        ... )
        >>> found.to_lists()
        [[0, 0], [1, 1]]

    Source: docs/decoding.md, section "Group beam search".
    """
    name = "group_beam_search"
    request = check_request(name, model, input_ids, max_new_tokens, **common)
    check_beams(name, num_beams, num_return_sequences)
    check_integer(name, "num_beam_groups", num_beam_groups, low=1)
    if num_beams % num_beam_groups != 0:
        rule = f"be a multiple of num_beam_groups, {num_beam_groups}"
        refuse(name, "num_beams", rule, num_beams, "All groups have the same number of beams.")
    check_number(name, "diversity_penalty", diversity_penalty, low=0.0)
    check_length_penalty(name, length_penalty, request.max_steps)
    check_early_stopping(name, early_stopping)

    run = BeamRun(model, request, num_beams)
    pool = FinishedPool(run, num_return_sequences, length_penalty, early_stopping, num_beam_groups, takes_beams=True)
    return search_beams(run, pool, _Groups(run, pool, num_beam_groups, diversity_penalty).pick, num_beam_groups)


class _Groups:
    """Chooses the continuations of one group after the other.

    Args:
        run: the search.
        pool: the pools of the groups.
        count: how many groups there are.
        diversity_penalty: what is subtracted for each earlier choice of a token.
    """

    def __init__(self, run: BeamRun, pool: FinishedPool, count: int, diversity_penalty: float) -> None:
        self._run, self._pool, self._diversity_penalty = run, pool, diversity_penalty
        self._shape = (run.request.batch_size, count, run.num_beams // count)
        self._done_device = SeldomTrue(run.request.device)
        self._no_token = run.request.input_ids.new_full((), run.vocab_size)

    def pick(self, scores: Tensor, beams: list[Candidates]) -> Candidates:
        """Returns the best continuations of the group after those that have chosen their beams in this step."""
        run, request, group = self._run, self._run.request, len(beams)
        if group == 0:
            log_probs = all_log_probs(run.logits, 1.0)
            run.keep_scores(log_probs)  # each group changes its part, so criteria see what groups have done so far
            self._log_probs = log_probs.unflatten(0, self._shape)
            self._had_ended = self._done_device.there(self._pool.done)
            self._chosen = request.input_ids[:, :0]
        own = self._log_probs[:, group]
        if group > 0:
            self._note(beams[-1], group - 1)
            own = hamming_diversity(own, self._chosen, self._diversity_penalty)
        if run.sequences is not None:
            texts = run.sequences.unflatten(0, self._shape)[:, group].flatten(0, 1)
            own = run.process(own.flatten(0, 1), texts).view(own.shape)
        if request.needs_scores:
            self._log_probs[:, group] = own
        each = min(self._pool.count, run.vocab_size)
        values, tokens = (
            found.view(*own.shape[:2], each) for found in best_entries(own.flatten(0, 1), each, run.lanes)
        )
        candidates = choose(scores, values, tokens, self._pool.count)
        # Beams are counted within their prompt, not their group.
        return candidates._replace(beams=candidates.beams + group * self._shape[2])

    def _note(self, beams: Candidates, group: int) -> None:
        """Notes the tokens of a group's beams, which the groups after it avoid."""
        tokens = torch.where(exists(beams.scores), beams.tokens, self._no_token)
        if self._had_ended is not None:
            tokens = tokens.masked_fill(self._had_ended[:, group, None], self._run.request.pad_token_id)
        self._chosen = torch.cat((self._chosen, tokens), dim=1)


def hamming_diversity(log_probs: Tensor, earlier_tokens: Tensor, diversity_penalty: float) -> Tensor:
    """Lowers the log-probabilities of what other beams of the prompt have chosen in this step, as often as they have.

    Args:
        log_probs: float32 [batch, beams, vocab_size].
        earlier_tokens: int64 [batch, n], what was chosen already; n may be 0. What is no id of the vocabulary, as a
            padding token may be, lowers nothing.
        diversity_penalty: what is subtracted for each time that a token was chosen.

    Returns:
        The lowered log-probabilities, float32 [batch, beams, vocab_size].

    Example:
        >>> hamming_diversity(torch.zeros(1, 1, 4), torch.tensor([[2, 0, 2]]), 0.5)
        tensor([[[-0.5000,  0.0000, -1.0000,  0.0000]]])

    Source: docs/decoding.md, section "Group beam search"; Vijayakumar et al., "Diverse beam search", 2016.
    """
    batch, _, vocab_size = log_probs.shape
    known = earlier_tokens.clamp(0, vocab_size - 1)
    penalties = (known == earlier_tokens).to(torch.float32) * diversity_penalty
    of_tokens = torch.zeros(batch, vocab_size, device=log_probs.device, dtype=torch.float32)
    of_tokens.scatter_add_(1, known, penalties)
    return log_probs - of_tokens[:, None]
