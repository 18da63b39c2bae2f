"""What a step of each strategy asks of the emulated NPU beyond its models: launches, copies and waits.

As a program it prints the table of docs/decoding.md, and by line what a strategy launches:

    python -m hostcann run python -m tests.decoding.launch_counts [--lines STRATEGY]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

import hostcann
from ascend_sample.decoding import StepOutput
from ascend_sample.sampling import SamplingParams
from tests.decoding.every_strategy import GREEDY, STRATEGIES
from tests.decoding.table_models import WithoutCache

PROMPTS: Final = 8
FIRST_PASS, LAST_PASS = 3, 5
"""What is counted lies between the beginnings of these passes of the model: the prompts and the end are not in it."""
STOP: Final = 1
"""A stop token, which is looked for in each step and never comes."""


class Watch:
    """Counts what is asked of the device between two passes of a model, and what models ask for in between."""

    def __init__(self) -> None:
        self.own = Counter[str]()
        self.passes = 0
        self.found: hostcann.Profile | None = None
        self._stack = ExitStack()

    def passes_on(self) -> None:
        """Notes that a pass of the model begins."""
        self.passes += 1
        if self.passes == FIRST_PASS:
            self.own.clear()
            self.found = self._stack.enter_context(hostcann.profile())
        elif self.passes == LAST_PASS:
            self._stack.close()

    @contextmanager
    def models(self) -> Iterator[None]:
        """Counts what is done inside as a model's own."""
        with hostcann.profile() as counted:
            yield
        if FIRST_PASS <= self.passes < LAST_PASS:
            self.own.update(_counts(counted))


class TableModel(WithoutCache):
    """A model whose logits are rows of a small table, and whose cache keeps nothing.

    Args:
        vocab_size: how many tokens there are.
        watch: what counts.
        is_watched: whether its passes are the steps.
    """

    def __init__(self, vocab_size: int, watch: Watch, is_watched: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(16, vocab_size, generator=generator) * 3.0
        logits[:, STOP] = -1000.0
        self.vocab_size = vocab_size
        self._logits = logits.npu()
        self._states = torch.randn(16, 8, generator=generator).npu()
        self._watch, self._is_watched = watch, is_watched

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /) -> StepOutput:
        output = self._output(input_ids)
        return output._replace(logits=output.logits[:, -1])

    def decode(self, tokens: Tensor, cache: Any) -> StepOutput:
        if self._is_watched:
            self._watch.passes_on()
        with self._watch.models():
            return self._output(tokens)

    def _output(self, tokens: Tensor) -> StepOutput:
        kinds = tokens % len(self._logits)
        return StepOutput(self._logits[kinds], None, self._states[kinds])


class Cost(NamedTuple):
    """What a step asks for beyond its models, on average."""

    launches: float
    waits: float
    d2h: float
    h2d: float


FEW, MORE = 20, 40


class Run(NamedTuple):
    """A strategy whose steps are counted.

    Attributes:
        strategy: its name in `STRATEGIES`.
        options: what it is given beside that.
        launches: what a step is known to ask for.
        budget: what it may ask for.
        eos_token_id: what is looked for.
        drafts_by_model: whether a model drafts.
        sent: how many copies it is known to send.
    """

    strategy: str
    options: dict[str, Any]
    launches: int
    budget: int = MORE
    eos_token_id: int | tuple[int, ...] = STOP
    drafts_by_model: bool = False
    sent: int = 0


DRAWN: Final = SamplingParams(seed=1)
TOP_K: Final = SamplingParams(seed=1, top_k=50, temperature=0.7)
RUNS: Final = {
    "greedy_search": Run("greedy_search", {}, 5, FEW),
    "sample, greedy rows": Run("sample", {"params": GREEDY}, 9, FEW),
    "sample, top-k": Run("sample", {"params": SamplingParams(seed=1, top_k=50)}, 10, FEW, sent=1),
    "sample, top-k, top-p, temperature": Run("sample", {"params": replace(TOP_K, top_p=0.9)}, 14, FEW, sent=1),
    "sample, no filter": Run("sample", {"params": DRAWN}, 19, FEW, sent=1),
    "sample, top-p": Run("sample", {"params": SamplingParams(seed=1, top_p=0.9)}, 20, FEW, sent=1),
    "contrastive_search": Run("contrastive_search", {}, 36),
    "beam_search, pool": Run("beam_search", {}, 33),
    "beam_search, in_beam": Run("beam_search in the beam", {}, 37),
    "beam_sample": Run("beam_sample", {"params": DRAWN}, 38, sent=1),
    "beam_sample, top-k, temperature": Run("beam_sample", {"params": TOP_K}, 40, sent=1),
    "group_beam_search, 2 groups": Run("group_beam_search", {}, 68),
    "group_beam_search, 4 groups": Run("group_beam_search", {"num_beam_groups": 4}, 129),
    **{
        f"speculative_sample, {name}, {drafts}": Run(
            "speculative_sample",
            {"params": params, "gamma": gamma},
            launches,
            drafts_by_model=drafts != "n-grams",
            sent=sent,
        )
        for name, params, drafts, gamma, launches, sent in (
            ("greedy", GREEDY, "gamma 1", 1, 30, 0),
            ("greedy", GREEDY, "gamma 4", 4, 36, 0),
            ("greedy", GREEDY, "n-grams", 4, 40, 0),
            ("drawn", DRAWN, "gamma 1", 1, 85, 4),
            ("drawn", DRAWN, "gamma 4", 4, 97, 4),
            ("drawn", DRAWN, "n-grams", 4, 93, 3),
        )
    },
}


def counted(run: Run, vocab_size: int) -> tuple[hostcann.Profile, Cost]:
    """Runs a strategy on the device; returns what was asked for in some steps, and the costs of one."""
    watch = Watch()
    model = TableModel(vocab_size, watch)
    options = {"eos_token_id": run.eos_token_id, "max_new_tokens": LAST_PASS + 1, **run.options}
    options["max_new_tokens"] *= 1 + options.get("gamma", 0)
    if run.drafts_by_model:
        options["drafter"] = TableModel(vocab_size, watch, is_watched=False)
    STRATEGIES[run.strategy].search(model, torch.arange(2, 2 + 3 * PROMPTS).view(PROMPTS, 3).npu(), **options)
    assert watch.found is not None
    assert watch.passes >= LAST_PASS, "the run was too short"
    beyond = _counts(watch.found)
    beyond.subtract(watch.own)
    steps = LAST_PASS - FIRST_PASS
    return watch.found, Cost(*(beyond[name] / steps for name in Cost._fields))


def waits_of_one_read() -> int:
    """Returns how often the host waits where it reads one number."""
    value = torch.ones(1, device="npu")
    with hostcann.profile() as counters:
        value.item()
    return counters.totals.waits


def _counts(profile: hostcann.Profile) -> Counter[str]:
    totals, copies = profile.totals, profile.copies
    return Counter(launches=totals.launches, waits=totals.waits, d2h=copies.get("d2h", 0), h2d=copies.get("h2d", 0))


def main() -> None:
    """Prints the table, or the lines of one strategy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", metavar="STRATEGY", help="show what its lines and operators ask for")
    parser.add_argument("--vocab-size", type=int, default=32000)
    options = parser.parse_args()
    if options.lines:
        profile, _ = counted(RUNS[options.lines], options.vocab_size)
        steps = LAST_PASS - FIRST_PASS
        activities: Counter[tuple[str, str]] = Counter()
        for one in profile.activities:
            if one.kind != "replayed":
                place = f"{Path(one.file).name}:{one.line}" if one.file else "(other threads)"
                activities[place, one.operator] += one.count
        for (place, operator), count in sorted(activities.items()):
            print(f"{count / steps:6.2f}  {place:<28}{operator}")
        return
    print(f"{'a step':<40}{'launches':>9}{'waits':>7}{'d2h':>7}{'h2d':>7}")
    for name in RUNS:
        cost = counted(RUNS[name], options.vocab_size)[1]
        print(f"{name:<40}" + f"{cost.launches:9.4g}" + "".join(f"{number:7.4g}" for number in cost[1:]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
