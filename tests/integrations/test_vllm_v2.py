"""vLLM's V2 runner, whose kernels need a device: on stand-ins for its samplers, on the CPU and on an NPU."""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import vllm_v2
from ascend_sample.integrations.vllm_served import Served, served
from ascend_sample.sampling.rows.parameters import RowParameters
from tests.integrations import drafting_engine
from tests.integrations.drafting_checks import BEYOND_CHANCE, ROWS, largest_chi_square, target
from tests.integrations.drafting_engine import LENGTH, PLAIN, VOCAB_SIZE, model, requests
from tests.integrations.vllm_batches import Request
from tests.support.emulation import nobody_waits

MOST = 8
"""So many drafts at most."""


def there_and_here(values: list[float], dtype: torch.dtype, device: str) -> Any:
    tensor = torch.tensor(values, dtype=dtype)
    return types.SimpleNamespace(gpu=tensor.to(device), np=tensor.numpy())


class Sampler:
    """Divides by the temperature, and no more; its requests lie in another order than those of a step."""

    logprobs_mode = "raw_logprobs"
    return_sampling_mask = False

    def __init__(self, asked: list[Request], device: str = "cpu", takes_vocab_size: bool = True) -> None:
        stored = asked[::-1]
        seeds = [7 if each.seed is None else each.seed - 2**64 * (each.seed >= 2**63) for each in stored]
        top_k = there_and_here([each.top_k or VOCAB_SIZE for each in stored], torch.int32, device)
        top_p = there_and_here([each.top_p for each in stored], torch.float32, device)

        def filters(mapping: Tensor, mapping_np: Any, vocab_size: int) -> Any:
            return top_k.gpu[mapping], top_p.gpu[mapping] if any(each.top_p < 1 for each in asked) else None, False

        self.sampling_states = types.SimpleNamespace(
            temperature=there_and_here([each.temperature for each in stored], torch.float32, device),
            top_k=top_k,
            top_p=top_p,
            seeds=there_and_here(seeds, torch.int64, device),
            get_top_k_top_p=filters
            if takes_vocab_size
            else lambda mapping, mapping_np: filters(mapping, mapping_np, 0),
        )
        assert vllm_v2.custom_sampler(self) == (self, None)

    def apply_sampling_params(self, logits: Tensor, mapping: Tensor, *arguments: Any, **named: Any) -> Tensor:
        assert named == {"skip_top_k_top_p": True}
        assert len(arguments) == 6
        temperature = self.sampling_states.temperature.gpu[mapping]
        return logits / torch.where(temperature == 0, 1.0, temperature).unsqueeze(1)


ASKED = ({"seed": 5, "top_k": 3}, {"seed": 6, "temperature": 0.0}, {"seed": 7, "temperature": 0.7})


def sample(sampler: Any, rows: list[int], positions: list[int], **named: Any) -> tuple[Tensor, Tensor]:
    """Draws for requests, which the runner stores in the opposite order."""
    stored = torch.tensor([len(ASKED) - 1 - row for row in rows])
    given = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))[rows]
    found: tuple[Tensor, Tensor] = sampler.sample(
        given, stored, stored, stored.numpy(), torch.tensor(positions), None, None, None, **named
    )
    return found


def test_rows_depend_on_request_and_position_alone() -> None:
    before = served()
    ids, logits = sample(Sampler(requests(ASKED)), [0, 1, 2], [10, 11, 12])
    assert served() == Served(before.steps + 1, before.rows + 3)
    again, _ = sample(Sampler(requests(ASKED), takes_vocab_size=False), [2, 0], [12, 10])  # as before 0.33
    assert again.tolist() == [ids[2], ids[0]]
    assert ids[1] == logits[1].argmax()


def test_facts_are_the_hosts_where_a_row_is_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def draw(logits: Tensor, **named: Any) -> Tensor:
        facts = named.pop("facts")
        given.append(facts and RowParameters.of_tensors("draw", logits, named | {"min_p": None}, facts).facts)
        return logits.argmax(1)

    monkeypatch.setattr(vllm_v2, "draw", draw)
    sampler: Any = Sampler(requests(ASKED))
    sampler.sampling_states.top_p.np[:] = 0.5  # which is handed over as off
    sample(sampler, [2, 0, 1], [1, 2, 3])
    assert {name: numbers.tolist() for name, numbers in given.pop().items() if name != "min_p"} == {
        "temperature": [1, 1, 0],
        "top_k": [VOCAB_SIZE, 3, VOCAB_SIZE],
        "top_p": [1, 1, 1],
    }
    mapping, expanded = torch.tensor([0, 2]), torch.tensor([0, 0, 2])
    sampler.sample(torch.zeros(3, VOCAB_SIZE), expanded, mapping, mapping.numpy(), torch.arange(3), None, None, None)
    assert given == [None], "a request has several rows"


@pytest.mark.parametrize("asks_for_masks", [False, True])
def test_processed_logits(asks_for_masks: bool) -> None:
    """Those from which rows are drawn: vLLM reports them, and makes its sampling masks of them."""
    sampler = Sampler(requests(ASKED))
    sampler.return_sampling_mask = asks_for_masks
    ids, processed = sample(sampler, [0, 1, 2], [1, 2, 3], **({} if asks_for_masks else {"return_logprobs": True}))
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

    def _verify_in_chunks(
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

    def _verify(self, *arguments: Any) -> Any:
        raise AssertionError("this needs a device")


@pytest.fixture
def rejection_sampler() -> type[Any]:
    """The class, with the adapter installed twice, which is as good as once."""
    made = type("RejectionSampler", (RejectionSampler,), {})
    vllm_v2.install_drafts(made)
    vllm_v2.install_drafts(made)
    return made


class Engine(drafting_engine.Engine):
    """Of V2's runner."""

    def __init__(self, kind: type[Any], asked: list[Request], device: str = "cpu", **settings: Any) -> None:
        self.requests, self.device = asked, device
        self.sampler = Sampler(asked, device)
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
        )
        logits = torch.stack([model(text) for text in places]).to(self.device)
        return logits, batch, there([text[-1] for text in places]), there([len(text) - 1 for text in places])

    def step(self, drafts: list[list[int]], draft_logits: Tensor | None = None) -> None:
        logits, batch, sampled, pos = self.arguments(drafts)
        if any(drafts):
            tokens, counts = self.rejection_sampler._verify_in_chunks(logits, batch, draft_logits, sampled, pos)
            assert tokens.shape == (len(drafts), MOST + 1)
            assert counts.dtype == torch.int32
        else:
            mapping = batch.idx_mapping
            given = (logits, mapping, mapping, batch.idx_mapping_np, pos, sampled, None, None)
            tokens = self.sampler.sample(*given)[0].unsqueeze(1)  # type: ignore[attr-defined]
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


def drawn_drafts(kind: type[Any], **settings: Any) -> float:
    """Returns the largest chi-square of what comes of drafts that were drawn; see `drafting_checks.drawn_drafts`."""
    torch.manual_seed(3)
    asked = [Request([3, 4], seed=seed, temperature=0.8, top_k=8) for seed in range(ROWS)]
    engine = Engine(kind, asked, **settings)
    of_drafts = torch.zeros(ROWS, MOST, VOCAB_SIZE)
    best = target([3, 4]).topk(4).indices
    of_drafts[:, :, best] = torch.tensor([1.0, 1.0, 2.0, 2.0])
    q = (of_drafts[0, 0] / 0.8).softmax(0)  # before the temperature
    drafts = torch.multinomial(q, 2 * ROWS, replacement=True).view(-1, 2).tolist()
    engine.step(drafts, of_drafts)
    return largest_chi_square(asked, drafts)


@pytest.mark.parametrize("is_block", [False, True])
def test_drawn_drafts_leave_the_law(rejection_sampler: type[Any], is_block: bool) -> None:
    assert drawn_drafts(rejection_sampler, use_block_verification=is_block) < BEYOND_CHANCE


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
    sampler.counts_ahead = np.diff(batch.cu_num_logits_np) - 1
    with nobody_waits(accelerator, copies_back=True):
        sampler._verify(arguments[0], logits, *places, None, *given, arguments[2])


def test_processed_logits_are_filtered_where_they_are_reported(rejection_sampler: type[Any]) -> None:
    engine = Engine(rejection_sampler, [Request([1, 2], seed=1, top_k=3)])
    engine.sampler.logprobs_mode = "processed_logprobs"
    logits, batch, sampled, pos = engine.arguments([[4]])
    engine.rejection_sampler.counts_ahead = np.array([1])
    given = (batch.idx_mapping, batch.idx_mapping_np, batch.expanded_idx_mapping, batch.expanded_local_pos, None)
    processed = engine.rejection_sampler._verify(logits, None, sampled, pos, None, *given, sampled)[0]
    assert (processed > -torch.inf).sum(1).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"synthetic_conditional_rates": torch.ones(1)}, "acceptance is synthetic"),
        ({"fly_window_size": 2}, "the rule is FLy"),
        ({"watermark_key": 5}, "tokens are watermarked"),
        ({"enable_adaptive_verification": True}, "the device alone knows which drafts are verified"),
        ({"other": True}, "its sampler is not the one of ascend_sample"),
        ({"draft_columns": 5}, "drafts have another vocabulary"),
    ],
)
def test_what_stays_the_engines(rejection_sampler: type[Any], changes: dict[str, Any], reason: str) -> None:
    engine = Engine(rejection_sampler, requests(PLAIN), **changes)
    if changes.get("other"):
        engine.sampler.sample = lambda *arguments: None  # type: ignore[attr-defined]
    of_drafts = torch.zeros(4, MOST, changes.get("draft_columns", VOCAB_SIZE))
    with pytest.warns(UserWarning, match=reason), pytest.raises(AssertionError, match="this needs a device"):
        engine.step([[1] for _ in PLAIN], of_drafts)
