"""The command line: ``python -m ascend_sample COMMAND``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Final

from ascend_sample import bench, info, parity, report
from ascend_sample._options import end_of

COMMANDS: Final[dict[str, tuple[str, Callable[[ArgumentParser], None], Callable[[Namespace], int]]]] = {
    "info": ("what is installed and built, and which backend serves which device", info.add_arguments, info.run),
    "verify": (
        "compare a device's operator with the reference, row by row",
        parity.add_verify_arguments,
        parity.run_verify,
    ),
    "bench": (
        "time the operator on a device beside what else samples there",
        bench.add_bench_arguments,
        bench.run_bench,
    ),
    "report": (
        "all of these, steps of all kinds of requests, and times of launches, in one file",
        report.add_report_arguments,
        report.run_report,
    ),
}
"""Of each command: what it is for, what adds its options, and what runs it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the words after the program's name; by default those of this process.

    Returns:
        The exit status: 0 for success, 1 where a comparison failed, and those of `end_of`.
    """
    parser = ArgumentParser(
        prog="python -m ascend_sample", description="Sampling of language-model logits on Ascend NPUs and CPUs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for name, (text, add_arguments, run) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        add_arguments(command)
        command.set_defaults(run=run)
    parsed = parser.parse_args(arguments)
    return end_of(lambda: parsed.run(parsed))
