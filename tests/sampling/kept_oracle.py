"""What a kept set must be, from the float64 reference: the ids, and what a trainer would compute of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from oracle import excludes, near_ranges, near_sets

from ascend_sample.sampling import KeptSets, SamplingParams
from ascend_sample.sampling.reference.distribution import keep_range, kept_ids, process_row

EXACT = 1e-6
"""How far a log-probability may be from float64's, beside what rounding the number itself to float32 does."""


class Race(NamedTuple):
    """A row and its request."""

    logits: npt.NDArray[np.float64]
    params: SamplingParams
    position: int
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    keep_ties: bool = False

    @property
    def edited(self) -> npt.NDArray[np.float64]:
        return process_row(self.logits, self.params, self.prompt_ids, self.output_ids)

    def sets(self) -> Iterator[list[int]]:
        """The reference's set, then those that rounding may make of it; ascending."""
        edited, is_excluding = self.edited, excludes(self.params, self.position)
        processed = keep_range(edited, self.params, is_excluding)
        others = near_ranges(edited, processed, self.params, is_excluding)
        if self.params.top_k == 1:  # greedy, whatever becomes of ties elsewhere
            yield from (kept_ids(within, self.params, self.keep_ties)[:1] for within in (processed, *others))
            return
        yield _ascending(processed, kept_ids(processed, self.params, self.keep_ties))
        for within in (processed, *others):
            kept = kept_ids(within, self.params, self.keep_ties)
            for each in [kept, *near_sets(within, self.params, kept, self.keep_ties)]:
                yield _ascending(within, each)

    def log_probs(self, ids: list[int]) -> npt.NDArray[np.float64]:
        """Log-probabilities among some ids, as a trainer recomputes them."""
        values = self.edited[ids]
        temperature = np.float64(np.float32(self.params.temperature)) or 1.0
        values = (values - values.max()) / temperature
        recomputed: npt.NDArray[np.float64] = values - np.log(np.exp(values).sum())
        return recomputed

    def rounding(self, ids: list[int]) -> float:
        """How far float32 arithmetic before the softmax may move a log-probability: edits, and the division."""
        edited = self.edited
        values, temperature = edited[ids], float(np.float32(self.params.temperature)) or 1.0
        size = np.ptp(values) if np.array_equal(edited, self.logits) else 4 * np.abs(values).max()
        return float(size / temperature) * 2.0**-23


def _ascending(processed: npt.NDArray[np.float64], ids: list[int]) -> list[int]:
    """The ids that have a weight: the reference lists what is -inf where nothing drops it."""
    return sorted(token_id for token_id in ids if processed[token_id] > -np.inf)


class Judged(NamedTuple):
    """Whether the set of a row is the reference's but for rounding, and what is wrong with it otherwise."""

    is_near: bool
    wrong: str | None


def judge(kept: KeptSets, row: int, race: Race, token_id: int, status: int) -> Judged:
    """Looks at the set of one row that has asked or not, which drew a token."""
    found, log_probs = (tensor.tolist() for tensor in kept.of_row(row))
    if not race.params.return_sampling_mask or status:
        return Judged(False, "keeps something" if found or int(kept.counts[row]) else None)
    if int(kept.counts[row]) != len(found):
        return Judged(False, f"counts {int(kept.counts[row])} of {len(found)}")
    if token_id not in found:
        return Judged(False, f"{token_id} is none of the {len(found)} that are kept")
    sets = race.sets()
    is_near = found != next(sets)
    if is_near and found not in sets:
        return Judged(True, _difference(found, next(race.sets())))
    expected = race.log_probs(found)
    far = (np.abs(np.array(log_probs) - expected) - np.abs(expected) * 2.0**-24).max()
    if not far <= EXACT + race.rounding(found):
        return Judged(is_near, f"log-probabilities are {far} off")
    return Judged(is_near, None)


def _difference(found: list[int], expected: list[int]) -> str:
    """What is wrong with a set, in a line."""
    more, fewer = (sorted(set(one) - set(other)) for one, other in ((found, expected), (expected, found)))
    shown = [
        f"{len(ids)} {what} ({', '.join(map(str, ids[:3]))})" for ids, what in ((more, "more"), (fewer, "fewer")) if ids
    ]
    return f"keeps {' and '.join(shown) or 'them in another order'} than {len(expected)}"
