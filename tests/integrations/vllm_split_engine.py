"""A small engine with the parts of vLLM's V1 runner that logits go through, of which each rank has a part; its checks.

A rank is a thread or a process: whatever has an exchange. As a program this is a rank of a group of gloo:

    python -m torch.distributed.run --standalone --nproc_per_node=2 -m tests.integrations.vllm_split_engine
"""

from __future__ import annotations

import ascend_sample  # noqa: F401  # isort: skip  imports torch in a way that needs no CANN

import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ascend_sample.integrations import vllm_cpu, vllm_shards
from ascend_sample.sampling.vocabulary_parallel import Exchange, ProcessGroupExchange
from tests.integrations import vllm_stand_ins
from tests.integrations.vllm_batches import InputBatch, NotedBatch, Request
from tests.integrations.vllm_stand_ins import (
    Foreign,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    Sampler,
    SamplerOutput,
)
from tests.sampling.vocabulary_parallel.shard_ranks import Counted

PADDING = 1e4
"""The logits of padding would win every row."""
STEPS = 4


class Ranks:
    """vLLM's coordinator of a group; it counts what its gathers send."""

    def __init__(self, exchange: Exchange) -> None:
        self.cpu_group = self.device_group = Counted(exchange)
        self.rank_in_group, self.world_size = exchange.rank, exchange.size
        self.gathered: list[int] = []

    def all_gather(self, part: Tensor) -> Tensor:
        message = part.contiguous().view(torch.uint8)
        self.gathered.append(message.numel())
        told = self.cpu_group.all_gather(message.view(-1)).view(self.world_size, len(part), -1)
        return torch.cat([each.contiguous().view(part.dtype) for each in told], 1)


here = threading.local()
"""The group of the rank: `here.ranks`."""


@dataclass
class Head:
    """The output layer: a rank's part of the weights, padded so that all parts are as wide.

    With words that were added for LoRA each part has some of these behind its own.
    """

    weight: Tensor
    num_added_embeddings: int = 0

    @classmethod
    def of(cls, weight: Tensor, padded: int, added: int, device: str) -> Head:
        width = padded // here.ranks.world_size
        start = here.ranks.rank_in_group * width
        part = torch.full((width, weight.shape[1]), PADDING, dtype=weight.dtype)
        own = weight[start : start + width]
        part[: len(own)] = own
        return cls(part.to(device), added)


class LogitsProcessor(nn.Module):
    use_all_gather = True

    def __init__(self, vocab_size: int, scale: float = 1.0, soft_cap: float | None = None) -> None:
        super().__init__()
        self.org_vocab_size, self.scale, self.soft_cap = vocab_size, scale, soft_cap

    def forward(self, lm_head: Head, hidden: Tensor) -> Tensor:
        logits = self._get_logits(hidden, lm_head)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        if self.scale != 1.0:
            logits *= self.scale
        return logits

    def _get_logits(self, hidden: Tensor, lm_head: Head) -> Tensor:
        return self._gather_logits(hidden @ lm_head.weight.t())[..., : self.org_vocab_size]

    def _gather_logits(self, logits: Tensor) -> Tensor:
        gathered: Tensor = here.ranks.all_gather(logits)
        return gathered


def apply_grammar_bitmask(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Tensor) -> None:
    """Forbids odd ids, in place and past torch's dispatcher, as kernels that are compiled for it do."""
    logits.numpy()[:, 1::2] = -np.inf


class Model:
    def __init__(self, processor: LogitsProcessor, head: Head, forbidden: Sequence[int] = ()) -> None:
        self.processor, self.head, self.forbidden = processor, head, list(forbidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.processor(self.head, hidden)
        if self.forbidden:  # as models do that know of ids that are none
            logits[:, self.forbidden] = torch.finfo(logits.dtype).min
        return logits


class Runner:
    speculative_config: Any = None

    def __init__(self, model: Model, batch: InputBatch, sampler: Sampler, module: Any) -> None:
        self.model, self.input_batch, self.sampler, self._module = model, batch, sampler, module
        self.logits: Tensor | None = None

    def execute_model(self, hidden: Tensor) -> None:
        self.logits = self.model.compute_logits(hidden)

    def sample_tokens(self, has_grammar: bool = False) -> SamplerOutput:
        logits, self.logits = self.logits, None
        assert logits is not None
        if has_grammar:
            self._module.apply_grammar_bitmask(None, None, self.input_batch, logits)
        output: SamplerOutput = self.sampler(logits=logits, sampling_metadata=self.input_batch.sampling_metadata)
        for request, token in zip(self.input_batch.requests, output.sampled_token_ids[:, 0].tolist(), strict=True):
            request.output.append(token)
        return output


@dataclass
class Engine:
    """What one rank has.

    Args:
        is_split: draws from the parts where it can; else all is as in vLLM with the adapter.
        vocab_size, padded: without and with padding.
        broken: ids whose logits are NaN.
        is_foreign: somebody has put a processor of logits in.
    """

    is_split: bool
    vocab_size: int = 300
    padded: int = 320
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    forbidden: Sequence[int] = ()
    broken: Sequence[int] = ()
    added: int = 0
    is_foreign: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        # Classes of its own, as the adapter changes classes.
        processor = type("LogitsProcessor", (LogitsProcessor,), {})
        sampler = type("Sampler", (Sampler,), {})
        runner = type("Runner", (Runner,), {})
        module = types.SimpleNamespace(apply_grammar_bitmask=apply_grammar_bitmask)
        vllm_cpu.install_sampler(sampler)
        if self.is_split:
            vllm_shards.install_runner(module, runner)
            vllm_shards.install_logits_processor(processor)
            vllm_shards.install_sampler(sampler)
        weight = torch.randn(self.vocab_size, 16, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        weight[list(self.broken)] = torch.nan
        head = Head.of(weight, self.padded, self.added, self.device)
        model = Model(processor(self.vocab_size, **self.options), head, self.forbidden)
        self.batch = NotedBatch(self.vocab_size, 16, self.device)
        asked = self.batch.requests
        processors = ([MinPLogitsProcessor(asked)], [LogitBiasLogitsProcessor(asked)])
        self.batch.logitsprocs = LogitsProcessors([], [Foreign()]) if self.is_foreign else LogitsProcessors(*processors)
        self.runner = runner(model, self.batch, sampler(), module)
        self.hidden = torch.Generator().manual_seed(2)

    def step(self, has_grammar: bool = False) -> list[int]:
        """Draws a token for each request."""
        hidden = torch.randn(self.batch.num_reqs, 16, generator=self.hidden).to(self.dtype)
        self.runner.execute_model(hidden.to(self.device))
        ids: list[int] = self.runner.sample_tokens(has_grammar).sampled_token_ids[:, 0].tolist()
        return ids

    def take(self, *requests: Request) -> None:
        """Replaces the requests."""
        self.batch.requests[:] = requests
        self.batch.refresh()


def install_modules(modules: Any) -> None:
    """Puts what the adapter imports of vLLM into a dictionary of modules."""
    modules["vllm.distributed.parallel_state"] = types.SimpleNamespace(get_tp_group=lambda: here.ranks)
    modules["vllm.v1.outputs"] = vllm_stand_ins


# ---- what must hold of a rank ----


def plain_requests() -> list[Request]:
    return [
        Request(temperature=0),
        Request(top_k=20, seed=3),
        Request(temperature=0.7, top_p=0.9, seed=2**63 + 5),
        Request(seed=4),
        Request(temperature=1.3, top_k=5, top_p=0.8, seed=5),
        Request(top_k=290, seed=6),
    ]


def compare(
    make: Callable[[], list[Request]] = plain_requests,
    is_gathered: bool = False,
    has_grammar: bool = False,
    **options: Any,
) -> int:
    """Raises unless tokens are those of the engine that gathers; returns how many bytes this rank sends in a step.

    Args:
        make: the requests, which all have seeds or are greedy.
        is_gathered: whether logits have to be gathered, instead of not at all.
        has_grammar: whether a grammar forbids ids.
        options: of the engines.
    """
    ranks = here.ranks
    gathering, splitting = Engine(False, **options), Engine(True, **options)
    sent = 0
    for engine in (gathering, splitting):
        engine.take(*make())
    for step in range(STEPS):
        ranks.gathered.clear()
        expected = gathering.step(has_grammar)
        gathered = list(ranks.gathered)
        ranks.gathered.clear()
        ranks.cpu_group.sent.clear()
        found = splitting.step(has_grammar)
        sent = sum(ranks.cpu_group.sent)
        assert found == expected, (step, found, expected)
        assert ranks.gathered == (gathered if is_gathered else []), (step, ranks.gathered)
    return sent


def check_plain() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        compare(dtype=dtype)
    compare(lambda: [Request(temperature=0)] * 3)
    compare(lambda: [Request(seed=row) for row in range(4)])
    compare(options={"soft_cap": 4.0, "scale": 1.5})
    compare(lambda: [Request(seed=row) for row in range(4)], broken=[290])
    large: dict[str, Any] = {"vocab_size": 32000, "padded": 32000, "dtype": torch.bfloat16}
    sent = compare(lambda: [Request(top_k=50, seed=row) for row in range(8)], **large)
    # 50 values and ids a row, its largest logit, of which its status is made, and what a message has beside its rows; a
    # gather of the logits sends 32,000.
    assert sent / 8 <= 8 * 50 + 4 + 72 / 8, sent


def check_whole() -> None:
    """Whatever needs whole rows gets them."""
    asked: dict[str, Any] = {"min_p": 0.1, "presence": 1.0, "logprobs": 2, "bias": {299: 9.0}, "banned": [7]}
    for name, value in (asked | {"allowed": [3, 200]}).items():
        compare(lambda more={name: value}: [*plain_requests(), Request(seed=8, **more)], is_gathered=True)
    compare(is_gathered=True, has_grammar=True)
    compare(is_gathered=True, forbidden=[5, 290])
    compare(is_gathered=True, broken=[290])  # of greedy rows: vLLM takes the NaN
    compare(lambda: [Request(temperature=0)] * 3, is_gathered=True, broken=[290])
    compare(is_gathered=True, added=20)
    compare(is_gathered=True, is_foreign=True)
    compare(vocab_size=60, padded=320, is_gathered=True)  # a part is wider than the vocabulary


def check_changes() -> None:
    """Requests come and go, and steps that gather stand among those that do not."""
    engines = Engine(False), Engine(True)
    requests = [[*plain_requests(), Request(seed=9, min_p=0.2)] for _ in engines]
    texts: list[list[list[int]]] = []
    for engine, own in zip(engines, requests, strict=True):
        steps = []
        for rows in ([0, 1, 2], [0, 1, 2], [2, 6, 1], [2, 1, 3, 4], [5], [0], [4, 3, 2, 1, 0, 5], [5, 6]):
            engine.take(*(own[row] for row in rows))
            steps += [engine.step(), engine.step()]
        texts.append(steps)
    assert texts[0] == texts[1]


def check_discarded_draws() -> None:
    """vLLM takes the draw of a prompt's middle part back."""
    found = []
    for is_split in (False, True):
        engine = Engine(is_split)
        engine.take(*plain_requests())
        steps = [engine.step()]
        generator = engine.batch.requests[1].generator
        engine.runner.sampler.topk_topp_sampler.seed_source._draws[generator] -= 1
        found.append([*steps, engine.step(), engine.step()])
    assert found[0] == found[1]


def check_unseeded() -> list[list[int]]:
    """Returns the tokens of requests without a seed, which have to be the same on all ranks."""
    torch.manual_seed(100 + here.ranks.rank_in_group)
    engine = Engine(True)
    engine.take(*(Request(top_k=200) for _ in range(8)), Request(), Request(top_p=0.99))
    here.ranks.gathered.clear()
    found = []
    for _ in range(STEPS):
        engine.hidden.manual_seed(2)  # the same logits, but other noise
        found.append(engine.step())
    assert not here.ranks.gathered
    assert all(found[0] != each for each in found[1:])
    return found


CHECKS = (check_plain, check_whole, check_changes, check_discarded_draws, check_unseeded)


def main() -> None:
    """Runs a rank of gloo."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    install_modules(sys.modules)
    here.ranks = Ranks(ProcessGroupExchange(None))
    check_changes()
    check_unseeded()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
