"""Random rows of split steps beside steps that are not split: tokens, statuses, logprobs and ranks, bit for bit.

    python tests/sampling/vocabulary_parallel/run_split_rows.py --rows 1000000
    python tests/sampling/vocabulary_parallel/run_split_rows.py --rows 100000 --drafts
    python tests/sampling/vocabulary_parallel/run_split_rows.py --rows 10000 --gloo 3

Each batch has a vocabulary, a dtype, requests of every kind, edits, a bitmask, logprobs of any mode, and a split: 1, 2,
3, 4 or 8 ranks with even parts, uneven ones, parts of one id or of padding alone. The ranks are simulated in one
process; with ``--gloo`` they are as many processes. Exit status 1 where a row is another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ascend_sample  # noqa: F401, E402  imports torch in a way that needs no CANN

import mixed_drafts  # isort: skip  # noqa: E402
from many_batches import Outcome, parser_of, try_batches  # noqa: E402
from mixed_drafts import random_drafts  # noqa: E402
from mixed_rows import differences, random_case, split, whole  # noqa: E402

SIZES = (1, 2, 3, 4, 8)
ROWS = 64  # of a batch
PLACES = 32  # of the drafts of a pass
FIRST = 100_000


def try_batch(number: int) -> Outcome:
    """Takes a step of one batch, whole and split."""
    size = SIZES[number % len(SIZES)]
    case = random_case(FIRST + number, size, ROWS)
    expected = whole(case, steps=1)[0]
    found = split(case, steps=1)
    wrong = [
        f"batch {number}, rank {rank} of {size}: {text}: {case.options}"
        for rank, each in enumerate(found)
        for text in differences(case, each.outputs[0], expected)
    ]
    return Outcome(len(case.params), 0, wrong)


def try_drafts(number: int) -> Outcome:
    """Verifies the drafts of one pass, whole and split."""
    size = SIZES[number % len(SIZES)]
    drafts = random_drafts(FIRST + number, size, PLACES, is_tree=number % 2 == 1)
    expected = mixed_drafts.whole(drafts, steps=1)[0]
    wrong = [
        f"drafts {number}, rank {rank} of {size}: {drafts}"
        for rank, found in enumerate(mixed_drafts.split(drafts, steps=1))
        if not mixed_drafts.is_same(drafts, found[0], expected)
    ]
    return Outcome(PLACES, 0, wrong)


def on_gloo(rows: int, size: int) -> int:
    """Runs as many processes of gloo: with rows, then with a pass of drafts for every 32 of these."""
    program = str(Path(__file__).with_name("gloo_ranks.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={size}", program]
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # torchrun needs no CANN
    run = [[*command, "--rows", str(rows)], [*command, "--drafts", str(-(-rows // PLACES))]]
    return max(subprocess.run(each, env=environment, check=False).returncode for each in run)


def main() -> int:
    """Tries all rows; returns the exit status."""
    parser = parser_of("Random rows of split steps beside steps that are not split.", "row", 1_000_000, has_npu=False)
    parser.add_argument("--gloo", type=int, default=0, metavar="RANKS", help="take so many processes of gloo instead")
    parser.add_argument("--drafts", action="store_true", help="verify drafts: rows are their places")
    options = parser.parse_args()
    if options.gloo:
        return on_gloo(options.number, options.gloo)
    found = try_batches(try_drafts if options.drafts else try_batch, options, "row", None)
    print(f"{found.tried} rows on {', '.join(map(str, SIZES))} ranks: {len(found.wrong)} are others")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
