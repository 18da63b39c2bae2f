"""`python -m ascend_sample verify`: the operator of a device against the reference, row by row."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable

import torch
from tqdm import tqdm

from ascend_sample._options import file_to_write, whole_number

from . import cases
from .cases import Batch
from .compare import Comparison, Kind
from .environment import default_device, describe_environment, find_routes, is_real_npu, obstacle_of, obstacle_of_routes
from .probe import Operator
from .report import Failure, Report, Tally
from .subjects import SAMPLE, SUBJECTS, TENSORS, Subject

DEFAULT_ROWS = 20_000
COVERING_ROWS = 20_000
"""So many rows hold each scenario in each dtype many times, whatever the seed."""


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--device``: the name of one that torch may have, without a number."""
    text = "cpu, npu, or another that torch can use; default: npu where there is one, else cpu"
    parser.add_argument("--device", type=_name_of_device, metavar="NAME", help=text)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_device_argument(parser)
    parser.add_argument(
        "--operator",
        choices=sorted(SUBJECTS),
        default=SAMPLE.name,
        help=f"which of them is compared (default {SAMPLE.name})",
    )
    parser.add_argument(
        "--rows",
        type=whole_number(1),
        default=DEFAULT_ROWS,
        help=f"rows to compare, rounded up to a whole batch (default {DEFAULT_ROWS})",
    )
    text = "of the stream of batches (default 0)"
    parser.add_argument("--seed", type=whole_number(0, cases.SEEDS - 1), default=0, help=text)
    text = "run this batch of the stream only"
    parser.add_argument("--batch", type=whole_number(0, cases.BATCHES - 1), metavar="INDEX", help=text)
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="also write the report there")


def run_verify(arguments: argparse.Namespace, operator: Operator | None = None) -> int:
    """Runs the command.

    Args:
        arguments: parsed by a parser that `add_verify_arguments` prepared.
        operator: what is tested; that which the arguments name when None.

    Returns:
        The exit status: 0 if the run passes, 1 if it does not, 2 if the device cannot be used.
    """
    device = arguments.device or default_device()
    subject = SUBJECTS[arguments.operator]
    obstacle = obstacle_of(device, "verify") or obstacle_of_routes(
        device, subject.name, subject.dtypes(device), "verify"
    )
    if obstacle:
        print(obstacle)
        return 2
    report = verify(
        device,
        arguments.rows,
        arguments.seed,
        only=arguments.batch,
        operator=operator,
        is_interactive=True,
        subject=subject,
    )
    print(report.to_text())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    return 1 if report.problems() else 0


def verify(
    device: str,
    rows: int = DEFAULT_ROWS,
    seed: int = 0,
    *,
    only: int | None = None,
    operator: Operator | None = None,
    is_interactive: bool = False,
    subject: Subject = SAMPLE,
) -> Report:
    """Compares an operator on a device with the reference on the CPU.

    Args:
        device: "cpu", "npu", or another that torch can use.
        rows: how many rows at least.
        seed: of the stream of batches.
        only: the index of the one batch to run; all that `rows` asks for when None.
        operator: what is tested; the subject's public function when None.
        is_interactive: print the environment first, and show progress.
        subject: which of the operators it is.

    Returns:
        The report.
    """
    operator = operator or subject.operator
    dtypes = subject.dtypes(device)
    choice = "" if subject is SAMPLE else f" --operator {subject.name}"
    routes = find_routes(device, subject.name, dtypes)
    report = Report(
        environment=describe_environment(device, subject.name, routes),
        command=f"python -m ascend_sample verify --device {device}{choice} --seed {seed}",
        is_real_device=is_real_npu(device),
        is_one_batch=only is not None,
        routes={dtype: route.backend for dtype, route in routes.items()},
        must_cover=tuple(routes) if only is None and rows >= COVERING_ROWS else (),
        tally=Tally(subject.scenarios),
        undefined=Tally(subject.scenarios),
    )
    if is_interactive:
        width = max(map(len, report.environment))
        print("\n".join(f"{name:{width}}  {value}" for name, value in report.environment.items()) + "\n", flush=True)
    report.findings = {
        str(dtype).removeprefix("torch."): [probe.run(operator, device, dtype) for probe in subject.probes]
        for dtype in dtypes
    }
    started = time.perf_counter()
    batches: Iterable[Batch] = cases.stream(seed, rows, dtypes, subject.make_batch)
    total = cases.count_rows(rows)
    if only is not None:
        batches = [subject.make_batch(seed, only, dtypes)]
        total = batches[0].shape[0]
    with tqdm(total=total, unit="row", desc=f"verify {device}", disable=not is_interactive) as progress:
        for batch in batches:
            _check(batch, device, subject, operator, report)
            progress.set_postfix(failed=len(report.failures), refresh=False)
            progress.update(batch.shape[0])
    report.seconds = time.perf_counter() - started
    return report


def _check(batch: Batch, device: str, subject: Subject, operator: Operator, report: Report) -> None:
    """Runs one batch on both sides and counts its rows."""
    given = batch.tensors(device)
    try:
        actual = subject.result(operator(*given, **batch.options))
    except RuntimeError as error:
        raise RuntimeError(f"the operator failed on {batch.describe(0)}") from error
    if written := _written(batch, given):
        comparison = Comparison.failed(batch.shape[0], f"the operator wrote to its {' and '.join(written)}")
    else:
        expected = subject.result(subject.reference(*batch.tensors("cpu"), **batch.options))
        comparison = subject.judge(batch, expected, actual, report.is_real_device)
    undefined = batch.undefined_on_device() if report.is_real_device else [False] * len(comparison.kinds)
    for row, (scenario, kind) in enumerate(zip(batch.scenarios(), comparison.kinds, strict=True)):
        if undefined[row]:
            report.undefined.add(scenario, batch.logits.dtype_name, kind)
            continue
        report.tally.add(scenario, batch.logits.dtype_name, kind)
        if not batch.tie_heavy:
            report.ordinary_rows += 1
            report.ordinary_explained += kind in (Kind.TIE, Kind.NEAR_DRAW, Kind.NEAR_BOUNDARY)
        if kind is Kind.OTHER_READING:
            report.readings[comparison.verdicts[row].reason] += 1
        if kind is Kind.FAILED:
            report.failures.append(Failure(batch.describe(row), batch.index, comparison.verdicts[row].reason))


def _written(batch: Batch, given: tuple[torch.Tensor | None, ...]) -> list[str]:
    """Names the arguments that are no longer what they were given as."""
    return [
        name
        for name, now, before in zip(TENSORS, given, batch.tensors("cpu"), strict=False)
        if now is not None and before is not None and not torch.allclose(now.cpu(), before, 0, 0, equal_nan=True)
    ]


def _name_of_device(text: str) -> str:
    if not text.isalpha():
        raise argparse.ArgumentTypeError(f"must be the name of a device, without a number, got {text!r}")
    return text
