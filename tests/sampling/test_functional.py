"""`sample_rows`: every route draws what the float64 reference draws from the row's own noise."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from oracle import Expectation, expected, signed
from torch import Tensor

from ascend_sample.sampling.draws import weights
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.functional import sample_rows
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.parameters import Facts, RowsOutput
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.routes import Abilities, SamplingRoute, choose_rules

OFF = 2**20 + 1
NATIVE = Abilities(native=True, fused=False, fused_v2=False)
OLD_CANN = Abilities(native=False, fused=True, fused_v2=False)
NEW_CANN = Abilities(native=False, fused=True, fused_v2=True, filters=True)
NO_OPERATOR = Abilities(native=False, fused=False, fused_v2=False)
MACHINES = {"cpu": ("cpu", NATIVE), "torch alone": ("cpu", NO_OPERATOR)}
EMULATED = {"old CANN": ("npu", OLD_CANN), "new CANN": ("npu", NEW_CANN), "no operator": ("npu", NO_OPERATOR)}


@pytest.fixture(params=[*MACHINES, *EMULATED])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device with the operators that it is said to have."""
    name = request.param
    if name in EMULATED:
        request.getfixturevalue("npu")
    device, abilities = (MACHINES | EMULATED)[name]

    def abilities_of(device: torch.device, dtype: torch.dtype) -> Abilities:
        has_fused = abilities.fused and dtype != torch.float32
        return abilities._replace(fused=has_fused)

    monkeypatch.setattr(routes, "abilities_of", abilities_of)
    return device


def facts_of(requests: list[SamplingParams]) -> Facts:
    return {
        "temperature": np.float32([request.temperature for request in requests]),
        "top_k": np.int32([OFF if request.top_k is None else request.top_k for request in requests]),
        "top_p": np.float32([request.top_p for request in requests]),
        "min_p": np.float32([request.min_p for request in requests]),
    }


def call(
    logits: Tensor, requests: list[SamplingParams], positions: list[int], device: str, *, knows: bool = True, **options
) -> RowsOutput:
    facts = facts_of(requests)
    return sample_rows(
        logits.to(device),
        **{name: torch.from_numpy(column).to(device) for name, column in facts.items()},
        seed=torch.tensor([signed(request.seed) for request in requests], device=device),
        position=torch.tensor(positions, device=device),
        facts=facts if knows else None,
        **options,
    )


def grid() -> list[SamplingParams]:
    combinations = itertools.product(
        (0.0, 0.3, 1.0, 1.7), (None, 1, 2, 20, 1024, 1500), (1.0, 0.05, 0.75, 0.9, 0.999), (0.0, 0.05, 1.0)
    )
    return [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=(977 * number) ** 5 % 2**64)
        for number, (t, k, p, m) in enumerate(combinations)
    ]


@functools.cache
def grid_rows(vocab_size: int, dtype: torch.dtype) -> tuple[Tensor, list[Expectation]]:
    """Rows for the grid, and what the oracle draws from them: once for all machines, as that takes most time."""
    requests = grid()
    logits = (torch.randn(len(requests), vocab_size, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    rows = zip(logits.float().numpy(), requests, range(len(requests)), strict=True)
    return logits, [expected(row, request, 7 * position) for row, request, position in rows]


class TestEveryRoute:
    @pytest.mark.parametrize(
        ("vocab_size", "dtype"),
        [(2, torch.float32), (7, torch.float16), (1000, torch.bfloat16), (3000, torch.float32)],
        ids=str,
    )
    def test_draws_what_the_reference_draws(self, machine: str, vocab_size: int, dtype: torch.dtype) -> None:
        """Whether the host knows the parameters, or not."""
        requests, (logits, wanted) = grid(), grid_rows(vocab_size, dtype)
        for knows in (True, False):
            output = call(logits, requests, [7 * row for row in range(len(requests))], machine, knows=knows)
            tokens = output.token_ids.tolist()
            for token_id, want, request in zip(tokens, wanted, requests, strict=True):
                assert token_id in want.acceptable, request
            assert sum(token_id != want.token_id for token_id, want in zip(tokens, wanted, strict=True)) <= 3
            assert not output.status.any()

    @pytest.mark.parametrize("keep_ties", [False, True])
    @pytest.mark.parametrize("top_p", [1.0, 0.99])
    def test_ties_at_the_kth_value(self, machine: str, keep_ties: bool, top_p: float) -> None:
        requests = [SamplingParams(top_k=2, top_p=top_p, seed=seed) for seed in range(100)]
        logits = torch.tensor([-1.0, -0.0, 0.0, 0.0, -2.0]).expand(100, 5).contiguous()
        tokens = call(logits, requests, [0] * 100, machine, keep_ties=keep_ties).token_ids.tolist()
        assert set(tokens) == ({1, 2, 3} if keep_ties else {1, 2})
        rows = zip(logits.numpy(), requests, strict=True)
        assert tokens == [expected(row, request, 0, keep_ties=keep_ties).token_id for row, request in rows]

    def test_sums_that_are_exactly_p(self, machine: str) -> None:
        """Four equal logits and p = 1/2: the sum of two does not exceed it, so three stay."""
        requests = [SamplingParams(top_p=0.5, top_k=k, seed=seed) for k in (None, 4) for seed in range(200)]
        logits = torch.tensor([1.0, 1.0, 1.0, 1.0, -torch.inf]).expand(400, 5).contiguous()
        output = call(logits, requests, [0] * 400, machine)
        assert set(output.token_ids.tolist()) == {0, 1, 2}

    def test_purposes_are_not_the_same(self, machine: str) -> None:
        requests = [SamplingParams(seed=seed) for seed in range(50)]
        logits = torch.zeros(50, 1000)
        drawn = [call(logits, requests, [0] * 50, machine, purpose=purpose).token_ids.cpu() for purpose in Purpose]
        for one, other in itertools.combinations(drawn, 2):
            assert (one == other).sum() <= 3


class TestBadRows:
    BAD = (
        ([torch.nan, 1.0, 0.0, 0.5], 2, {1, 2, 3}),
        ([torch.nan] * 4, 2, {0}),
        ([-torch.inf] * 4, 1, {0}),
        ([torch.inf, 0.0, torch.inf, 9.0], 3, {0, 2}),
        ([torch.inf, torch.nan, torch.inf, 9.0], 2, {0, 2}),
    )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_infinite_logits_share_the_mass_by_any_route(self, machine: str, dtype: torch.dtype) -> None:
        """In a batch, where routes serve rows together: a number stands for +inf, and not the same in each dtype."""
        row = torch.arange(40.0)
        row[[7, 30]] = torch.inf
        filters = ({}, {"top_p": 0.75}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 9}, {"top_k": 9, "top_p": 0.75})
        requests = [SamplingParams(**each, seed=seed) for seed in range(20) for each in filters]
        output = call(row.expand(len(requests), -1).to(dtype), requests, [0] * len(requests), machine)
        assert set(output.status.tolist()) == {3}
        drawn = output.token_ids.cpu().view(20, -1)
        assert all({7, 30} >= set(ids) for ids in drawn.T.tolist()), drawn
        assert all(len(set(ids)) == 2 for place, ids in enumerate(drawn.T.tolist()) if "top_p" not in filters[place])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_status_and_a_valid_id_for_that_row_alone(self, machine: str, dtype: torch.dtype) -> None:
        requests = grid()
        good = torch.randn(len(requests), 4).to(dtype)
        twice = [request for request in requests for _ in range(2)]
        alone = call(good, requests, [0] * len(requests), machine)
        for bad, status, ids in self.BAD:
            logits = good.repeat_interleave(2, dim=0)
            logits[::2] = torch.tensor(bad).to(dtype)
            output = call(logits, twice, [0] * len(twice), machine)
            assert set(output.status[::2].tolist()) == {status}
            assert not output.status[1::2].any()
            assert set(output.token_ids[::2].tolist()) <= ids
            assert torch.equal(output.token_ids[1::2], alone.token_ids)

    def test_weights_are_numbers(self, device: str) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            rows = torch.tensor([[torch.nan, 1.0, 1.0], [torch.inf, 0.0, torch.inf], [-torch.inf] * 3])
            values = weights.cleaned_in_float32(rows.to(dtype).to(device))
            base = weights.base_of(weights.largest_of(values))
            found = weights.scaled(values, base, torch.full((3, 1), 0.5, device=device)).exp()
            assert found.tolist() == [[0, 1, 1], [1, 0, 1], [0, 0, 0]]


def test_facts_of_what_is_not_given_are_off(device: str) -> None:
    """An engine may note its top_k, and hand over none."""
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(1)).to(device)
    seed, position = torch.arange(20, device=device), torch.zeros(20, dtype=torch.int64, device=device)
    facts = facts_of([SamplingParams(top_k=5)] * 20)
    given = {"temperature": torch.ones(20, device=device), "seed": seed, "position": position}
    expected = sample_rows(logits, **given).token_ids
    assert torch.equal(sample_rows(logits, **given, facts=facts).token_ids, expected)
    best = logits.topk(5).indices
    assert (best != expected.unsqueeze(1)).all(1).any(), "some are beyond the five best"


class TestRoutes:
    OF_REQUESTS: ClassVar[list[tuple[dict[str, Any], torch.dtype, str, str]]] = [
        ({"temperature": 0}, torch.bfloat16, "greedy", "greedy"),
        ({"top_k": 1}, torch.float32, "greedy", "greedy"),
        ({"top_k": 50}, torch.bfloat16, "fused", "fused_v2"),
        ({"top_k": 50, "temperature": 0.7}, torch.bfloat16, "fused", "fused_v2"),
        ({"top_k": 50, "temperature": 7}, torch.bfloat16, "top_k", "fused_v2"),
        ({"top_k": 50, "top_p": 0.75}, torch.bfloat16, "fused", "fused_v2"),
        ({"top_k": 50, "top_p": 0.9}, torch.bfloat16, "top_k", "fused_v2"),
        ({"top_k": 50, "top_p": 0.75, "temperature": 0.7}, torch.bfloat16, "top_k", "fused_v2"),
        ({"top_k": 50, "min_p": 0.1}, torch.float16, "top_k", "fused_v2"),
        ({"top_k": 50}, torch.float32, "top_k", "fused_v2"),
        ({"top_p": 0.75}, torch.bfloat16, "fused_segments", "fused_segments"),
        ({"top_p": 0.9}, torch.bfloat16, "sorted_segments", "fused_segments"),
        ({"top_p": 0.75}, torch.float32, "sorted_segments", "fused_segments"),
        ({}, torch.bfloat16, "segments", "segments"),
        ({"min_p": 0.1, "temperature": 0.7}, torch.float32, "segments", "segments"),
        ({"top_k": 1025}, torch.bfloat16, "sorted_segments", "sorted_segments"),
        ({"top_k": 32000}, torch.bfloat16, "segments", "segments"),
    ]
    """The parameters of a row, its dtype, and the routes with the first operator and with the second."""

    def test_of_requests(self) -> None:
        for fields, dtype, *wanted in self.OF_REQUESTS:
            facts = facts_of([SamplingParams(**fields)])
            abilities = (OLD_CANN._replace(fused=dtype != torch.float32), NEW_CANN)
            rules = [routes.RULES[int(choose_rules(facts, 32000, dtype, each, False)[0])] for each in abilities]
            assert [rule.route.value for rule in rules] == wanted, (fields, dtype)

    @pytest.mark.parametrize("fields", [{"top_k": 50}, {"top_k": 5000, "top_p": 0.9, "temperature": 0.7}])
    def test_of_ties_that_are_kept(self, fields: dict[str, Any]) -> None:
        facts = facts_of([SamplingParams(**fields)])
        for abilities, wanted in ((NEW_CANN, "fused_segments"), (OLD_CANN, "sorted_segments")):
            rule = routes.RULES[int(choose_rules(facts, 32000, torch.bfloat16, abilities, True)[0])]
            assert rule.route.value == wanted

    def test_the_operator_is_asked_for_what_the_device_has(self, npu: str) -> None:
        assert routes.abilities_of(torch.device(npu), torch.bfloat16) == NEW_CANN
        assert routes.abilities_of(torch.device(npu), torch.float32) == NEW_CANN._replace(fused=False)
        assert routes.abilities_of(torch.device("cpu"), torch.float32) == NATIVE

    def test_few_groups(self) -> None:
        requests = grid()
        facts = facts_of(requests)
        groups = routes.group_rows(facts, 32000, torch.bfloat16, NEW_CANN, keep_ties=False)
        assert [route for route, _, _ in groups] == [
            SamplingRoute.FUSED_SEGMENTS,  # with the rows that no filter cuts
            SamplingRoute.FUSED_V2,
            SamplingRoute.GREEDY,
            SamplingRoute.SORTED_SEGMENTS,
        ]
        assert sorted(np.concatenate([rows for _, rows, _ in groups])) == list(range(len(requests)))

    def test_an_operator_gets_no_more_rows_than_it_has_room_for(self) -> None:
        for abilities, top_k, (vocab_size, most) in itertools.product(
            (OLD_CANN, NEW_CANN), (50, None), ((2000, 5120), (1 << 20, 819))
        ):
            facts = facts_of([SamplingParams(top_k=top_k, top_p=0.5)] * 6000)
            groups = routes.group_rows(facts, vocab_size, torch.bfloat16, abilities, keep_ties=False)
            assert len({route for route, _, _ in groups}) == 1
            assert groups[0][0].startswith("fused")
            assert len(groups[0][1]) == most
            assert np.concatenate([rows for _, rows, _ in groups]).tolist() == list(range(6000))

    def test_the_number_of_candidates_does_not_depend_on_other_rows(self) -> None:
        facts = facts_of([SamplingParams(top_k=top_k, top_p=0.9) for top_k in (1, 64, 65, 50, 1024, 7)])
        groups = routes.group_rows(facts, 32000, torch.float32, NO_OPERATOR, keep_ties=False)
        assert [(route, most_k, rows.tolist()) for route, rows, most_k in groups] == [
            (SamplingRoute.GREEDY, 1, [0]),
            (SamplingRoute.TOP_K, 64, [1, 3, 5]),
            (SamplingRoute.TOP_K, 1024, [2, 4]),
        ]


STRANGE = (
    ("temperature", torch.nan, r"be at least 0, got nan in row 1\. 0 takes the best id\.", {2}),
    ("temperature", -1.0, r"be at least 0, got -1.0 in row 1", {2}),
    ("top_p", -1.0, r"lie in \(0, 1\], got -1.0 in row 1\. 1 switches top-p off\.", {2}),
    ("top_p", 0.0, r"lie in \(0, 1\], got 0.0 in row 1", {2}),
    ("top_p", 1.5, r"lie in \(0, 1\], got 1.5 in row 1", {0, 2}),
    ("top_p", torch.nan, r"lie in \(0, 1\], got nan in row 1", {0, 2}),
    ("min_p", -1.0, r"lie in \[0, 1\], got -1.0 in row 1\. 0 switches min-p off\.", {0, 2}),
    ("min_p", 1.5, r"lie in \[0, 1\], got 1.5 in row 1", {2}),
    ("min_p", torch.nan, r"lie in \[0, 1\], got nan in row 1", {0, 2}),
)
"""Numbers of no distribution: what is said of them where they are known, and what is drawn of two ids otherwise."""


@pytest.mark.parametrize("top_k", [OFF, 2])
def test_numbers_of_no_distribution(machine: str, top_k: int) -> None:
    count = 40
    logits = torch.tensor([-0.1, -torch.inf, 0.1]).expand(count, 3).to(machine)
    for field, number, says, drawn in STRANGE:
        columns = {"temperature": torch.ones(count), "top_k": torch.full((count,), top_k, dtype=torch.int32)}
        columns |= {"seed": torch.arange(count), "position": torch.zeros(count, dtype=torch.int64)}
        columns[field] = torch.full((count,), number)
        columns[field][0] = 0.5
        there = {name: column.to(machine) for name, column in columns.items()}
        known = {name: columns[name].numpy() for name in ("temperature", "top_k", field)}
        for facts in (known, *(() if machine != "cpu" else (None,))):
            with pytest.raises(ValueError, match=f"^sample_rows: {field} must {says}"):
                sample_rows(logits, **there, facts=facts)
        if machine != "cpu":
            assert set(sample_rows(logits, **there).token_ids[1:].tolist()) == drawn


class TestArguments:
    def arguments(self) -> dict[str, Tensor]:
        return {
            "logits": torch.zeros(2, 4),
            "temperature": torch.ones(2),
            "top_k": torch.ones(2, dtype=torch.int32),
            "top_p": torch.ones(2),
            "min_p": torch.zeros(2),
            "seed": torch.zeros(2, dtype=torch.int64),
            "position": torch.zeros(2, dtype=torch.int64),
        }

    def test_wrong_ones_are_named(self, npu: str) -> None:
        tensors, one = self.arguments(), np.ones(2, np.float32)
        facts = {"temperature": one, "top_k": one, "top_p": one, "min_p": one}
        for name, wrong, error, says in (
            *((name, 3, TypeError, "be a") for name in tensors),
            *((name, tensor.to(torch.complex64), TypeError, "") for name, tensor in tensors.items()),
            *((name, tensor[None], ValueError, "") for name, tensor in tensors.items()),
            ("seed", torch.zeros(2, dtype=torch.int64, device=npu), ValueError, "be on the device of logits, cpu"),
            ("keep_ties", "no", TypeError, "be True or False, got str 'no'"),
            ("purpose", "DRAW", TypeError, "be a Purpose, got str 'DRAW'"),
            ("facts", 5, TypeError, "be a Mapping, got int 5"),
            ("facts", {"temperature": one}, TypeError, "name .*, and no other than temperature, top_k"),
            ("facts", {}, TypeError, r".*got nothing\. Give an array for each"),
            ("facts", facts | {"top_q": one}, TypeError, ".*got .*, top_q"),
        ):
            with pytest.raises(error, match=f"sample_rows: {name} must {says}"):
                sample_rows(**tensors | {name: wrong})

    @pytest.mark.parametrize("knows", [True, False])
    def test_what_asks_for_gradients(self, device: str, knows: bool) -> None:
        own = self.arguments() | {"temperature": torch.tensor([0.5, 1.0]), "top_k": torch.tensor([3, OFF]).int()}
        facts = {name: own[name].numpy() for name in ("temperature", "top_k", "top_p", "min_p")} if knows else None
        arguments = {name: tensor.to(device) for name, tensor in own.items()}
        asking = {name: tensor.clone().requires_grad_(tensor.is_floating_point()) for name, tensor in arguments.items()}
        drawn, wanted = sample_rows(**asking, facts=facts), sample_rows(**arguments, facts=facts)
        assert drawn.token_ids.tolist() == wanted.token_ids.tolist()
