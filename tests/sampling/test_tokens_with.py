"""`tokens_with`, which engines draw with: the tokens of `sample_rows`, from what the host knows, in few launches."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor

import hostcann
from ascend_sample.sampling.draws import placed_noise
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.functional import sample_rows, tokens_with
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.parameters import DTYPES, RowParameters
from ascend_sample.sampling.rows.table import COLUMNS
from ascend_sample.sampling.step import device_routes, routes

ROWS, VOCAB_SIZE = 48, 700
KINDS: dict[str, list[float]] = {
    "temperature": [0.0, 1.0, 0.7, 1.0],
    "top_k": [50, VOCAB_SIZE, 8, 2**20 + 1],
    "top_p": [1.0, 0.9, 1.0],
    "min_p": [0.0, 0.0, 1.0, 0.1, 0.0],
}
"""Each parameter's numbers, in turns."""
MOST_LAUNCHES: Final = 32
"""Of a step with three groups of rows: what their draws take, to take out their rows, and to put all in order."""
MOST_COPIES: Final = 5
"""Noise, the rows and parameters of each of three groups on a device, and the order of all."""


def columns() -> dict[str, Tensor]:
    row = torch.arange(ROWS)
    return {name: torch.tensor(each, dtype=DTYPES[name])[row % len(each)] for name, each in KINDS.items()}


def keys() -> DrawKeys:
    rng = np.random.default_rng(5)
    return DrawKeys(rng.integers(-(2**63), 2**63, ROWS), rng.integers(0, 5000, ROWS))


def given(device: str, logits: Tensor, given_keys: DrawKeys | None, knows: bool) -> RowParameters:
    """The rows as an engine has them: without seeds and positions, where it hands over keys."""
    unread = torch.full((ROWS,), 77, dtype=torch.int64, device=device)
    seed, position = (
        (unread, unread) if given_keys is not None else (torch.from_numpy(each).to(device) for each in keys())
    )
    tensors = {name: column.to(device) for name, column in columns().items()} | {"seed": seed, "position": position}
    facts = {name: column.numpy() for name, column in columns().items()} if knows else None
    return RowParameters.of_tensors("test", logits, tensors, facts)


def logits() -> Tensor:
    """With equals among the best, of which a min_p of 1 keeps all."""
    return torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)).mul(4).round()


def wanted(dtype: torch.dtype) -> list[int]:
    seed, position = map(torch.from_numpy, keys())
    found: list[int] = sample_rows(logits().to(dtype), **columns(), seed=seed, position=position).token_ids.tolist()
    return found


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("has_keys", [True, False])
def test_tokens_are_those_of_sample_rows(
    device: str, knows: bool, has_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where noise is too much to be sent a device makes it: of seeds and positions, which an engine's rows lack."""
    for dtype, most_sent in ((torch.float32, placed_noise.MOST_SENT), (torch.bfloat16, 0)):
        monkeypatch.setattr(placed_noise, "MOST_SENT", most_sent)
        of_rows = logits().to(device, dtype)
        chosen = keys() if has_keys and not of_rows.is_cpu else None  # the CPU kernel makes its noise itself
        drawn = tokens_with(of_rows, given(device, of_rows, chosen, knows), keep_ties=False, keys=chosen)
        assert drawn.tolist() == wanted(dtype)


def test_groups_are_placed_by_copies_alone(counting: None, npu: str) -> None:
    """Rows of several routes: no launch looks up, converts or fills parameters, and none looks for statuses."""
    of_rows = logits().to(npu)
    parameters = given(npu, of_rows, keys(), knows=True)
    tokens_with(of_rows, parameters, False, keys())
    with hostcann.profile() as counted:
        tokens_with(of_rows, parameters, False, keys())
    assert not counted.synchronizations
    assert counted.totals.launches <= MOST_LAUNCHES
    assert counted.totals.copies <= MOST_COPIES


def drawn_together(npu: str, of_rows: Tensor, **known: list[float]) -> Tensor:
    """Draws rows of which the host knows all, with their places as seeds."""
    rows = len(of_rows)
    facts = {name: np.array(known[name], COLUMNS[name].dtype) for name in known}
    unread = torch.zeros(rows, dtype=torch.int64, device=npu)
    parameters = RowParameters.of_facts("test", of_rows.to(npu), facts, unread, unread)
    return tokens_with(of_rows.to(npu), parameters, False, DrawKeys(np.arange(rows), np.zeros(rows, np.int64))).cpu()


def test_rows_at_temperature_1_are_as_they_are_beside_others(npu: str) -> None:
    """Less their maximum, the second and the third best would be equal, and the one with the lower id would stay."""
    of_rows, rows = torch.tensor([[2.0, 0.9e-8, 1e-8, -5.0]]).repeat(200, 1), range(200)
    found = drawn_together(npu, of_rows, temperature=[1 + row % 2 for row in rows], top_k=[2] * 200)
    assert set(found[::2].tolist()) == {0, 2}
    alone = drawn_together(npu, of_rows, temperature=[1] * 200, top_k=[2] * 200)
    assert torch.equal(found[::2], alone[::2])


def test_greedy_rows_take_the_best_whatever_the_operator_says(npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody documents which of several equals an operator takes."""
    if not routes.abilities_of(torch.device(npu), torch.float32).fused_v2:
        pytest.skip("this device has no such operator")
    monkeypatch.setattr(device_routes, "draw_by_second_operator", lambda values, *_: (values.argmin(1), values))
    of_rows = torch.tensor([[1.0, 3.0, 3.0, torch.nan, -5.0]]).repeat(4, 1)
    assert drawn_together(npu, of_rows, temperature=[0, 1, 1, 2], top_k=[0, 1, 2, 2]).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("name", DISTRIBUTION)
def test_facts_of_other_rows(name: str) -> None:
    on_meta: dict[str, Any] = {field: column.to("meta") for field, column in columns().items()}
    on_meta |= dict.fromkeys(("seed", "position"), torch.zeros(ROWS, dtype=torch.int64, device="meta"))
    facts = {field: column.numpy() for field, column in columns().items()}
    facts[name] = facts[name][:-1]
    with pytest.raises(ValueError, match=rf"^sample_rows: facts must have one value for each of the {ROWS} rows of"):
        sample_rows(logits().to("meta"), **on_meta, facts=facts)
