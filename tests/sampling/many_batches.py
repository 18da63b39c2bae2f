"""Random batches by their numbers, in processes side by side, until they have as many rows as are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from tqdm import tqdm


class Outcome(NamedTuple):
    """Of some rows, or texts: how many there were, how many were as `noted`, and what is wrong with others."""

    tried: int
    noted: int
    wrong: list[str]


def parser_of(description: str, unit: str, number: int, has_npu: bool = True) -> argparse.ArgumentParser:
    """Returns a parser that has `--rows` or `--texts`, `--workers` and mostly `--device`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(f"--{unit}s", dest="number", type=int, default=number, help=f"how many (default {number:,})")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes, each with batches of its own; one on a device"
    )
    if has_npu:
        parser.add_argument("--device", default="cpu", help="cpu, npu, or another that torch can use")
    return parser


def try_batches(
    try_batch: Callable[..., Outcome], options: argparse.Namespace, unit: str, device: str | None = "cpu"
) -> Outcome:
    """Tries batches 0, 1 and so on, with progress; what is wrong is printed.

    Args:
        try_batch: gets a batch's number, and the device unless that is None. It can be pickled.
        options: from `parser_of`.
        unit: "row" or "text".
        device: where.

    Returns:
        What was found of all.
    """
    tried, noted, wrong = 0, 0, []
    more = () if device is None else (device,)
    with tqdm(total=options.number, unit=unit, unit_scale=True) as progress:
        for outcome in _outcomes(try_batch, options.workers if device in (None, "cpu") else 1, more):
            tried, noted, wrong = tried + outcome.tried, noted + outcome.noted, wrong + outcome.wrong
            progress.update(outcome.tried)
            if tried >= options.number:
                break
    print("\n".join(wrong))
    return Outcome(tried, noted, wrong)


def main_of(
    try_batch: Callable[..., Outcome], text: str, unit: str, number: int, told: Callable[[Outcome], str]
) -> int:
    """Tries batches on the device that the command line names, prints what was found, returns the exit status.

    Args:
        try_batch: as for `try_batches`.
        text: what the program does.
        unit: "row" or "text".
        number: how many by default.
        told: of an outcome, what follows "N rows on DEVICE".
    """
    options = parser_of(text, unit, number).parse_args()
    found = try_batches(try_batch, options, unit, options.device)
    print(f"{found.tried} {unit}s on {options.device}{told(found)}")
    return 1 if found.wrong else 0


def _outcomes(try_batch: Callable[..., Outcome], workers: int, more: tuple[Any, ...]) -> Iterator[Outcome]:
    """Tries one batch after the other, for as long as it is asked."""
    torch.set_num_threads(1)
    number = 0
    if workers == 1:
        while True:
            yield try_batch(number, *more)
            number += 1
    block = 32 * workers
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        while True:
            yield from pool.map(
                try_batch, range(number, number + block), *([each] * block for each in more), chunksize=4
            )
            number += block
