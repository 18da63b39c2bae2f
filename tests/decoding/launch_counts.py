"""What a step of each strategy asks of the emulated NPU beyond its models: launches, copies and waits.

As a program it prints the table of docs/decoding.md, and by line what a strategy launches:

    python -m ascend_sample.hostcann run python -m tests.decoding.launch_counts [--lines STRATEGY]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample import decoding, hostcann
from ascend_sample.decoding import StepOutput
from ascend_sample.sampling import SamplingParams
from tests.decoding.table_models import WithoutCache

PROMPTS: Final = 8
BEAMS: Final = 4
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
        sharpness: the spread of the logits.
    """

    def __init__(self, vocab_size: int, watch: Watch, is_watched: bool = True, sharpness: float = 3.0) -> None:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(16, vocab_size, generator=generator) * sharpness
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


Run = Callable[[TableModel, Tensor], Any]


class Cost(NamedTuple):
    """What a step asks for beyond its models, on average."""

    launches: float
    waits: float
    d2h: float
    h2d: float


def _sampled(**params: Any) -> Run:
    return lambda model, prompts: decoding.sample(
        model, prompts, SamplingParams(seed=1, **params), **_common(LAST_PASS + 1)
    )


def _common(steps: int) -> dict[str, Any]:
    return {"max_new_tokens": steps, "eos_token_id": STOP}


def speculative(gamma: int, params: SamplingParams, has_model: bool = True) -> Run:
    def run(model: TableModel, prompts: Tensor) -> Any:
        drafter = TableModel(model.vocab_size, model._watch, is_watched=False) if has_model else decoding.NGramDrafter()
        steps = (LAST_PASS + 1) * (gamma + 1)
        return decoding.speculative_sample(model, prompts, params, drafter=drafter, gamma=gamma, **_common(steps))

    return run


def _beams(strategy: Callable[..., Any], **options: Any) -> Run:
    call = partial(strategy, num_beams=BEAMS, **options)
    return lambda model, prompts: call(model, prompts, **_common(LAST_PASS + 1))


GREEDY: Final = SamplingParams(temperature=0)
DRAWN: Final = SamplingParams(seed=1)
RUNS: Final[dict[str, Run]] = {
    "greedy_search": lambda model, prompts: decoding.greedy_search(model, prompts, **_common(LAST_PASS + 1)),
    "sample, greedy rows": _sampled(temperature=0.0),
    "sample, top-k": _sampled(top_k=50),
    "sample, top-k, top-p, temperature": _sampled(top_k=50, top_p=0.9, temperature=0.7),
    "sample, no filter": _sampled(),
    "sample, top-p": _sampled(top_p=0.9),
    "contrastive_search": lambda model, prompts: decoding.contrastive_search(model, prompts, **_common(LAST_PASS + 1)),
    "beam_search, pool": _beams(decoding.beam_search),
    "beam_search, in_beam": _beams(decoding.beam_search, finished="in_beam"),
    "beam_sample": _beams(partial(decoding.beam_sample, params=DRAWN)),
    "beam_sample, top-k, temperature": _beams(
        partial(decoding.beam_sample, params=SamplingParams(seed=1, top_k=50, temperature=0.7))
    ),
    "group_beam_search, 2 groups": _beams(decoding.group_beam_search, num_beam_groups=2, diversity_penalty=0.5),
    "group_beam_search, 4 groups": _beams(decoding.group_beam_search, num_beam_groups=4, diversity_penalty=0.5),
    "speculative_sample, greedy, gamma 1": speculative(1, GREEDY),
    "speculative_sample, greedy, gamma 4": speculative(4, GREEDY),
    "speculative_sample, greedy, n-grams": speculative(4, GREEDY, has_model=False),
    "speculative_sample, drawn, gamma 1": speculative(1, DRAWN),
    "speculative_sample, drawn, gamma 4": speculative(4, DRAWN),
    "speculative_sample, drawn, n-grams": speculative(4, DRAWN, has_model=False),
}


def counted(run: Run, vocab_size: int) -> tuple[hostcann.Profile, Cost]:
    """Runs a strategy on the device; returns what was asked for in some steps, and the costs of one."""
    watch = Watch()
    model = TableModel(vocab_size, watch)
    run(model, torch.arange(2, 2 + 3 * PROMPTS).view(PROMPTS, 3).npu())
    assert watch.found is not None
    assert watch.passes >= LAST_PASS, "the run was too short"
    beyond = _counts(watch.found)
    beyond.subtract(watch.own)
    steps = LAST_PASS - FIRST_PASS
    return watch.found, Cost(*(beyond[name] / steps for name in Cost._fields))


def cost_of(name: str, vocab_size: int) -> Cost:
    """Returns what a step of a strategy costs, by its name in `RUNS`."""
    return counted(RUNS[name], vocab_size)[1]


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
        cost = cost_of(name, options.vocab_size)
        print(f"{name:<40}" + f"{cost.launches:9.4g}" + "".join(f"{number:7.4g}" for number in cost[1:]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
