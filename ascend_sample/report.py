"""``python -m ascend_sample report``: all that can be found out about a device, in one file to attach to an issue."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from ascend_sample import bench, info, parity
from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._options import file_to_write, whole_number
from ascend_sample.bench.launches import capture, has_graphs, print_launches
from ascend_sample.bench.timing import Budget, Repeat, measure, repeat
from ascend_sample.parity.environment import EMULATED, is_emulated_npu
from ascend_sample.parity.families import LANGUAGE_MODEL
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, StaticStep
from ascend_sample.sampling.step.routes import LARGEST_FUSED_K

DEFAULT_FILE: Final = Path("ascend_sample_report.md")
DEFAULT_ROWS: Final = 20_000
MOST_UNEQUAL: Final = 0.01
"""The greatest share of tokens that may differ from the CPU's: races closer than the device's rounding."""
PENALTIES: Final = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "top_k=50": {"top_k": 50},
    "top_k=50, top_p=0.9": {"top_k": 50, "top_p": 0.9},
    "the same, temperature 0.7": {"top_k": 50, "top_p": 0.9, "temperature": 0.7},
    "top_p=0.9": {"top_p": 0.9},
    "top_p=0.875": {"top_p": 0.875},  # which bfloat16 holds exactly: the first operator serves it
    "min_p=0.1": {"min_p": 0.1},
    "no filter": {},
    "top_k=5000": {"top_k": 5000},
    "penalties, top_k=20": {"top_k": 20} | PENALTIES,
    "a bias, a ban, top_k=50": {"top_k": 50, "logit_bias": {1: 2.0}, "suppress_token_ids": [0]},
    "top_k=50, logprobs=5": {"top_k": 50, "logprobs": 5},
}
"""The kinds of requests whose steps are looked at, by what the table calls them."""
PROMPT: Final = 32
"""How many tokens each request begins with."""
WAYS: Final = {"step": "Sampler, one operator after the other", "graph": "StaticStep, replayed", "host": "host=True"}
"""How a step is taken: on a device its operators are called, or replayed by a graph; or its host samples."""


def add_report_arguments(parser: ArgumentParser) -> None:
    """Adds the options of the command."""
    parity.add_device_argument(parser)
    text = f"of each verification (default {DEFAULT_ROWS})"
    parser.add_argument("--rows", type=whole_number(1), default=DEFAULT_ROWS, help=text)
    vocab_sizes = whole_number(1, MAX_VOCAB_SIZE)
    parser.add_argument("--vocab-size", type=vocab_sizes, default=151936, metavar="V", help="of steps (default 151936)")
    parser.add_argument("--batch", type=whole_number(1), default=64, metavar="B", help="of steps (default 64)")
    text = f"what is written (default {DEFAULT_FILE})"
    parser.add_argument("--file", type=file_to_write, default=str(DEFAULT_FILE), help=text)


def run_report(arguments: Namespace, budget: Budget | None = None) -> int:
    """Runs the command: every part prints as it goes, and goes into the file, also where one of them fails.

    Args:
        arguments: parsed by a parser that `add_report_arguments` prepared.
        budget: for the times of each kind of step.

    Returns:
        The exit status: 0; 1 where a part failed; 2 where the device cannot be used.
    """
    device = arguments.device or parity.default_device()
    if obstacle := parity.obstacle_of(device, "report"):
        print(obstacle)
        return 2
    parts: dict[str, Callable[[], int]] = {"Installation": functools.partial(info.run, Namespace(json=False))}
    for operator in parity.SUBJECTS:
        parts[f"Verification of {operator}"] = functools.partial(_verify, device, operator, arguments.rows)
    parts["Steps of the sampling layer"] = functools.partial(_show_steps, device, arguments, budget)
    parts["Times of launches"] = functools.partial(_show_launches, device, budget)
    parts["Times of the operator"] = functools.partial(_bench, device, arguments, budget)
    head = [f"# ascend_sample on {device}", time.strftime("%Y-%m-%d %H:%M:%S %z")]
    if is_emulated_npu(device):
        head.insert(1, EMULATED)
    failed: list[str] = []
    texts: list[str] = []

    def write(verdict: str) -> None:
        arguments.file.write_text("\n\n".join([*head, verdict, *texts]), encoding="utf-8")

    is_rewritable = arguments.file.is_file() or not arguments.file.exists()  # no pipe
    for title, part in parts.items():
        if is_rewritable:
            write(f"Ended early, in this part: {title}.")  # which stays if the process is interrupted, or dies
        print(f"\n# {title}\n", flush=True)
        output = _Both(sys.stdout)
        with contextlib.redirect_stdout(output):
            if _status_of(part) != 0:
                failed.append(title)
        texts.append(f"## {title}\n\n```text\n{output.text()}\n```\n")
    verdict = f"Failed: {'; '.join(failed)}." if failed else "Every part passed."
    write(verdict)
    print(f"\n{verdict} {arguments.file} is the report: attach it to an issue.")
    return 1 if failed else 0


class _Both(io.TextIOBase):
    """A stream that prints, and keeps what was printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._kept = stream, io.StringIO()

    def write(self, text: str) -> int:
        self._kept.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def text(self) -> str:
        return self._kept.getvalue().strip("\n")


def _status_of(part: Callable[[], int]) -> int:
    """Returns a part's exit status; 1 for one that raises, whose traceback is a part of the report."""
    try:
        return part()
    except Exception:  # the other parts say why, perhaps
        print(traceback.format_exc())
        return 1


def _verify(device: str, operator: str, rows: int) -> int:
    parser = ArgumentParser()
    parity.add_verify_arguments(parser)
    return parity.run_verify(parser.parse_args(["--device", device, "--operator", operator, "--rows", str(rows)]))


def _bench(device: str, arguments: Namespace, budget: Budget | None) -> int:
    parser = ArgumentParser()
    bench.add_bench_arguments(parser)
    words = ["--device", device, "--vocab-size", str(arguments.vocab_size), "--batch", "1", str(arguments.batch)]
    return bench.run_bench(parser.parse_args(words), **({} if budget is None else {"budget": budget}))


def _show_launches(device: str, budget: Budget | None) -> int:
    print_launches(device, (budget or Budget()).most_rounds)
    if is_emulated_npu(device):
        print(EMULATED)
    return 0


class Step(NamedTuple):
    """What a step of one kind of requests was seen to do, taken in three ways."""

    routes: str
    tokens: int  # of all three
    unequal: int  # those of them that are not the CPU's
    operators: int  # torch's, that the host called
    launches: int | None  # kernels on the device: counted on an emulated NPU and on a GPU
    seconds: dict[str, float]  # medians, by the names of `WAYS`


def look_at_step(fields: dict[str, Any], device: str, shape: tuple[int, int], budget: Budget) -> Step:
    """Takes steps of requests of one kind on a device, and one on the CPU.

    Args:
        fields: of `SamplingParams`; row r has the seed r.
        device: "cpu", "npu", or another that torch can use.
        shape: of the logits, which are bfloat16: the number of requests, and the vocabulary size.
        budget: for the time.
    """
    generator = torch.Generator().manual_seed(0)
    logits = LANGUAGE_MODEL.make(generator, *shape).bfloat16()
    own, cpu = (_batch_of(fields, shape, where) for where in (device, "cpu"))
    there, sampler = logits.to(device), Sampler()
    expected = Sampler()(logits, cpu, advance=False).token_ids
    ways: dict[str, Callable[[], torch.Tensor]] = {"step": lambda: sampler(there, own, advance=False).token_ids}
    if has_graphs(there.device):
        ways["graph"] = _replayed(fields, there, own)
    if device != "cpu":
        on_host, batch = Sampler(host=True), _batch_of(fields, shape, "cpu")
        ways["host"] = lambda: on_host(there, batch, advance=False).token_ids
    found = torch.stack([way().cpu() for way in ways.values()])
    routes = sorted({row.route.value for row in sampler.explain(own, torch.bfloat16)})
    with _Operators() as counted:
        ways["step"]()
    synchronize = None if device == "cpu" else torch.get_device_module(device).synchronize
    timed: dict[str, Repeat] = {name: repeat(way, synchronize) for name, way in ways.items()}
    return Step(
        " and ".join(routes),
        found.numel(),
        int((found != expected).sum()),
        counted.number,
        _launches_of(ways["step"], device),
        {name: result.median for name, result in measure(timed, budget).items()},
    )


def _replayed(fields: dict[str, Any], logits: torch.Tensor, batch: SamplingBatch) -> Callable[[], torch.Tensor]:
    """Captures a step that has room for what requests of one kind ask for; returns what prepares and replays it."""
    edits = sum(len(fields.get(name, ())) for name in ("logit_bias", "suppress_token_ids"))
    rows, vocab_size = logits.shape
    is_ranked = fields.get("temperature") == 0 or 1 <= fields.get("top_k", 0) <= min(LARGEST_FUSED_K, vocab_size - 1)
    step = StaticStep(
        rows,
        vocab_size,
        logits.dtype,
        logits.device,
        largest_k=fields.get("top_k", 1),
        only_top_k=is_ranked,
        addends=edits,
        history=PROMPT + 1 if PENALTIES.keys() & fields.keys() else 0,
        logprobs=fields.get("logprobs"),
    )
    step.logits.copy_(logits)
    step.prepare(batch)
    graph = capture(step.run, logits.device)

    def replay() -> torch.Tensor:
        step.prepare(batch)
        graph.replay()
        return step.token_ids

    return replay


def _launches_of(step: Callable[[], object], device: str) -> int | None:
    if is_emulated_npu(device):
        import hostcann

        with hostcann.profile() as counted:
            step()
        return counted.totals.launches
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
        return sum(not event.name.startswith("Memcpy") for event in kernels)
    return None


def _batch_of(fields: dict[str, Any], shape: tuple[int, int], device: str) -> SamplingBatch:
    requests, vocab_size = shape
    batch = SamplingBatch(vocab_size, device)
    prompt = [token_id % vocab_size for token_id in range(2, 2 + PROMPT)]
    limited = {"logprobs": min(fields["logprobs"], vocab_size)} if "logprobs" in fields else {}
    params = [SamplingParams(**fields | limited | {"seed": row}) for row in range(requests)]
    batch.extend(params, [prompt] * requests)
    return batch


class _Operators(TorchDispatchMode):
    """Counts what torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def _show_steps(device: str, arguments: Namespace, budget: Budget | None) -> int:
    """Prints a table of all kinds; returns 1 where too many tokens are not the CPU's."""
    shape = (arguments.batch, arguments.vocab_size)
    width = max(map(len, REQUESTS))
    print(f"[{shape[0]}, {shape[1]}] bfloat16 on {device}; a token is compared with the CPU's of the same seed")
    print("medians in ms: " + "; ".join(f"{name}: {text}" for name, text in WAYS.items()))
    heads = "".join(f"  {name:>8}" for name in WAYS)
    print(f"{'requests':{width}}  {'other tokens':>12}  {'operators':>9}  {'launches':>8}{heads}  routes")
    tokens, unequal = 0, 0
    for name, fields in tqdm(REQUESTS.items(), desc="steps", unit="kind", leave=False):
        step = look_at_step(fields, device, shape, budget or Budget(seconds=1.0))
        launches = "-" if step.launches is None else str(step.launches)
        times = (f"{step.seconds[way] * 1e3:.3f}" if way in step.seconds else "-" for way in WAYS)
        columns = "".join(f"  {time:>8}" for time in times)
        print(f"{name:{width}}  {step.unequal:>12}  {step.operators:>9}  {launches:>8}{columns}  {step.routes}")
        tokens, unequal = tokens + step.tokens, unequal + step.unequal
    print(f"{unequal} tokens of {tokens} are not the CPU's; at most {MOST_UNEQUAL:.0%} may differ")
    return 1 if unequal > MOST_UNEQUAL * tokens else 0
