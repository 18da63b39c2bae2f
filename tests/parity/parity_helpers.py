"""Rows to be judged, and the reference read in other ways: what parity checks and probes must tell apart."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ascend_sample import reference
from ascend_sample.parity.compare import Comparison, Kind, Result, compare
from ascend_sample.parity.row_model import V1, V2, Rules

SKIPS_TOP_K = 0
Drawn = int | tuple[int, list[int]]
"""An id, or an id with the kept ids."""
HALVES = [math.log(probability) for probability in (0.5, 0.3, 0.2)]


def judge(
    logits: list[float],
    expected: Drawn,
    actual: Drawn,
    k: int = SKIPS_TOP_K,
    p: float = 1.0,
    q: list[float] | None = None,
    min_p: float = 0.0,
    input_is_logits: bool = True,
    rules: Rules = V1,
    device_sorts_probabilities: bool = False,
) -> Comparison:
    """Judges one float32 row."""
    values = torch.tensor([logits])

    def result(drawn: Drawn) -> Result:
        if isinstance(drawn, int):
            return Result(torch.tensor([drawn]), None)
        kept = torch.full_like(values, -math.inf if input_is_logits else 0.0)
        kept[0, drawn[1]] = values[0, drawn[1]]
        return Result(torch.tensor([drawn[0]]), kept)

    return compare(
        values,
        torch.tensor([k], dtype=torch.int32),
        torch.tensor([p]),
        None if q is None else torch.tensor([q]),
        1e-8,
        result(expected),
        result(actual),
        rules=rules,
        min_p=torch.tensor([min_p]) if rules is V2 else None,
        input_is_logits=input_is_logits,
        device_sorts_probabilities=device_sorts_probabilities,
    )


def check_judged(
    table: list[tuple[Kind | str, list[float], Drawn, Drawn, dict[str, Any]]], rules: Rules, subtests: pytest.Subtests
) -> None:
    """Checks the verdict on each row of a table; a text is part of the reason for which a row has failed."""
    for outcome, logits, expected, actual, options in table:
        with subtests.test(f"{logits} {expected} {actual} {options}"):
            comparison = judge(logits, expected, actual, rules=rules, **options)
            assert comparison.kinds == [Kind.FAILED if isinstance(outcome, str) else outcome]
            assert not isinstance(outcome, str) or outcome in comparison.verdicts[0].reason


@dataclass(frozen=True)
class Reading:
    """Another reading of the first operator.

    Attributes:
        changes: pieces of text of the reference, each of which occurs once, and what is there instead.
        answers: what probes find that is not the contract's, and how many of them.
        is_by_probes_alone: no row of the stream shows it.
    """

    changes: dict[str, str]
    answers: dict[str, int] = field(default_factory=dict)
    is_by_probes_alone: bool = False

    def operator(self) -> Callable[..., Any]:
        """Returns the reference, read so."""
        source = inspect.getsource(reference)
        for old, new in self.changes.items():
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        namespace: dict[str, Any] = {"__name__": reference.__name__}
        exec(source, namespace)
        operator: Callable[..., Any] = namespace["top_k_top_p_sample_reference"]
        return operator


BEST = 'selected = int(kept[0]) if branch != "C" else int(first_of_total_order(x, 1))'
SOFTMAX = "return torch.softmax(x, dim=0).to(torch.float32)"
USE_K = "use_k = 1 <= k <= min(vocab_size, MAX_TOP_K)"
READINGS = {
    "softmax once": Reading(
        {"softmax(probabilities[kept], masked=has_no_mass(x)[kept])": "softmax(x[kept])"}, {"softmax once": 1}
    ),
    "p = 0 keeps one": Reading({"use_p = 0 < p < 1": "use_p = p < 1"}, {"one entry is kept": 2}),
    ">= for >": Reading({"(sums[:-1] <= p).sum()": "(sums[:-1] < p).sum()"}, {"kept until the sum is >= p": 2}),
    "one kept too many": Reading({"return 1 + int((sums": "return 2 + int((sums"}),
    "one kept too few": Reading(
        {"return 1 + int((sums[:-1] <= p).sum())": "return max(1, int((sums[:-1] <= p).sum()))"},
        {"kept until the sum is >= p": 2},
    ),
    "ties by id descending": Reading(
        {
            "return torch.sort(x, descending=True, stable=True).indices": (
                "return len(x) - 1 - torch.sort(x.flip(0), descending=True, stable=True).indices"
            ),
            "    kept = torch.arange(0, device=x.device)\n": "    return total_order(x)[:count]\n",
        },
        {"exactly k, the highest ids": 1, "the highest id": 1, "the highest ids": 1, "ids descending": 1},
    ),
    "ties at the k-th value all kept": Reading(
        {
            "kept = first_of_total_order(x, k)": (
                "kept = first_of_total_order(x, int((x >= x[first_of_total_order(x, k)[-1]]).sum()))"
            )
        },
        {"all of them are kept": 1},
    ),
    "q by id": Reading({"q[: kept.numel()]": "q[kept]"}, {"by vocabulary id": 2}),
    "q by rank in branch C": Reading(
        {'noise = q if branch == "C"': 'noise = q[total_order(x).argsort()] if branch == "C"'}, {"by rank": 1}
    ),
    "q with its sign": Reading({"(q.abs() +": "(q +"}, {"a negative score": 1}),
    "maximum from 0": Reading(
        {
            SOFTMAX: "x = (x - x.max().clamp_min(0)).float().exp()\n    return (x / x.sum()).nan_to_num(0.0)",
            BEST: "selected = int(kept[first_maximum(scores)])",
        },
        {"underflows: the maximum starts at 0": 1},
    ),
    "k above 1024 honoured": Reading({USE_K: "use_k = 1 <= k <= vocab_size"}, {"k is honoured": 1}),
    "k above 1024 capped": Reading(
        {USE_K: "use_k, k = 1 <= k <= vocab_size, min(k, MAX_TOP_K)"}, {"k is capped at 1024": 1}
    ),
    "filtered logits are 0": Reading(
        {"torch.full(logits.shape, -math.inf,": "torch.full(logits.shape, 0.0,"}, {"another value": 1}
    ),
    "kept logits altered": Reading({"as_values(logits[b])[row.kept]": "as_values(logits[b])[row.kept] + 0.5"}),
    "a neighbour's id": Reading(
        {"device=logits.device)\n    if not is_need_logits": "device=logits.device).roll(1)\n    if not is_need_logits"}
    ),
    "NaN is the greatest": Reading(
        {"torch.where(torch.isnan(x), -math.inf, x)": "torch.where(torch.isnan(x), math.inf, x)"}
    ),
    "probabilities are sorted": Reading(
        {
            "first_of_total_order(x, min(top_k_guess": "first_of_total_order(probabilities, min(top_k_guess",
            "            kept = total_order(x)\n": "            kept = total_order(probabilities)\n",
        },
        {"the lowest id": 1},
        is_by_probes_alone=True,
    ),
    "noise of NaN scores 0": Reading({"torch.isnan(q), -1.0": "torch.isnan(q), 0.0"}, {"it is drawn": 1}, True),
    "noise of NaN scores -inf": Reading(
        {"torch.isnan(q), -1.0": "torch.isnan(q), -math.inf"}, {"the first, -inf as it is": 1}, True
    ),
    "0 / 0 wins": Reading(
        {"scores = torch.where(weights == 0, 0.0, scores)": "scores = scores.nan_to_num(nan=math.inf)"},
        {"0 / 0 is drawn": 1},
        is_by_probes_alone=True,
    ),
}
