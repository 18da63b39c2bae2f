"""vLLM's V2 runner, whose kernels need a device: on stand-ins for its samplers, on the CPU and on an NPU."""

from __future__ import annotations

import itertools
import sys
import types
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hostcann
from ascend_sample.integrations import vllm_v2
from ascend_sample.integrations.vllm_served import Served, served
from ascend_sample.sampling import sample_rows
from ascend_sample.sampling.rows.parameters import RowParameters
from tests.integrations import drafting_engine
from tests.integrations.drafting_checks import BEYOND_CHANCE, ROWS, largest_chi_square, target
from tests.integrations.drafting_engine import LENGTH, PLAIN, VOCAB_SIZE, model, requests
from tests.integrations.vllm_batches import Request
from tests.support.emulation import nobody_waits

MOST = 8
"""So many drafts at most."""
MOST_LAUNCHES = 29
"""Of a step without drafts, with a greedy row, one with top-k and one without a filter; 5 are the stand-in's."""


def there_and_here(values: list[float], dtype: torch.dtype, device: str) -> Any:
    tensor = torch.tensor(values, dtype=dtype)
    return types.SimpleNamespace(gpu=tensor.to(device), np=tensor.numpy())


class Sampler:
    """Divides by the temperature, and no more; its requests lie in another order than those of a step."""

    logprobs_mode = "raw_logprobs"
    return_sampling_mask = False
    num_speculative_tokens = 1

    def __init__(self, asked: list[Request], device: str = "cpu") -> None:
        stored = asked[::-1]
        seeds = [7 if each.seed is None else each.seed - 2**64 * (each.seed >= 2**63) for each in stored]
        self.sampling_states = types.SimpleNamespace(
            temperature=there_and_here([each.temperature for each in stored], torch.float32, device),
            top_k=there_and_here([each.top_k or VOCAB_SIZE for each in stored], torch.int32, device),
            top_p=there_and_here([each.top_p for each in stored], torch.float32, device),
            seeds=there_and_here(seeds, torch.int64, device),
        )

    def __call__(self, logits: Tensor, batch: Any) -> Any:
        local = None
        given = (
            batch.expanded_idx_mapping,
            batch.idx_mapping,
            batch.idx_mapping_np,
            batch.positions,
            None,
            local,
            None,
        )
        return self.sample(logits, *given, return_logprobs=self.logprobs_mode.startswith("processed"))

    def sample(
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        pos: Tensor,
        input_ids: Any,
        expanded_local_pos: Any,
        seq_lens_upper_bound_np: Any,
        return_logprobs: bool = False,
    ) -> Any:
        raise AssertionError("this needs a device")

    def apply_sampling_params(
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        pos: Tensor,
        input_ids: Any,
        expanded_local_pos: Any,
        seq_lens_upper_bound_np: Any,
        skip_top_k_top_p: bool = False,
    ) -> Tensor:
        assert skip_top_k_top_p
        temperature = self.sampling_states.temperature.gpu[expanded_idx_mapping]
        return logits / torch.where(temperature == 0, 1.0, temperature).unsqueeze(1)


class Sampler27(Sampler):
    """With the interface of 0.27."""

    def __call__(self, logits: Tensor, batch: Any) -> Any:
        given = (batch.expanded_idx_mapping, batch.idx_mapping_np, batch.positions, None, None)
        return self.sample(logits, *given, return_logprobs=False)  # type: ignore[call-arg]

    def sample(  # type: ignore[override]
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping_np: Any,
        pos: Tensor,
        input_ids: Any,
        expanded_local_pos: Any,
        return_logprobs: bool = False,
    ) -> Any:
        raise AssertionError("this needs a device")

    def apply_sampling_params(  # type: ignore[override]
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping_np: Any,
        pos: Tensor,
        input_ids: Any,
        expanded_local_pos: Any,
        skip_top_k_top_p: bool = False,
    ) -> Tensor:
        assert (pos is not None, skip_top_k_top_p) == (True, True)
        unused = None
        given = (expanded_idx_mapping, unused, idx_mapping_np, pos, input_ids, expanded_local_pos, unused)
        return Sampler.apply_sampling_params(self, logits, *given, skip_top_k_top_p=True)


def gumbel_sample(logits: Tensor, logits_cache: Any) -> None:
    """Keeps what drafts are drawn from before the temperature."""


def gumbel_sample_27(logits: Tensor, output_processed_logits: Any) -> None:
    """Keeps it after the temperature."""


def installed(kind: type[Sampler] = Sampler, **named: Any) -> Any:
    """The class, with the adapter installed twice, which is as good as once."""
    made = type("Sampler", (kind,), {name: vars(kind)[name] for name in ("__call__", "sample")})
    module = types.SimpleNamespace(Sampler=made, gumbel_sample=gumbel_sample_27 if kind is Sampler27 else gumbel_sample)
    vllm_v2.install(module)
    vllm_v2.install(module)
    return made


ASKED = ({"seed": 5, "top_k": 3}, {"seed": 6, "temperature": 0.0}, {"seed": 7, "temperature": 0.7})


def sample(sampler: Any, rows: list[int], positions: list[int]) -> tuple[Tensor, Tensor]:
    """Draws for requests."""
    found: tuple[Tensor, Tensor] = sampler(*step_of(rows, positions))
    return found


def step_of(rows: list[int], positions: list[int], device: str = "cpu") -> tuple[Tensor, Any]:
    """Makes the logits and the batch of a step of requests, which the runner stores in the opposite order."""
    stored = torch.tensor([len(ASKED) - 1 - row for row in rows])
    given = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))[rows]
    batch = types.SimpleNamespace(
        num_reqs=len(rows),
        expanded_idx_mapping=stored.to(device),
        idx_mapping=stored.to(device),
        idx_mapping_np=stored.numpy(),
        positions=torch.tensor(positions, device=device),
        seq_lens_cpu_upper_bound=torch.tensor([*positions, 0], dtype=torch.int32) + 1,  # padded
    )
    return given.to(device), batch


@pytest.mark.parametrize("kind", [Sampler, Sampler27])
def test_rows_depend_on_request_and_position_alone(kind: type[Sampler]) -> None:
    before = served()
    sampler = installed(kind)(requests(ASKED))
    ids, logits = sample(sampler, [0, 1, 2], [10, 11, 12])
    assert served() == Served(before.steps + 1, before.rows + 3)
    assert sample(sampler, [2, 0], [12, 10])[0].tolist() == [ids[2], ids[0]]
    assert ids[1] == logits[1].argmax()
    places = [(0, 10), (2, 12)]
    for row, position in places:
        asked = ASKED[row]
        values = {"temperature": torch.ones(1), "seed": torch.tensor([asked["seed"]])}
        values |= {"position": torch.tensor([position]), "top_k": torch.tensor([asked.get("top_k", VOCAB_SIZE)])}
        values["top_k"] = values["top_k"].int()
        assert sample_rows(logits[row : row + 1], **values)[0] == ids[row]


@pytest.mark.parametrize("is_speculating", [False, True])
def test_a_device_draws_what_a_cpu_draws_and_nobody_waits(accelerator: str, is_speculating: bool) -> None:
    """With drafts the device alone knows where the texts are, and makes the noise."""
    expected = sample(installed()(requests(ASKED)), [0, 1, 2], [10, 11, 12])[0]
    sampler = installed()(requests(ASKED), accelerator)
    sampler.num_speculative_tokens += is_speculating
    step = step_of([0, 1, 2], [10, 11, 12], accelerator)
    step[1].seq_lens_cpu_upper_bound += 2 * is_speculating  # as if the drafts before had been accepted
    sampler(*step)
    with nobody_waits(accelerator) as counted:
        found = sampler(*step)[0]
    assert counted is None or is_speculating or counted.totals.launches <= MOST_LAUNCHES
    assert found.tolist() == expected.tolist()


def test_facts_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def draw(logits: Tensor, **named: Any) -> Tensor:
        facts = named.pop("facts")
        off = {"top_p": None, "min_p": None}
        given.append(RowParameters.of_tensors("draw", logits, off | named, facts).facts)
        return logits.argmax(1)

    monkeypatch.setattr(vllm_v2, "draw", draw)
    sampler: Any = installed()(requests(ASKED))
    sample(sampler, [2, 0, 1], [1, 2, 3])
    assert {name: numbers.tolist() for name, numbers in given.pop().items() if name != "min_p"} == {
        "temperature": [1, 1, 0],
        "top_k": [VOCAB_SIZE, 3, VOCAB_SIZE],
        "top_p": [1, 1, 1],
    }


def test_who_draws_in_another_way_is_left() -> None:
    kind = installed()
    watermarking = type("Watermarking", (kind,), {})(requests(ASKED))
    with (
        pytest.warns(UserWarning, match="Watermarking draws in its own way, so tokens are drawn by vllm's own"),
        pytest.raises(AssertionError, match="this needs a device"),
    ):
        sample(watermarking, [0], [1])
    mapping, expanded, position = torch.tensor([0, 2]), torch.tensor([0, 0, 2]), torch.arange(3)
    given = (torch.zeros(3, VOCAB_SIZE), expanded, mapping, mapping.numpy(), position, None, None, None)
    with (
        pytest.warns(UserWarning, match="a request has several rows"),
        pytest.raises(AssertionError, match="this needs a device"),
    ):
        kind(requests(ASKED)).sample(*given)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("sampler of vLLM")
    module.Sampler = type("Sampler", (Sampler,), dict(vars(Sampler)) | {"__module__": module.__name__})
    module.gumbel_sample = gumbel_sample
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = module.Sampler(requests(ASKED))
    assert vllm_v2.custom_sampler(made) == (made, None)
    assert sample(made, [0], [3])[0] == sample(installed()(requests(ASKED)), [0], [3])[0]


@pytest.mark.parametrize("asks_for_masks", [False, True])
def test_processed_logits(asks_for_masks: bool) -> None:
    """Those from which rows are drawn: vLLM reports them, and makes its sampling masks of them."""
    sampler = installed()(requests(ASKED))
    sampler.return_sampling_mask = asks_for_masks
    sampler.logprobs_mode = "raw_logprobs" if asks_for_masks else "processed_logprobs"
    ids, processed = sample(sampler, [0, 1, 2], [1, 2, 3])
    assert (processed.gather(1, ids.unsqueeze(1)) > -torch.inf).all()
    assert (processed > -torch.inf).sum(1).tolist() == [3, VOCAB_SIZE, VOCAB_SIZE]  # the greedy row is not filtered
    assert processed.is_without_ties  # type: ignore[attr-defined]


class RejectionSampler:
    """Has the attributes and the two methods that the adapter looks at."""

    def __init__(self, sampler: Sampler, most_rows: int = 10**9, **changes: Any) -> None:
        self.sampler, self.most_rows = sampler, most_rows
        self.num_speculative_steps = MOST
        self.synthetic_conditional_rates = self.watermark_key = None
        self.enable_adaptive_verification = self.use_block_verification = False
        vars(self).update(changes)

    def __call__(
        self, logits: Tensor, batch: Any, draft_logits: Tensor | None, draft_sampled: Tensor, pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        ends, found, start = batch.cu_num_logits_np, [], 0
        while start < len(ends) - 1:
            end = start + 1
            while end < len(ends) - 1 and ends[end + 1] - ends[start] <= self.most_rows:
                end += 1
            places, some = slice(ends[start], ends[end]), slice(start, end)
            found.append(
                self._verify(
                    logits[places],
                    draft_logits,
                    draft_sampled[places],
                    pos[places],
                    torch.from_numpy(ends[start : end + 1] - ends[start]).to(logits.device),
                    batch.idx_mapping[some],
                    batch.idx_mapping_np[some],
                    batch.expanded_idx_mapping[places],
                    batch.expanded_local_pos[places],
                    ends[some],
                    draft_sampled[places],
                )[1:]
            )
            start = end
        tokens, counts = zip(*found, strict=True)
        return torch.cat(tokens), torch.cat(counts)

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: Tensor,
    ) -> Any:
        raise AssertionError("this needs a device")


@pytest.fixture
def rejection_sampler() -> type[Any]:
    """The class, with the adapter installed twice, which is as good as once."""
    made = type("RejectionSampler", (RejectionSampler,), {"_verify": RejectionSampler._verify})
    vllm_v2.install_drafts(made)
    vllm_v2.install_drafts(made)
    return made


class Engine(drafting_engine.Engine):
    """Of V2's runner."""

    def __init__(self, kind: type[Any], asked: list[Request], device: str = "cpu", **settings: Any) -> None:
        self.requests, self.device = asked, device
        self.sampler = installed(settings.pop("of", Sampler))(asked, device)
        self.sampler.num_speculative_tokens = MOST + 1
        self.sampler.has_lengths = settings.pop("has_lengths", False)
        self.rejection_sampler = kind(self.sampler, **settings)

    def arguments(self, drafts: list[list[int]]) -> Any:
        """Returns what the runner hands to its samplers."""
        places = self.places(drafts)
        ends = np.array([0, *itertools.accumulate(len(ids) + 1 for ids in drafts)])
        mapping = np.arange(len(drafts))[::-1].copy()
        local = [count for ids in drafts for count in range(len(ids) + 1)]
        expanded = mapping.repeat(np.diff(ends))

        def there(values: Any) -> Tensor:
            return torch.as_tensor(values).to(self.device)

        batch = types.SimpleNamespace(
            cu_num_logits_np=ends,
            idx_mapping=there(mapping),
            idx_mapping_np=mapping,
            expanded_idx_mapping=there(expanded),
            expanded_local_pos=there(local),
            positions=there([len(text) - 1 for text in places]),
            num_reqs=len(drafts),
            seq_lens_np=np.array([len(places[end - 1]) for end in ends[1:]] + [0]),  # padded
        )
        logits = torch.stack([model(text) for text in places]).to(self.device)
        return logits, batch, there([text[-1] for text in places]), there([len(text) - 1 for text in places])

    def step(self, drafts: list[list[int]], draft_logits: Tensor | None = None) -> None:
        logits, batch, sampled, pos = self.arguments(drafts)
        if any(drafts):
            tokens, counts = self.rejection_sampler(logits, batch, draft_logits, sampled, pos)
            assert tokens.shape == (len(drafts), MOST + 1)
            assert counts.dtype == torch.int32
        else:
            tokens = self.sampler(logits, batch)[0].unsqueeze(1)
            counts = torch.ones(len(drafts), dtype=torch.int32)
        for request, ids, count in zip(self.requests, tokens.tolist(), counts.tolist(), strict=True):
            request.output += ids[:count]


@pytest.mark.parametrize(
    ("name", "most_rows"), [("right", 9), ("half right", 1), ("half right", 10**9), ("n-gram", 10**9), ("nonsense", 9)]
)
def test_texts_are_those_without_speculation(
    rejection_sampler: type[Any], name: str, most_rows: int, device: str
) -> None:
    """Those of all requests: V2 has a seed for each."""
    plain = Engine(rejection_sampler, requests(PLAIN)).decode(LENGTH)
    drafter = drafting_engine.with_what_is_no_id(drafting_engine.drafters(plain, PLAIN)[name])
    assert Engine(rejection_sampler, requests(PLAIN), device, most_rows=most_rows).decode(LENGTH, drafter) == plain


def test_lengths_that_a_runner_knows_spare_a_device_the_noise(rejection_sampler: type[Any], accelerator: str) -> None:
    plain = Engine(rejection_sampler, requests(PLAIN)).decode(LENGTH)
    launches = []
    for has_lengths in (False, True):
        for most_rows in (9, 10**9):
            engine = Engine(
                rejection_sampler, requests(PLAIN), accelerator, has_lengths=has_lengths, most_rows=most_rows
            )
            drafter = drafting_engine.drafters(plain, PLAIN)["half right"]
            with hostcann.profile() if hostcann.is_active() else nullcontext() as counted:
                assert engine.decode(LENGTH, drafter) == plain
            launches.append(0 if counted is None else counted.totals.launches)
    assert max(launches[2:]) < min(launches[:2]) // 2 or not any(launches)


class Runner:
    """vllm_ascend's, as far as the adapter looks at it."""

    def __init__(self, waits: bool, sampler: Any, pcp_manager: Any = None) -> None:
        self.waits, self.sampler, self.pcp_manager, self.waited = waits, sampler, pcp_manager, 0
        self.num_computed_tokens_event = types.SimpleNamespace(synchronize=self.wait)

    def wait(self) -> None:
        self.waited += 1

    def _update_seq_lens_cpu(self, scheduler_output: Any, req_ids: list[str]) -> None:
        if self.waits:
            self.num_computed_tokens_event.synchronize()


def test_a_runner_tells_whether_it_has_waited_for_lengths() -> None:
    """Of some models it does not know them, and then its host counts drafts as accepted."""
    kind = type("Runner", (Runner,), {"_update_seq_lens_cpu": Runner._update_seq_lens_cpu})
    vllm_v2.install_runner(kind)
    vllm_v2.install_runner(kind)
    for waits, pcp_manager in ((True, None), (False, None), (True, object())):
        runner = kind(waits, types.SimpleNamespace(), pcp_manager)
        event = runner.num_computed_tokens_event
        runner._update_seq_lens_cpu(None, [])
        assert (runner.sampler.has_lengths, runner.waited) == (waits and pcp_manager is None, int(waits))
        assert runner.num_computed_tokens_event is event
    kind(True, None)._update_seq_lens_cpu(None, [])


def drawn_drafts(kind: type[Any], temperature: float = 0.8, **settings: Any) -> float:
    """Returns the largest chi-square of what comes of drafts that were drawn; see `drafting_checks.drawn_drafts`."""
    torch.manual_seed(3)
    asked = [Request([3, 4], seed=seed, temperature=0.8, top_k=8) for seed in range(ROWS)]
    engine = Engine(kind, asked, **settings)
    of_drafts = torch.zeros(ROWS, MOST, VOCAB_SIZE)
    best = target([3, 4]).topk(4).indices
    of_drafts[:, :, best] = torch.tensor([1.0, 1.0, 2.0, 2.0])
    q = (of_drafts[0, 0] / temperature).softmax(0)
    drafts = torch.multinomial(q, 2 * ROWS, replacement=True).view(-1, 2).tolist()
    engine.step(drafts, of_drafts)
    return largest_chi_square(asked, drafts)


@pytest.mark.parametrize("is_block", [False, True])
def test_drawn_drafts_leave_the_law(rejection_sampler: type[Any], is_block: bool) -> None:
    assert drawn_drafts(rejection_sampler, use_block_verification=is_block) < BEYOND_CHANCE


def test_what_drafts_are_drawn_from_has_had_its_temperature(rejection_sampler: type[Any]) -> None:
    """In 0.27; since, it is divided by it when drafts are verified."""
    assert drawn_drafts(rejection_sampler, 1.0, of=Sampler27) < BEYOND_CHANCE


@pytest.mark.parametrize("is_block", [False, True])
def test_drawn_drafts_on_a_device_are_judged_as_on_a_cpu(
    rejection_sampler: type[Any], accelerator: str, is_block: bool
) -> None:
    """There the seeds are on the device, and the host makes no noise."""
    outputs = []
    for device in ("cpu", accelerator):
        asked = [Request([3, 4], seed=seed, temperature=0.8, top_k=8) for seed in range(40)]
        engine = Engine(rejection_sampler, asked, device, use_block_verification=is_block)
        for step in range(3):
            drafts = [[(row + step + place) % VOCAB_SIZE for place in range(3)] for row in range(len(asked))]
            engine.step(drafts, torch.zeros(len(asked), MOST, VOCAB_SIZE, device=device))
        outputs.append([each.output for each in asked])
    assert outputs[0] == outputs[1]
    assert len({len(output) for output in outputs[0]}) > 2


@pytest.mark.parametrize("is_drawn", [False, True])
def test_nobody_waits_for_it(rejection_sampler: type[Any], accelerator: str, is_drawn: bool) -> None:
    engine = Engine(rejection_sampler, requests(PLAIN), accelerator)
    arguments = engine.arguments([[1, 2], [], [3], [4, 5, 6]])
    logits = torch.zeros(len(PLAIN), MOST, VOCAB_SIZE, device=accelerator) if is_drawn else None
    places = (arguments[2], arguments[3])
    sampler, batch = engine.rejection_sampler, arguments[1]
    given = (batch.idx_mapping, batch.idx_mapping_np, batch.expanded_idx_mapping, batch.expanded_local_pos, None)
    sampler.counts_ahead, sampler.lengths_ahead = np.diff(batch.cu_num_logits_np) - 1, None
    with nobody_waits(accelerator, copies_back=True):
        sampler._verify(arguments[0], logits, *places, None, *given, arguments[2])


def test_processed_logits_are_filtered_where_they_are_reported(rejection_sampler: type[Any]) -> None:
    engine = Engine(rejection_sampler, [Request([1, 2], seed=1, top_k=3)])
    engine.sampler.logprobs_mode = "processed_logprobs"
    logits, batch, sampled, pos = engine.arguments([[4]])
    engine.rejection_sampler.counts_ahead, engine.rejection_sampler.lengths_ahead = np.array([1]), None
    given = (batch.idx_mapping, batch.idx_mapping_np, batch.expanded_idx_mapping, batch.expanded_local_pos, None)
    processed = engine.rejection_sampler._verify(logits, None, sampled, pos, None, *given, sampled)[0]
    assert (processed > -torch.inf).sum(1).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"synthetic_conditional_rates": torch.ones(1)}, "acceptance is synthetic"),
        ({"fly_window_size": 2}, "the rule is FLy"),
        ({"enable_adaptive_verification": True}, "the device alone knows which drafts are verified"),
        ({"other": True}, "Other draws in its own way"),
        ({"draft_columns": 5}, "drafts have another vocabulary"),
    ],
)
def test_what_stays_the_engines(rejection_sampler: type[Any], changes: dict[str, Any], reason: str) -> None:
    engine = Engine(rejection_sampler, requests(PLAIN), **changes)
    if changes.get("other"):
        engine.sampler.__class__ = type("Other", (engine.sampler.__class__,), {})
    of_drafts = torch.zeros(4, MOST, changes.get("draft_columns", VOCAB_SIZE))
    with pytest.warns(UserWarning, match=reason), pytest.raises(AssertionError, match="this needs a device"):
        engine.step([[1] for _ in PLAIN], of_drafts)
