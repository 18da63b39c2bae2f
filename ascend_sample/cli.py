"""The command line: ``python -m ascend_sample COMMAND``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from ascend_sample import bench, info, parity, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the words after the program's name; by default those of this process.

    Returns:
        The exit status: 0 for success, 1 where a comparison failed.
    """
    parser = ArgumentParser(
        prog="python -m ascend_sample", description="Sampling of language-model logits on Ascend NPUs and CPUs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("info", help="what is installed and built, and which backend serves which device")
    info.add_arguments(command)
    command.set_defaults(run=info.run)

    command = commands.add_parser("verify", help="compare a device's operator with the reference, row by row")
    parity.add_verify_arguments(command)
    command.set_defaults(run=parity.run_verify)

    command = commands.add_parser("bench", help="time the operator on a device beside what else samples there")
    bench.add_bench_arguments(command)
    command.set_defaults(run=bench.run_bench)

    command = commands.add_parser("report", help="all of these, and steps of all kinds of requests, in one file")
    report.add_report_arguments(command)
    command.set_defaults(run=report.run_report)

    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status
