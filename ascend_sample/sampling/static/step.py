"""A step of the sampler at fixed addresses, so that a device's graph can hold it and replay it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE, SKIP_TOP_K
from ascend_sample._errors import check_bool, check_device, check_instance, check_integer, refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose, check_purpose, exponential_noise
from ascend_sample.sampling.draws.placed_noise import ALIGNMENT
from ascend_sample.sampling.draws.segmented import lanes_of
from ascend_sample.sampling.draws.weights import StatusConstants, largest_of, status_of
from ascend_sample.sampling.edits.bitmask import BitmaskRows, placed_bitmask
from ascend_sample.sampling.edits.state_slots import refuse_states
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import RowParameters, RowStatus, check_logits, check_uncaptured, is_limited
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import COLUMNS, PENALTIES
from ascend_sample.sampling.static.edits import EDIT_BEFORE, StaticEdits
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.device_routes import AnyRows, FusedV2, Route, Segments, TopK
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.kept import KeptSets, listed
from ascend_sample.sampling.step.logprobs import (
    LogprobRows,
    Logprobs,
    LogprobsMode,
    gather_logprobs,
    processed_logprobs,
)
from ascend_sample.sampling.step.routes import LARGEST_FUSED_K

NAME: Final = "StaticStep"
SENT: Final = {name: COLUMNS[name] for name in (*DISTRIBUTION, *PENALTIES)}
"""The parameters that a step needs: four bytes each, and they travel with the noise."""


class StaticStep:
    """A step of so many rows, whatever is asked of them: the same operators on the same memory every time.

    `prepare` writes what changes from step to step: parameters and noise of the batch's rows in one copy, and their
    biases, penalties and masks where there are some. `run` draws, from `logits`, and is what a graph captures, with the
    model in front of it if that is wanted. Requests may join, leave and change between two steps, as long as there are
    no more than ``rows``. Rows that no request has are greedy and mean nothing.

    Whatever requests may ask for has its room from the beginning, and costs each step its launches, asked for or not:
    ``addends``, ``history``, ``bitmask`` and ``logprobs`` say for how much. A request that needs more is refused.

    A graph cannot choose routes, so every row takes two: the race by rank, and that by segments. With
    aclnnTopKTopPSampleV2 on the device the operator is called twice a step, and tokens are those of `Sampler` bit for
    bit. Elsewhere, and with ``largest_k`` above 1024 or ``keep_ties``, rows are sorted; a row for which `Sampler` would
    have had an operator then gets the same token but where two scores are closer than float32 tells. ``only_top_k``
    spares the second race: one call of the operator, or no sort of whole rows as long as 256 times ``largest_k`` is
    less than the vocabulary.

    Args:
        rows: how many there is room for.
        vocab_size: the number of columns.
        dtype: of the logits: float32, float16 or bfloat16.
        device: where the model is.
        largest_k: no request's top_k, where it is on, is larger.
        keep_ties: as for `Sampler`.
        only_top_k: every request has a top_k, or the temperature 0.
        addends: how many ids of a row may be biased, banned or held back by ``min_tokens``, at most.
        history: how many tokens a row with penalties may have seen, at most.
        bitmask: whether rows may have masks: allowed ids, more bans than a mask has words, or a grammar's bitmask.
        logprobs: how many of the best tokens are reported beside the drawn one; None: no logprobs.
        logprobs_mode: as for `Sampler`.
        max_kept: how many ids the kept set of a row has at most, as for `Sampler`; None: no kept sets.

    Attributes:
        logits: [rows, vocab_size], which the model writes; the batch's rows are the first ones.
        token_ids: int64 [rows], written by `run`.
        status: int8 [rows], the same.
        logprobs: of all rows, 1 + ``logprobs`` columns, the same; None without. Those of rows that have not asked for
            any mean nothing.
        kept: the kept sets of all rows, with ``rows`` * ``max_kept`` ids, the same; None without.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> step, batch = StaticStep(rows=4, vocab_size=3, dtype=torch.float32, device="cpu"), SamplingBatch(3)
        >>> row = batch.add(SamplingParams(temperature=0))
        >>> step.prepare(batch)
        >>> _ = step.logits.copy_(torch.tensor([[1.0, 3.0, 2.0]]))
        >>> step.run()  # on a device: graph.replay()
        >>> step.token_ids[:1], step.status[:1]
        (tensor([1]), tensor([0], dtype=torch.int8))

    Source: docs/sampling.md, section 4 "Routes", "A step in a graph".
    """

    @in_normal_mode
    def __init__(
        self,
        rows: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        *,
        largest_k: int = LARGEST_FUSED_K,
        keep_ties: bool = False,
        only_top_k: bool = False,
        addends: int = 0,
        history: int = 0,
        bitmask: bool = False,
        logprobs: int | None = None,
        logprobs_mode: str = "raw_logprobs",
        max_kept: int | None = None,
    ) -> None:
        rows = check_integer(NAME, "rows", rows, low=1)
        vocab_size = check_integer(NAME, "vocab_size", vocab_size, low=1, high=MAX_VOCAB_SIZE)
        self.largest_k = min(check_integer(NAME, "largest_k", largest_k, low=1), vocab_size)
        for name, value in (("keep_ties", keep_ties), ("only_top_k", only_top_k), ("bitmask", bitmask)):
            check_bool(NAME, name, value)
        if only_top_k and (keep_ties or self.largest_k > LARGEST_FUSED_K):
            rule = f"be False with keep_ties, and with a largest_k above {LARGEST_FUSED_K}"
            refuse(NAME, "only_top_k", rule, True, "Leave it out: such rows race by segments.")
        self.logprobs_mode = LogprobsMode.named(NAME, logprobs_mode)
        check_instance(NAME, "dtype", dtype, torch.dtype, "Give that of the logits.")
        check_device(NAME, device)
        check_logits(NAME, torch.empty(1, vocab_size, dtype=dtype, device="meta"))
        self.keep_ties, self.only_top_k = keep_ties, only_top_k
        self.logits = torch.zeros(rows, vocab_size, dtype=dtype, device=device)
        self.token_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.status = torch.zeros(rows, dtype=torch.int8, device=device)
        self.logprobs: Logprobs | None = None
        self._most = -1
        if logprobs is not None:
            self._most = check_integer(NAME, "logprobs", logprobs, low=0, high=vocab_size)
            ids = self.token_ids.new_zeros(rows, 1 + self._most)
            self.logprobs = Logprobs(
                list(range(rows)), ids, torch.zeros_like(ids, dtype=torch.float32), ids[:, 0].clone()
            )
        self.kept: KeptSets | None = None
        if max_kept is not None:
            width = min(check_integer(NAME, "max_kept", max_kept, low=1), vocab_size)
            ids = self.token_ids.new_zeros(rows * width, dtype=torch.int32)
            self.kept = KeptSets(self.token_ids.new_zeros(rows + 1), ids, ids.float(), ids.new_zeros(rows))
        abilities = routes.abilities_of(self.logits.device, dtype)
        self._is_sorted = not abilities.fused_v2 or keep_ties or self.largest_k > LARGEST_FUSED_K
        ranks = min(LARGEST_FUSED_K, vocab_size) if self._is_sorted else self.largest_k
        self._lanes = self.largest_k if only_top_k else max(ranks, lanes_of(vocab_size))
        self._asking = LogprobRows.of(RowSet.all(rows), self.logprobs_mode, self._most, self.logits.device)
        self._start = -(-len(SENT) * rows // ALIGNMENT) * ALIGNMENT  # of the noise in what is sent
        self._sent = torch.ones(self._start + rows * self._lanes, device=device, dtype=torch.float32)
        columns, self._noise = self._parts(self._sent)
        own: dict[str, Any] = {name: columns[name] for name in DISTRIBUTION}
        unread = self.token_ids
        self.parameters = RowParameters(**own, seed=unread, position=unread)
        self.edits = StaticEdits(
            rows,
            vocab_size,
            [columns[name] for name in PENALTIES],
            addends=check_integer(NAME, "addends", addends, low=0),
            history=check_integer(NAME, "history", history, low=0),
            bitmask=bitmask,
        )
        self._constants = StatusConstants.like(
            self.logits.new_empty(0, dtype=torch.float32) if self.edits.are_on else self.logits
        )

    @in_normal_mode
    def prepare(
        self,
        batch: SamplingBatch,
        *,
        purpose: Purpose = Purpose.DRAW,
        is_edited: bool = False,
        bitmask: Tensor | None = None,
        bitmask_rows: BitmaskRows | None = None,
    ) -> None:
        """Writes the parameters and the noise of a batch's rows in one copy, and what they edit; nobody waits for it.

        Rows with penalties cost five launches, which copy what they have seen on the device. Biases, bans and masks
        of requests are written when the batch has changed, and a bitmask in its step.

        Args:
            batch: the requests, as they are now. The step does not tell it of the tokens: `SamplingBatch.append` does.
            purpose: which of the independent noises of a seed and a position.
            is_edited: the logits will be what `SamplingBatch.process` makes of them, where a request masks, biases or
                penalises: the step is not to do it again.
            bitmask: the ids that a grammar allows in this step, as `Sampler` takes them.
            bitmask_rows: the rows of the batch that it is for.

        Raises:
            TypeError: the batch or the purpose is none; the bitmask is no int32 tensor, or its rows are no ints.
            ValueError: a graph is captured; the batch has too many rows, another vocabulary or device, a top_k above
                ``largest_k``, or requests that ask for more edits or logprobs than the step has room for, or have no
                top_k where all must; or the bitmask does not fit.
            IndexError: the bitmask is for a row that does not exist.
        """
        check_uncaptured(NAME, self.logits)
        check_instance(NAME, "batch", batch, SamplingBatch, "Add the requests to one.")
        check_purpose(NAME, purpose)
        self.check(NAME, batch, len(self.logits), is_edited)
        allowed = placed_bitmask(NAME, bitmask, bitmask_rows, len(batch), batch.vocab_size, batch.device)
        if allowed is not None and not self.edits.bitmask:
            rule = "be left out of a step that has no room for one"
            refuse(NAME, "bitmask", rule, "one", "Make the step with bitmask=True.")
        if self.edits.are_on:
            self.edits.write(batch, allowed, is_edited)
        host, count = batch.host, len(batch)
        staged = torch.empty(
            self._sent.shape, pin_memory=self.logits.device.type != "cpu", dtype=torch.float32, device="cpu"
        )
        columns, noise = self._parts(staged)
        noise.fill_(1)
        for name, column in SENT.items():
            numbers = columns[name].numpy()
            numbers[:] = 0 if name == "temperature" else column.off  # rows that no request has are greedy
            if name in DISTRIBUTION or not is_edited:
                numbers[:count] = getattr(host, name)
        is_drawn = host.temperature != 0
        has_top_k = is_limited(host.top_k, batch.vocab_size)
        is_by_rank = (self.only_top_k or not self._is_sorted) and bool((has_top_k | ~is_drawn).all())
        lanes = int(host.top_k[has_top_k & is_drawn].max(initial=0)) if is_by_rank else self._lanes
        if count and lanes:
            seed, position = torch.from_numpy(host.seed.copy()), torch.from_numpy(host.position.copy())
            noise[:count, :lanes] = exponential_noise(seed, position, lanes, purpose=purpose)
        self._sent.copy_(staged, non_blocking=True)

    @in_normal_mode
    def run(self) -> None:
        """Draws a token for each row from `logits`, writes what the attributes say, and waits for nothing."""
        logits = self.draw()
        if self.kept is not None:
            self.list_kept(logits, self.status != RowStatus.OK)

    def draw(self, drafts: Tensor | None = None) -> Tensor:
        """Does what `run` does but for kept sets, for rows that may have drafts before them.

        Returns:
            The logits after the edits.
        """
        logits = self.edits.applied_to(self.logits, drafts) if self.edits.are_on else self.logits
        self.token_ids.copy_(self._drawn(logits))
        self.status.copy_(status_of(largest_of(logits), self._constants))
        if self.logprobs is not None:
            copy_each(self._logprobs_of(logits)[1:], self.logprobs[1:])
        return logits

    def list_kept(self, logits: Tensor, is_out: Tensor) -> None:
        """Writes the kept sets of edited logits, of which rows that are out have none: bool [rows]."""
        assert self.kept is not None, "there is room for them"
        values, most = self.distributions().kept_values(logits), len(self.kept.ids) // len(logits)
        copy_each(listed(values, is_out, self._asking.rows, len(logits), most), self.kept)

    def distributions(self) -> Distributions:
        """Returns those of all rows, whatever they ask for."""
        return Distributions.of_any(self.parameters, self.logits.shape[1], self.largest_k, self.keep_ties)

    def _logprobs_of(self, edited: Tensor) -> Logprobs:
        """Returns the logprobs of the tokens that have been drawn."""
        if not self.logprobs_mode.is_processed:
            return gather_logprobs(self._asking, self.logits, self.token_ids)
        return processed_logprobs(self._asking._replace(distributions=self.distributions()), edited, self.token_ids)

    def _parts(self, sent: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the parameters by name, [rows] each, and noise [rows, lanes], as they lie in what is sent."""
        rows = len(self.logits)
        table = sent[: len(SENT) * rows].view(len(SENT), rows)
        columns = {
            name: of_all.view(getattr(torch, SENT[name].dtype)) for name, of_all in zip(SENT, table, strict=True)
        }
        return columns, sent[self._start :].view(rows, self._lanes)

    def _drawn(self, logits: Tensor) -> Tensor:
        """Draws every row by the one route of the step."""
        vocab_size, noise = logits.shape[1], self._noise
        own = self.parameters.for_operators(vocab_size)
        if self._is_sorted:
            route: Route
            if self.only_top_k:
                route = TopK(own, vocab_size, self.largest_k, chunk_lanes=self._asking.lanes)
            else:
                route = AnyRows(own, vocab_size, self.keep_ties)
            return route(logits, noise, is_own=False)
        # A row that keeps its best logit alone is taken as it is, and so is one without a top_k, which is not asked.
        is_ranked = own.top_k != SKIP_TOP_K
        top_k = own.top_k.masked_fill(~is_ranked, 1)
        ranked = replace(own, top_k=top_k, temperature=own.temperature.masked_fill(top_k == 1, 1))
        by_rank = FusedV2(ranked, self.largest_k)(logits, noise[:, : self.largest_k], is_own=False)
        if self.only_top_k:
            return by_rank
        unranked = replace(own, top_k=torch.full_like(top_k, SKIP_TOP_K))
        segments = Segments(unranked, logits, has_v2=True)
        by_segment = segments(logits, noise[:, : segments.lanes], is_own=False)
        return torch.where(is_ranked, by_rank, by_segment)

    def check(
        self, name: str, batch: SamplingBatch, rows: int, is_edited: bool = False, instead: str = EDIT_BEFORE
    ) -> None:
        """Raises unless there is room for a batch and all that it asks for.

        Args:
            name: whose messages these are.
            batch: the requests.
            rows: how many there may be.
            is_edited: their edits do not count.
            instead: how edits are served for which there is no room.
        """
        vocab_size = self.logits.shape[1]
        if len(batch) > rows or batch.vocab_size != vocab_size:
            rule, remedy = f"have at most {rows} rows of {vocab_size} ids", "Make a step for it."
            if batch.vocab_size != vocab_size:
                remedy = "Make both with the vocab_size of the model, and cut padding of its logits off."
            refuse(name, "batch", rule, f"{len(batch)} of {batch.vocab_size}", remedy)
        if batch.device != self.logits.device:
            rule = f"be on the device of the step, {self.logits.device}"
            refuse(name, "batch", rule, batch.device, "Make the batch with device=step.logits.device.")
        top_k = batch.host.top_k
        most = int(top_k[top_k < vocab_size].max(initial=0))
        if most > self.largest_k:
            refuse(name, "top_k", f"be at most {self.largest_k}", most, "Make the step with that largest_k.")
        if self.only_top_k:
            has_none = (batch.host.temperature != 0) & ~is_limited(top_k, vocab_size)
            if has_none.any():
                row = int(has_none.argmax())
                rule = f"be on for row {row} of the batch, or its temperature 0: the step has only_top_k=True"
                refuse(name, "top_k", rule, "off", "Make the step without it.")
        if batch.host.logprob_token_ids.any():
            row, remedy = int(batch.host.logprob_token_ids.argmax()), "Take its steps by Sampler."
            refuse(name, "logprob_token_ids", "be empty", f"{batch.params[row].logprob_token_ids} in row {row}", remedy)
        most = int(batch.host.logprobs.max(initial=-1))
        if most > self._most:
            room = None if self.logprobs is None else self._most
            refuse(name, "logprobs", f"be at least {most}", room, "Make the step with it.")
        if self.kept is None and batch.host.return_sampling_mask.any():
            refuse(name, "max_kept", "be given where requests ask for kept sets", None, "Make the step with it.")
        refuse_states(name, batch.host, "A graph would have to move it with each replay: take its steps by Sampler.")
        if not is_edited:
            self.edits.check(name, batch, instead)


def copy_each(new: Iterable[Tensor], buffers: Iterable[Tensor]) -> None:
    """Copies tensors to where they are told."""
    for one, buffer in zip(new, buffers, strict=True):
        buffer.copy_(one)
