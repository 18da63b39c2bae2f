"""vLLM's `rejection_sample`, of its V2 runner: drafts are judged on a device that alone knows how many there are."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample._errors import refuse
from ascend_sample.integrations.vllm_functions import of_rows
from ascend_sample.sampling.drafts.judging import block_chances, joint_ratios, noise_position
from ascend_sample.sampling.drafts.places import NO_TOKEN
from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.draws.segmented import draw_from_segments, lanes_of, whole_segments

LEAST: Final = torch.finfo(torch.float32).min


def rejection_sample(
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    num_speculative_steps: int,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
) -> tuple[Tensor, Tensor]:
    """Judges drafts so that tokens have the target's distribution, by the rules standard and block of `verify_drafts`.

    A draft that is no id, such as -1, is rejected, and the token in its place is drawn from the target's distribution.
    A request without drafts gets the token that `gumbel_sample` draws for it.

    Args:
        target_logits: float [rows, vocab_size], filtered and at the temperature; they stay as they are.
        draft_logits: float [slots, steps, at least vocab_size], what drafts were drawn from, at the temperature. None:
            drafts are certain.
        draft_sampled: int [rows], the token that each row comes after: of all but a request's first row, a draft.
        cu_num_logits: int [requests + 1], where the rows of each request begin.
        pos: of rows.
        idx_mapping: int [requests], their slots.
        expanded_idx_mapping: of rows.
        expanded_local_pos: is not read.
        temperature: of requests.
        seed: int64, of requests.
        num_speculative_steps: no request has more drafts.
        synthetic_conditional_rates: float32 [steps]: drafts are accepted by these probabilities, whatever they are.
        use_fp64: changes nothing, as for `gumbel_sample`.
        use_block_verification: judge by the rule block.

    Returns:
        The tokens, int64 [requests, steps + 1], and how many of them a request has, int32 [requests].
    """
    if use_block_verification and synthetic_conditional_rates is not None:
        rule = "be False where synthetic_conditional_rates are given"
        refuse("rejection_sample", "use_block_verification", rule, True, "Leave one of them out.")
    steps = num_speculative_steps
    vocab_size = target_logits.shape[1] if draft_logits is None else min(target_logits.shape[1], draft_logits.shape[2])
    columns = torch.arange(steps + 1, device=pos.device)
    first = cu_num_logits[:-1].to(torch.int64).unsqueeze(1)
    counts = cu_num_logits[1:].unsqueeze(1) - 1 - first
    rows = first + torch.minimum(columns, counts)
    following = draft_sampled.to(torch.int64)[(first + columns + 1).clamp_(max=len(pos) - 1)]
    given = torch.where(columns < counts, following, NO_TOKEN)
    drafts = given.clamp(0, vocab_size - 1)
    slots, is_draft = idx_mapping.to(torch.int64), given == drafts
    laws = _Laws.of(target_logits[:, :vocab_size], draft_logits, slots, steps)
    best = laws.target.argmax(1)[rows]
    is_greedy = (of_rows(temperature, slots) == 0).unsqueeze(1)
    # The lane behind those that a draw reads judges the draft of a row.
    noise = exponential_noise(of_rows(seed, expanded_idx_mapping), pos.to(torch.int64), lanes_of(vocab_size) + 1)
    uniform = torch.exp(-noise[:, -1])[rows]
    p, q = laws.of_target(rows, drafts).masked_fill_(~is_draft, 0), laws.of_drafts(drafts)
    stays = torch.where(is_greedy, best == drafts, uniform * q < p)
    if synthetic_conditional_rates is not None:
        stays = uniform < pad(synthetic_conditional_rates, (0, 1))
    accepted, scale = _first_without(stays & is_draft, columns), None
    if use_block_verification:
        joint = joint_ratios(p, q)
        rest = laws.rest(joint, p, rows)
        by_block = _accepted_by_block(joint, rest, is_draft, columns, of_rows(seed, slots), pos[rows[:, 0]])
        accepted = torch.where(is_greedy.squeeze(1), accepted, by_block)
        scale = joint.gather(1, accepted.unsqueeze(1))
    column = accepted.unsqueeze(1)
    row = rows.gather(1, column).squeeze(1)
    whole = laws.of_target_rows(row)
    left = laws.without_draft(whole if scale is None else whole * scale, column, drafts, is_draft)
    segments = whole_segments(len(left), vocab_size, left.device)
    segments[:, :vocab_size] = torch.where(left.amax(1, keepdim=True) > 0, left, whole)
    drawn = draw_from_segments(segments, vocab_size, noise.index_select(0, row)[:, :-1])
    token = torch.where(is_greedy, best.gather(1, column), drawn.unsqueeze(1))
    return drafts.scatter_(1, column, token), (accepted + 1).to(torch.int32)


class _Laws(NamedTuple):
    """What tokens of requests may be drawn from.

    Attributes:
        target: float32 [rows, vocab_size], logits.
        target_sums: float32 [rows], the logarithms of the sums of their exponentials.
        drafts: float32 [requests, steps, vocab_size], logits of the drafts; None: drafts are certain.
        draft_sums: float32 [requests, steps], as ``target_sums``.
    """

    target: Tensor
    target_sums: Tensor
    drafts: Tensor | None
    draft_sums: Tensor

    @classmethod
    def of(cls, target_logits: Tensor, draft_logits: Tensor | None, slots: Tensor, steps: int) -> _Laws:
        """Makes them of what `rejection_sample` is given."""
        target = target_logits.float()
        sums = target.logsumexp(1).clamp_(min=LEAST)  # a row of -inf has no -inf - -inf then
        if draft_logits is None:
            return cls(target, sums, None, sums)
        drafts = draft_logits[:, :steps, : target.shape[1]].index_select(0, slots).float()
        return cls(target, sums, drafts, drafts.logsumexp(2).clamp_(min=LEAST))

    def of_target(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Returns the target's probabilities of an id in each of some rows, in their shape."""
        return torch.exp(self.target[rows, ids] - self.target_sums[rows])

    def of_target_rows(self, row: Tensor) -> Tensor:
        """Returns all of those of some rows, float32 [len(row), vocab_size]."""
        return (self.target.index_select(0, row) - self.target_sums.index_select(0, row).unsqueeze(1)).exp_()

    def of_drafts(self, ids: Tensor) -> Tensor:
        """Returns what drafts, int64 [requests, steps + 1], were drawn with, in their shape."""
        if self.drafts is None:
            return torch.ones_like(ids, dtype=torch.float32)
        logits = self.drafts.gather(2, ids[:, :-1].unsqueeze(2)).squeeze(2)
        return pad(torch.exp(logits - self.draft_sums), (0, 1), value=1.0)

    def of_draft_rows(self, column: Tensor) -> Tensor:
        """Returns what the drafts of a column, int64 [requests, 1], were drawn from, float32 [requests, vocab_size]."""
        assert self.drafts is not None, "drafts are not certain"
        requests, steps, vocab_size = self.drafts.shape
        cells = torch.arange(requests, device=column.device) * steps + column.squeeze(1).clamp(max=steps - 1)
        logits = self.drafts.view(-1, vocab_size).index_select(0, cells)
        return (logits - self.draft_sums.view(-1).index_select(0, cells).unsqueeze(1)).exp_()

    def without_draft(self, rows: Tensor, column: Tensor, drafts: Tensor, is_draft: Tensor) -> Tensor:
        """Returns what the draft of a column, int64 [requests, 1], leaves of rows, float32 [requests, vocab_size]."""
        has_draft = is_draft.gather(1, column)
        if self.drafts is not None:
            return (rows - self.of_draft_rows(column).masked_fill_(~has_draft, 0)).clamp_(min=0)
        draft = drafts.gather(1, column)
        return rows.scatter(1, draft, rows.gather(1, draft).masked_fill_(has_draft, 0))

    def rest(self, joint: Tensor, p: Tensor, rows: Tensor) -> Tensor:
        """Returns how much each draft leaves of the target's law times the joint ratio before it, in their shape."""
        if self.drafts is None:
            return joint * (1.0 - p)
        found = torch.zeros_like(joint)
        for step in range(1, self.drafts.shape[1]):  # nobody reads that of the first
            law = (self.drafts[:, step] - self.draft_sums[:, step, None]).exp_()
            scaled = self.of_target_rows(rows[:, step]) * joint[:, step, None]
            found[:, step] = scaled.sub_(law).clamp_(min=0).sum(1)
        return found


def _accepted_by_block(
    joint: Tensor, rest: Tensor, is_draft: Tensor, columns: Tensor, seed: Tensor, begin: Tensor
) -> Tensor:
    """Returns how many drafts the rule block accepts, int64 [requests].

    Args:
        joint: float32 [requests, steps + 1], the joint ratio before each draft.
        rest: float32 likewise, from `_Laws.rest`.
        is_draft: bool likewise.
        columns: int64 [steps + 1], from 0 on.
        seed: int64 [requests].
        begin: int [requests], the position of the first draft's row.
    """
    after, counts = columns + 1, _first_without(is_draft, columns).unsqueeze(1)
    positions = noise_position("block", begin.to(torch.int64).unsqueeze(1), columns)
    noise = exponential_noise(
        seed.unsqueeze(1).expand_as(positions).flatten(), positions.flatten(), 1, purpose=Purpose.ACCEPTANCE
    )
    stays = torch.exp(-noise).view_as(joint) < block_chances(joint, rest, after == counts)
    return torch.where(stays & (after <= counts), after, 0).amax(1)


def _first_without(stays: Tensor, columns: Tensor) -> Tensor:
    """Returns the first column of each row, bool [requests, steps + 1], that is False: the last one is."""
    return torch.where(stays, len(columns) - 1, columns).amin(1)
