"""`sample_rows`: every route draws what the float64 reference draws from the row's own noise."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from oracle import Expectation, expected, signed
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.functional import sample_rows
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.parameters import Facts, RowsOutput
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.routes import Abilities, SamplingRoute, choose_rules

OFF = 2**20 + 1
NATIVE = Abilities(native=True, fused=False, fused_v2=False)
OLD_CANN = Abilities(native=False, fused=True, fused_v2=False)
NEW_CANN = Abilities(native=False, fused=True, fused_v2=True)
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

    def abilities_of(device: torch.device, dtype: torch.dtype, round_float32: bool = False) -> Abilities:
        has_fused = abilities.fused and dtype != torch.float32
        return abilities._replace(fused=has_fused)

    monkeypatch.setattr(routes, "abilities_of", abilities_of)
    return device


def call(
    logits: Tensor, requests: list[SamplingParams], positions: list[int], device: str, *, knows: bool = True, **options
) -> RowsOutput:
    top_k = [OFF if request.top_k is None else request.top_k for request in requests]
    columns = {
        "temperature": torch.tensor([request.temperature for request in requests]),
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": torch.tensor([request.top_p for request in requests]),
        "min_p": torch.tensor([request.min_p for request in requests]),
    }
    facts = {name: column.numpy() for name, column in columns.items()} if knows else None
    return sample_rows(
        logits.to(device),
        **{name: column.to(device) for name, column in columns.items()},
        seed=torch.tensor([signed(request.seed) for request in requests], device=device),
        position=torch.tensor(positions, device=device),
        facts=facts,
        **options,
    )


def facts_of(requests: list[SamplingParams]) -> Facts:
    return {
        "temperature": np.float32([request.temperature for request in requests]),
        "top_k": np.int32([OFF if request.top_k is None else request.top_k for request in requests]),
        "top_p": np.float32([request.top_p for request in requests]),
        "min_p": np.float32([request.min_p for request in requests]),
    }


def grid(vocab_size: int) -> list[SamplingParams]:
    combinations = itertools.product(
        (0.0, 0.3, 1.0, 1.7), (None, 1, 2, 20, 1024, 1500), (1.0, 0.05, 0.75, 0.9, 0.999), (0.0, 0.05, 1.0)
    )
    return [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=(977 * number) ** 5 % 2**64)
        for number, (t, k, p, m) in enumerate(combinations)
    ]


def check(logits: Tensor, requests: list[SamplingParams], positions: list[int], output: RowsOutput, **options) -> int:
    """Every row is what the oracle says; returns how many are not exactly the winner of float64."""
    wanted = [
        expected(row.float().numpy(), request, position, **options)
        for row, request, position in zip(logits, requests, positions, strict=True)
    ]
    return check_wanted(wanted, requests, output)


def check_wanted(wanted: list[Expectation], requests: list[SamplingParams], output: RowsOutput) -> int:
    """The same, of what the oracle has said."""
    inexact = 0
    for row, (token_id, want, request) in enumerate(zip(output.token_ids.tolist(), wanted, requests, strict=True)):
        assert token_id in want.acceptable, (row, request, token_id, want)
        inexact += token_id != want.token_id
    return inexact


class GridRows(NamedTuple):
    """Rows with the requests of the grid, and what the oracle draws from them."""

    logits: Tensor
    requests: list[SamplingParams]
    positions: list[int]
    wanted: list[Expectation]


@functools.cache
def grid_rows(vocab_size: int, dtype: torch.dtype) -> GridRows:
    """The same for every machine: the oracle takes more time than all of them."""
    requests = grid(vocab_size)
    logits = (torch.randn(len(requests), vocab_size, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    positions = [7 * row for row in range(len(requests))]
    rows = zip(logits.float().numpy(), requests, positions, strict=True)
    return GridRows(logits, requests, positions, [expected(*row) for row in rows])


class TestEveryRoute:
    @pytest.mark.parametrize(
        ("vocab_size", "dtype"),
        [(2, torch.float32), (7, torch.float16), (1000, torch.bfloat16), (3000, torch.float32)],
        ids=str,
    )
    def test_draws_what_the_reference_draws(self, machine: str, vocab_size: int, dtype: torch.dtype) -> None:
        logits, requests, positions, wanted = grid_rows(vocab_size, dtype)
        output = call(logits, requests, positions, machine)
        assert check_wanted(wanted, requests, output) <= 3
        assert not output.status.any()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_what_the_host_does_not_know_changes_nothing(self, machine: str, dtype: torch.dtype) -> None:
        requests = grid(1500)
        logits = (torch.randn(len(requests), 1500) * 2).to(dtype)
        positions = list(range(len(requests)))
        known = call(logits, requests, positions, machine)
        unknown = call(logits, requests, positions, machine, knows=False)
        assert (known.token_ids != unknown.token_ids).sum() <= 1  # two routes may round a near tie differently

    def test_without_top_k_nothing_has_to_be_known(self, machine: str) -> None:
        requests = [request for request in grid(1500) if request.top_k is None]
        logits = torch.randn(len(requests), 1500) * 2
        positions = list(range(len(requests)))
        columns = {
            name: torch.tensor([getattr(request, name) for request in requests]).to(machine)
            for name in ("temperature", "top_p", "min_p")
        }
        seed = torch.tensor([signed(request.seed) for request in requests], device=machine)
        position = torch.tensor(positions, device=machine)
        unknown = sample_rows(logits.to(machine), **columns, seed=seed, position=position)
        assert torch.equal(unknown.token_ids, call(logits, requests, positions, machine).token_ids)

    @pytest.mark.parametrize("keep_ties", [False, True])
    def test_ties_at_the_kth_value(self, machine: str, keep_ties: bool) -> None:
        requests = [SamplingParams(top_k=2, seed=seed) for seed in range(100)]
        logits = torch.tensor([0.0, 1.0, 1.0, 1.0, -1.0]).expand(100, 5).contiguous()
        output = call(logits, requests, [0] * 100, machine, keep_ties=keep_ties)
        assert set(output.token_ids.tolist()) == ({1, 2, 3} if keep_ties else {1, 2})
        assert check(logits, requests, [0] * 100, output, keep_ties=keep_ties) == 0

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
        requests = grid(4)
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
    def chosen(self, request: SamplingParams, dtype: torch.dtype, abilities: Abilities, keep_ties: bool = False) -> str:
        facts = facts_of([request])
        rule = routes.RULES[int(choose_rules(facts, 32000, dtype, abilities, keep_ties)[0])]
        return rule.route.value

    @pytest.mark.parametrize(
        ("request_", "dtype", "old", "new"),
        [
            (SamplingParams(temperature=0), torch.bfloat16, "greedy", "greedy"),
            (SamplingParams(temperature=0), torch.float32, "greedy", "greedy"),
            (SamplingParams(top_k=1), torch.float32, "greedy", "greedy"),
            (SamplingParams(top_k=50), torch.bfloat16, "fused", "fused_v2"),
            (SamplingParams(top_k=50, temperature=0.7), torch.bfloat16, "fused", "fused_v2"),
            (SamplingParams(top_k=50, temperature=7), torch.bfloat16, "top_k", "fused_v2"),
            (SamplingParams(top_k=50, top_p=0.75), torch.bfloat16, "fused", "fused_v2"),
            (SamplingParams(top_k=50, top_p=0.9), torch.bfloat16, "top_k", "fused_v2"),
            (SamplingParams(top_k=50, top_p=0.999), torch.bfloat16, "top_k", "fused_v2"),
            (SamplingParams(top_k=50, top_p=0.75, temperature=0.7), torch.bfloat16, "top_k", "fused_v2"),
            (SamplingParams(top_k=50, min_p=0.1), torch.float16, "top_k", "fused_v2"),
            (SamplingParams(top_k=50), torch.float32, "top_k", "fused_v2"),
            (SamplingParams(top_p=0.75), torch.bfloat16, "fused_segments", "fused_segments"),
            (SamplingParams(top_p=0.9), torch.bfloat16, "sorted_segments", "fused_segments"),
            (SamplingParams(top_p=0.75, temperature=0.7), torch.bfloat16, "sorted_segments", "fused_segments"),
            (SamplingParams(top_p=0.75), torch.float32, "sorted_segments", "fused_segments"),
            (SamplingParams(), torch.bfloat16, "segments", "segments"),
            (SamplingParams(min_p=0.1, temperature=0.7), torch.float32, "segments", "segments"),
            (SamplingParams(top_k=1025), torch.bfloat16, "sorted_segments", "sorted_segments"),
            (SamplingParams(top_k=32000), torch.bfloat16, "segments", "segments"),
        ],
    )
    def test_of_a_request(self, request_: SamplingParams, dtype: torch.dtype, old: str, new: str) -> None:
        assert self.chosen(request_, dtype, OLD_CANN._replace(fused=dtype != torch.float32)) == old
        assert self.chosen(request_, dtype, NEW_CANN) == new

    def test_the_operator_is_asked_for_what_the_device_has(self, npu: str) -> None:
        assert routes.abilities_of(torch.device(npu), torch.bfloat16) == NEW_CANN
        assert routes.abilities_of(torch.device(npu), torch.float32) == NEW_CANN._replace(fused=False)
        assert routes.abilities_of(torch.device("cpu"), torch.float32) == NATIVE

    def test_few_groups(self) -> None:
        requests = grid(32000)
        facts = facts_of(requests)
        groups = routes.group_rows(facts, 32000, torch.bfloat16, NEW_CANN, keep_ties=False)
        assert [group.route for group in groups] == [
            SamplingRoute.FUSED_SEGMENTS,  # with the rows that no filter cuts
            SamplingRoute.FUSED_V2,
            SamplingRoute.GREEDY,
            SamplingRoute.SORTED_SEGMENTS,
        ]
        assert sorted(np.concatenate([group.rows for group in groups])) == list(range(len(requests)))

    @pytest.mark.parametrize(("vocab_size", "most"), [(2000, 5120), (1 << 20, 819)])
    @pytest.mark.parametrize("top_k", [50, OFF])
    @pytest.mark.parametrize("abilities", [OLD_CANN, NEW_CANN])
    def test_an_operator_gets_no_more_rows_than_it_has_room_for(
        self, abilities: Abilities, top_k: int, vocab_size: int, most: int
    ) -> None:
        ones = np.ones(6000, np.float32)
        facts = {"temperature": ones, "top_k": np.full(6000, top_k, np.int32), "top_p": ones / 2, "min_p": ones * 0}
        groups = routes.group_rows(facts, vocab_size, torch.bfloat16, abilities, keep_ties=False)
        assert len({group.route for group in groups}) == 1
        assert groups[0].route.startswith("fused")
        assert len(groups[0].rows) == most
        assert np.concatenate([group.rows for group in groups]).tolist() == list(range(6000))

    def test_the_number_of_candidates_does_not_depend_on_other_rows(self) -> None:
        top_k = np.int32([1, 64, 65, 50, 1024, 7])
        ones = np.ones(6, np.float32)
        facts = {"temperature": ones, "top_k": top_k, "top_p": ones * np.float32(0.9), "min_p": ones * 0}
        groups = routes.group_rows(facts, 32000, torch.float32, NO_OPERATOR, keep_ties=False)
        assert [(group.route, group.most_k, group.rows.tolist()) for group in groups] == [
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


@pytest.mark.parametrize(("field", "number", "says", "drawn"), STRANGE)
def test_numbers_of_no_distribution(field: str, number: float, says: str, drawn: set[int], machine: str) -> None:
    for top_k in (OFF, 2):
        assert_refused(field, number, says, drawn, top_k, machine)


def assert_refused(field: str, number: float, says: str, drawn: set[int], top_k: int, machine: str) -> None:
    count = 40
    columns = {"temperature": torch.ones(count), "top_k": torch.full((count,), top_k, dtype=torch.int32)}
    columns |= {"seed": torch.arange(count), "position": torch.zeros(count, dtype=torch.int64)}
    columns[field] = torch.full((count,), number)
    columns[field][0] = 0.5
    there = {name: column.to(machine) for name, column in columns.items()}
    logits = torch.tensor([-0.1, -torch.inf, 0.1]).expand(count, 3).to(machine)
    known = {name: columns[name].numpy() for name in ("temperature", "top_k", field)}
    for facts in (known, *(() if machine != "cpu" else (None,))):
        with pytest.raises(ValueError, match=f"^sample_rows: {field} must {says}"):
            sample_rows(logits, **there, facts=facts)
    if machine != "cpu":
        assert set(sample_rows(logits, **there).token_ids[1:].tolist()) == drawn


def test_more_rows_than_an_operator_has_room_for(machine: str) -> None:
    rows = 5130
    logits = torch.randn(rows, 30, generator=torch.Generator().manual_seed(0)).bfloat16()
    requests = [SamplingParams(top_k=5, seed=row) for row in range(rows)]
    drawn, alone = (call(logits, requests, [0] * rows, device) for device in (machine, "cpu"))
    assert torch.equal(drawn.token_ids.cpu(), alone.token_ids)


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

    @pytest.mark.parametrize("name", ["logits", "temperature", "top_k", "top_p", "min_p", "seed", "position"])
    @pytest.mark.parametrize("kind", ["no tensor", "dtype", "shape"])
    def test_wrong_ones_are_named(self, name: str, kind: str) -> None:
        arguments = self.arguments()
        wrong = {"no tensor": 3, "dtype": arguments[name].to(torch.complex64), "shape": arguments[name][None]}[kind]
        arguments[name] = wrong
        with pytest.raises(ValueError if kind == "shape" else TypeError, match=f"sample_rows: {name} must"):
            sample_rows(**arguments)

    def test_options_that_are_none(self) -> None:
        with pytest.raises(TypeError, match="sample_rows: keep_ties must be True or False, got str 'no'"):
            sample_rows(**self.arguments(), keep_ties="no")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="sample_rows: facts must be a Mapping, got int 5"):
            sample_rows(**self.arguments(), facts=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="sample_rows: purpose must be a Purpose, got str 'DRAW'"):
            sample_rows(**self.arguments(), purpose="DRAW")  # type: ignore[arg-type]

    def test_a_wrong_device_is_named(self, npu: str) -> None:
        arguments = self.arguments() | {"seed": torch.zeros(2, dtype=torch.int64, device=npu)}
        with pytest.raises(ValueError, match="sample_rows: seed must be on the device of logits, cpu"):
            sample_rows(**arguments)

    @pytest.mark.parametrize("knows", [True, False])
    def test_what_asks_for_gradients(self, device: str, knows: bool) -> None:
        own = self.arguments() | {"temperature": torch.tensor([0.5, 1.0]), "top_k": torch.tensor([3, OFF]).int()}
        facts = {name: own[name].numpy() for name in ("temperature", "top_k", "top_p", "min_p")} if knows else None
        arguments = {name: tensor.to(device) for name, tensor in own.items()}
        asking = {name: tensor.clone().requires_grad_(tensor.is_floating_point()) for name, tensor in arguments.items()}
        drawn, wanted = sample_rows(**asking, facts=facts), sample_rows(**arguments, facts=facts)
        assert drawn.token_ids.tolist() == wanted.token_ids.tolist()

    def test_no_rows(self, device: str) -> None:
        none = {name: tensor[:0].to(device) for name, tensor in self.arguments().items()}
        output = sample_rows(**none)
        assert output.token_ids.shape == output.status.shape == (0,)
