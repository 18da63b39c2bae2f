"""Draws of one row, many at a time: the same logits in every row of a launch, each row with a noise of its own.

Machines are sets of operators that a device may have. Here all of them run on the CPU, which has both operators, so
every route of the layer is drawn from; `tests/sampling/test_functional.py` holds the routes against each other on the
emulated NPU, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pytest
import torch
from gate import Booleans, Floats, Integers, RowGate
from torch import Tensor

from ascend_sample.sampling import Purpose, SamplingBatch, SamplingParams, sample_rows
from ascend_sample.sampling.edits.bitmask import placed_bitmask
from ascend_sample.sampling.reference.distribution import kept_ids, process_row, target_distribution
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.routes import Abilities

Amount = Callable[[int, int], int]
"""Of few draws and many: which of them a test makes."""
MACHINES: Final = {
    "native": Abilities(native=True, fused=False, fused_v2=False),
    "second operator": Abilities(native=False, fused=True, fused_v2=True, filters=True),
    "first operator": Abilities(native=False, fused=True, fused_v2=False),
    "torch": Abilities(native=False, fused=False, fused_v2=False),
}
POSITIONS: Final = 64
"""How many draws share a seed, at positions that follow each other."""
ELEMENTS_OF_A_LAUNCH: Final = 2**22
ROUNDING: Final = 2e-5
"""How far a float32 sum or quotient may be off a threshold: docs/semantics.md, section 7."""


@dataclass(frozen=True)
class Case:
    """One row, with the request that it is sampled for."""

    name: str
    logits: Tensor
    params: SamplingParams
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    keep_ties: bool = False
    bitmask: Tensor | None = None
    """int32 [words], what a grammar allows; None: everything."""

    @property
    def vocab_size(self) -> int:
        return len(self.logits)

    def allowed_logits(self) -> Floats:
        """The logits in float64, -inf where the bitmask does not allow an id."""
        logits = self.logits.double().numpy().copy()
        if self.bitmask is not None:
            bits = np.unpackbits(self.bitmask.numpy().view(np.uint8), bitorder="little")
            logits[bits[: self.vocab_size] == 0] = -np.inf
        return logits

    def processed(self) -> Floats:
        """What becomes of the logits before temperature, in float64."""
        return process_row(self.allowed_logits(), self.params, self.prompt_ids, self.output_ids)

    def target(self) -> Floats:
        """The probabilities in float64."""
        return target_distribution(self.allowed_logits(), self.params, self.prompt_ids, self.output_ids, self.keep_ties)

    def kept(self, **changes: float) -> Booleans:
        """What the filters keep, with some of the parameters changed."""
        params = SamplingParams.from_mapping(self.params.to_mapping() | changes)
        processed = self.processed()
        kept = np.zeros(self.vocab_size, dtype=np.bool_)
        kept[kept_ids(processed, params, self.keep_ties)] = True
        return kept & (processed > -np.inf)

    def kept_at_most(self, leeway: float) -> Booleans:
        """What rounding may keep, with a leeway above 0; what it keeps in any case, below."""
        if self.params.temperature == 0:
            return self.kept()
        return self.kept(
            top_p=min(self.params.top_p + leeway, 1 - 2.0**-24) if self.params.top_p < 1 else 1.0,
            min_p=self.params.min_p * (1 - leeway),
        )

    def doubt(self) -> float:
        """The mass of ids that rounding may keep or drop.

        Where it is large, a partial sum is top_p, as 10 of 20 equal tokens are 0.5: the target could be either of two.
        """
        in_doubt = self.kept_at_most(ROUNDING) & ~self.kept_at_most(-ROUNDING)
        weights = replace(self, params=_without_filters(self.params)).target()
        return float(weights[in_doubt].sum() / weights[self.kept()].sum())

    def gate(self, draws: int) -> RowGate:
        """With the ids at the end of a nucleus or at the bound of min-p that rounding may keep or not."""
        target = self.target()
        return RowGate(target, draws, (target > 0) | self.kept_at_most(ROUNDING))


def _without_filters(params: SamplingParams) -> SamplingParams:
    return SamplingParams.from_mapping(params.to_mapping() | {"top_k": None, "top_p": 1.0, "min_p": 0.0})


@contextmanager
def machine(name: str) -> Iterator[None]:
    """The layer believes that the CPU has these operators."""
    abilities = MACHINES[name]

    def abilities_of(device: torch.device, dtype: torch.dtype) -> Abilities:
        return abilities._replace(fused=abilities.fused and dtype != torch.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "abilities_of", abilities_of)
        yield


def seeds_and_positions(draws: int, key: int) -> tuple[Tensor, Tensor]:
    """Of each draw: `POSITIONS` draws a seed, seeds that follow each other as engines count them up; a key's own."""
    number = torch.arange(draws)
    return key * 2**32 + number // POSITIONS, number % POSITIONS


def draw(case: Case, seed: Tensor, position: Tensor, *, on: str = "native", purpose: Purpose = Purpose.DRAW) -> Tensor:
    """One token for each seed and position: int64 [draws]."""
    batch = SamplingBatch(case.vocab_size)
    batch.add(case.params, case.prompt_ids, output_ids=case.output_ids)
    row = case.logits.unsqueeze(0)
    bitmask = None if case.bitmask is None else case.bitmask.unsqueeze(0)
    edited = batch.edited(row, placed_bitmask("Sampler", bitmask, None, 1, case.vocab_size, row.device))
    row = row if edited is None else edited
    columns = {name: getattr(batch, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    rows_of_a_launch = max(16, ELEMENTS_OF_A_LAUNCH // case.vocab_size)
    token_ids = []
    with machine(on):
        for seeds, positions in zip(seed.split(rows_of_a_launch), position.split(rows_of_a_launch), strict=True):
            output = sample_rows(
                row.expand(len(seeds), -1),
                **{name: column.repeat(len(seeds)) for name, column in columns.items()},
                seed=seeds,
                position=positions,
                purpose=purpose,
                keep_ties=case.keep_ties,
            )
            token_ids.append(output.token_ids)
    return torch.cat(token_ids)


def count(token_ids: Tensor, vocab_size: int) -> Integers:
    """How often each id was drawn."""
    return torch.bincount(token_ids, minlength=vocab_size).numpy()


def counts_of(case: Case, draws: int, *, on: str = "native", key: int = 1) -> Integers:
    """How often each id is drawn in so many draws."""
    return count(draw(case, *seeds_and_positions(draws, key), on=on), case.vocab_size)
