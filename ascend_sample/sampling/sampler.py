"""The sampler of a serving engine: one step of a batch of requests."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import check_bool, check_instance, check_integer, how_to_fit, refuse, show
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose, check_purpose
from ascend_sample.sampling.edits.bitmask import BitmaskRows, placed_bitmask
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import check_logits, check_uncaptured
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.logprobs import LogprobsMode
from ascend_sample.sampling.step.output import RowRoute, SamplerOutput
from ascend_sample.sampling.step.routes import RULES
from ascend_sample.sampling.step.whole_steps import WholeSteps
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.step import SplitSteps

REMOVED: Final = {"round_float32": "Rows of float32 logits are sampled exactly on every device."}
"""Arguments of `Sampler` that are no more, and what to do instead."""


def columns_of(shard: VocabularyShard | None, owner: str, vocab_size: int) -> int:
    """Returns how many columns logits have, or raises, for ``owner``, where a batch has another vocabulary."""
    if shard is None:
        return vocab_size
    if shard.vocab_size != vocab_size:
        rule = f"have the vocabulary of the shard, {shard.vocab_size}"
        refuse(owner, "batch", rule, vocab_size, "Make it with the vocab_size of the shard.")
    return shard.width


class Sampler:
    """Draws the next token of every request of a batch, each from exactly the distribution that its parameters mean.

    The algorithm, row by row, numbered as in docs/sampling.md:

    1. Logits are converted to float32, and a NaN counts as -inf.
    2. Ids that the request bans (or does not allow, or that would stop it before ``min_tokens``) become -inf, and so do
       those that the step's bitmask does not allow; its bias is added.
    3. Repetition, presence and frequency penalties are applied.
    4. Temperature 0 takes the best logit, the lowest id among equals. Otherwise y = (logit - maximum) / temperature.
    5. Typical sampling, cutoffs of probabilities, mirostat, top-a, top-n-sigma and XTC keep a range of values each.
    6. Top-k keeps the first k of the total order (value descending, id ascending); ``keep_ties`` keeps every logit that
       is equal to the k-th too.
    7. The weights are exp(y), normalised over what is left.
    8. Top-p keeps, in that order, until the sum of the normalised weights exceeds p.
    9. Min-p drops weights below min_p times the largest.
    10. The token is the argmax of weight / noise, where the noise is exponential and a function of the request's seed,
        its position and the rank of the entry: an exact draw that no other row can change. Where no top-k ranks the
        entries, a race of segments of the vocabulary and one of places in a segment are the same (docs/seeds.md).

    On which route a row takes these steps, `explain` tells. It is chosen on the host from what `SamplingBatch` knows
    there; no step waits for the device, but with ``host``.

    Args:
        logprobs_mode: which numbers are reported for requests that ask for logprobs.
        keep_ties: see 6. Rows with top-k then take a slower route.
        host: let the CPU kernel sample what a device's model computes: batches are on the CPU, and logits on any
            device. The step copies them, waits for the copy, and draws the tokens that it draws from logits on the CPU.
        shard: what a rank has whose logits are a part of the vocabulary: every rank then calls its sampler with its own
            part and the same requests, and gets the tokens, statuses and logprobs of logits that are not split.
        max_kept: no kept set is larger: a row that keeps more is told without its ids. With it a step on a device waits
            for nothing, and allocates so much for each row that asks. None: there is no bound, and it waits.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> batch = SamplingBatch(vocab_size=4)
        >>> greedy = batch.add(SamplingParams(temperature=0))
        >>> seeded = batch.add(SamplingParams(top_k=2, seed=7))
        >>> output = Sampler()(torch.tensor([[1.0, 3.0, 2.0, 3.0], [5.0, -1.0, 5.0, -1.0]]), batch)
        >>> output.token_ids.tolist()[0], output.token_ids.tolist()[1] in (0, 2)
        (1, True)

    Source: docs/sampling.md, sections 1 "What is drawn" and 4 "Routes".
    """

    def __init__(
        self,
        logprobs_mode: str = "raw_logprobs",
        *,
        keep_ties: bool = False,
        host: bool = False,
        shard: VocabularyShard | None = None,
        max_kept: int | None = None,
        **removed: object,
    ) -> None:
        if removed:
            name, value = next(iter(removed.items()))
            remedy = REMOVED.get(name, "Leave it out.")
            refuse("Sampler", name, "be left out: there is no such argument", show(value), remedy, TypeError)
        self.logprobs_mode = LogprobsMode.named("Sampler", logprobs_mode)
        for name, value in (("keep_ties", keep_ties), ("host", host)):
            check_bool("Sampler", name, value)
        if max_kept is not None:
            check_integer("Sampler", "max_kept", max_kept, low=1)
        if shard is not None:
            check_instance("Sampler", "shard", shard, VocabularyShard, "Make one from the rank's part.")
        self.keep_ties = keep_ties
        self.host = host
        self.shard = shard
        self.max_kept = max_kept
        self.whole = WholeSteps(self.logprobs_mode, keep_ties, max_kept)
        self.split = SplitSteps(shard, self.whole) if shard is not None and shard.exchange.size > 1 else None

    @in_normal_mode
    def __call__(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        *,
        purpose: Purpose = Purpose.DRAW,
        advance: bool = True,
        bitmask: Tensor | None = None,
        bitmask_rows: BitmaskRows | None = None,
    ) -> SamplerOutput:
        """Samples one token for each row of the batch.

        Args:
            logits: float32, float16 or bfloat16 [batch, vocab_size] on the device of the batch; with ``host`` on any;
                with ``shard`` [batch, width].
            batch: the requests, in the order of the rows.
            purpose: which of the independent noises of a seed and a position.
            advance: tell the batch of the tokens, so that the next step is theirs. Without it the same step, given the
                same logits, draws the same tokens again; `SamplingBatch.append` advances, and `StepStates.keep`.
            bitmask: int32 [batch, ceil(vocab_size / 32)], the ids that a grammar allows in this step, 32 in a word with
                the first in the lowest bit, as xgrammar and llguidance pack them; on the device of the batch or on the
                CPU. A row that allows nothing gets `RowStatus.ALL_MASKED`.
            bitmask_rows: the rows of the batch that the bitmask is for, which has a row for each of these then: ints or
                a tensor on the CPU. None: all rows, in order.

        Returns:
            Ids, statuses, logprobs and kept sets.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument does not fit the batch, or a graph is captured on the device of the logits.
            IndexError: the bitmask is for a row that does not exist.
        """
        self._check(logits, batch, advance, purpose)
        allowed = None
        if bitmask is not None or bitmask_rows is not None:
            allowed = placed_bitmask("Sampler", bitmask, bitmask_rows, len(batch), batch.vocab_size, batch.device)
        if len(batch) == 0:
            empty = torch.empty(0, dtype=torch.int64, device=logits.device)
            return SamplerOutput(empty, empty.to(torch.int8), None)
        if self.split is not None:
            output = self.split.draw(logits, batch, allowed, purpose)
        else:
            if self.shard is not None:
                logits = logits[:, : batch.vocab_size]  # a rank alone may have padding
            output = self.whole.take(logits.cpu() if self.host else logits, batch, allowed, purpose)
        if advance:
            batch.advance(output.token_ids, are_ids=True)
            if output.states is not None:
                output.states.keep(batch)
        return output.sent_to(logits.device) if self.host and self.split is None else output

    def explain(self, batch: SamplingBatch, dtype: torch.dtype) -> list[RowRoute]:
        """Tells which route each row of the batch takes, and why.

        Args:
            batch: the requests.
            dtype: of the logits that they will get.

        Raises:
            TypeError: an argument has the wrong type, or there are no such logits.

        Example:
            >>> from ascend_sample.sampling import SamplingParams
            >>> batch = SamplingBatch(vocab_size=32000)
            >>> row = batch.add(SamplingParams(top_p=0.9))
            >>> Sampler().explain(batch, torch.bfloat16)[0].route.value
            'native'
        """
        check_instance("Sampler", "batch", batch, SamplingBatch, "Add the requests to one.")
        check_instance("Sampler", "dtype", dtype, torch.dtype, "Give that of the logits.")
        check_logits("Sampler", torch.empty(1, batch.vocab_size, dtype=dtype, device="meta"))
        explained: list[RowRoute] = []
        for is_processed, kind in ((False, dtype), (True, torch.float32)):
            rows = np.flatnonzero(batch.host.is_processed == is_processed)
            abilities = routes.abilities_of(batch.device, kind)
            facts = {field: getattr(batch.host, field)[rows] for field in DISTRIBUTION}
            chosen = routes.choose_rules(facts, batch.vocab_size, kind, abilities, self.keep_ties)
            for row, rule in zip(rows.tolist(), chosen.tolist(), strict=True):
                reason = RULES[rule].reason + ("; its logits are processed in float32 before" if is_processed else "")
                explained.append(RowRoute(row, RULES[rule].route, reason))
        return sorted(explained)

    def _check(self, logits: Tensor, batch: SamplingBatch, advance: bool, purpose: Purpose) -> None:
        check_logits("Sampler", logits)
        if not (isinstance(batch, SamplingBatch) and isinstance(advance, bool) and isinstance(purpose, Purpose)):
            check_instance("Sampler", "batch", batch, SamplingBatch, "Add the requests to one.")
            check_bool("Sampler", "advance", advance)
            check_purpose("Sampler", purpose)
        check_uncaptured("Sampler", logits)
        width = columns_of(self.shard, "Sampler", batch.vocab_size)
        if tuple(logits.shape) != (len(batch), width):
            rule, otherwise = f"have the shape of the batch, [{len(batch)}, {width}]", "Add and remove requests before."
            remedy = how_to_fit("logits", logits.shape, width, batch.vocab_size, otherwise)
            refuse("Sampler", "logits", rule, list(logits.shape), remedy)
        if self.host and batch.device.type != "cpu":
            remedy = "Make it without a device: the logits alone are on one."
            refuse("Sampler", "batch", "be on the CPU for a sampler with host=True", batch.device, remedy)
        if self.host and self.split is not None and not logits.is_cpu:
            remedy = "Leave host out: each rank's device then decides with the others."
            refuse("Sampler", "shard", "be left out with host=True for logits on a device", self.shard, remedy)
        if logits.device != batch.device and not self.host:
            rule = f"be on the device of the batch, {batch.device}"
            refuse("Sampler", "logits", rule, logits.device, "Make the batch with device=logits.device.")
