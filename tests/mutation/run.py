"""Plants faults in copies of the project, one after the other, and sees that the tests catch each.

    python -m tests.mutation.run              all of them
    python -m tests.mutation.run --only cpu   those with "cpu" in their names
    python -m tests.mutation.run --list       the names
    python -m tests.mutation.run --anew       those too that outcomes.json has
    python -m tests.mutation.run --copies 2   in two copies of the project side by side
    python -m tests.mutation.run --draw 150 --seed 7    150 of them, drawn by a seed
    python -m tests.mutation.run --fast       without the tests marked long

All of them take hours. `build/mutation/outcomes.json` keeps what has caught each fault: a run tries those whose own
entry, file or tests have changed since, and those that survived, so that an interrupted run goes on where it was. The
copies lie there too and are kept, so that a second run compiles only what has changed. A fault is caught when a test
fails, or when the tests end with something left on the emulated device or with a misuse of CANN's interface: first by
the tests that its entry names for it, then by all. A fault of the CPU kernel is compiled for the instruction set that
serves calls here, and for all of them where that does not show it. Exit status 1 when one survives.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue

from tqdm import tqdm

from tests.mutation.mutants import EVERY, LIBRARIES, Mutant
from tests.mutation.planted_copy import ROOT, CleanRuns, MutationError, Outcome, PlantedCopy

TREES = ROOT / "build" / "mutation"
FAST = ("-m", "not long")
OUTCOMES = TREES / "outcomes.json"
"""What has caught each fault, the seconds that it took, and the digest of what it was planted in."""


def check_texts(mutants: Sequence[Mutant]) -> None:
    """Every text that is to be replaced occurs once.

    Raises:
        MutationError: naming those that do not.
    """
    stale = [
        f"{mutant.name}: {mutant.old!r} must occur once in {mutant.file}, got {count} times"
        for mutant in mutants
        if (count := (ROOT / mutant.file).read_text().count(mutant.old)) != 1
    ]
    if stale:
        raise MutationError("\n".join([*stale, "The source has changed: change tests/mutation/faults as well."]))


def digest(mutant: Mutant, options: tuple[str, ...]) -> str:
    """Returns that of the fault, its file, the files of the tests that are tried first, and the options of pytest."""
    tests = [argument.split("::")[0] for argument in mutant.tests if argument.startswith("tests/")]
    found = hashlib.sha256(repr((mutant, options)).encode())
    for file in (mutant.file, *tests):
        for path in sorted((ROOT / file).rglob("*.py")) if (ROOT / file).is_dir() else [ROOT / file]:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def known_outcomes(mutants: Sequence[Mutant], options: tuple[str, ...]) -> list[Outcome]:
    """Returns what earlier runs have found of faults that have not changed since; survivors are tried again."""
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}
    return [
        Outcome(mutant, entry["caught_by"], entry["seconds"])
        for mutant in mutants
        if (entry := kept.get(mutant.name)) and entry["caught_by"] and entry["digest"] == digest(mutant, options)
    ]


def keep_outcome(outcome: Outcome, options: tuple[str, ...]) -> None:
    """Writes one outcome beside the others; the file is replaced as a whole."""
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}
    kept[outcome.mutant.name] = {
        "digest": digest(outcome.mutant, options),
        "caught_by": outcome.caught_by,
        "seconds": round(outcome.seconds),
    }
    unfinished = OUTCOMES.with_suffix(".new")
    names = [mutant.name for mutant in EVERY if mutant.name in kept]
    unfinished.write_text(json.dumps({name: kept[name] for name in names}, indent=1) + "\n")
    unfinished.replace(OUTCOMES)


def print_table(outcomes: Sequence[Outcome]) -> None:
    width = max((len(outcome.mutant.name) for outcome in outcomes), default=0)
    print(f"\n{'fault':<{width}}  seconds  caught by")
    for outcome in outcomes:
        print(f"{outcome.mutant.name:<{width}}  {outcome.seconds:7.0f}  {outcome.caught_by or 'SURVIVED'}")
    survivors = sum(outcome.caught_by is None for outcome in outcomes)
    print(f"\n{len(outcomes) - survivors} of {len(outcomes)} faults were caught.")


def prepared_copies(number: int, options: tuple[str, ...]) -> list[PlantedCopy]:
    """Makes the copies equal to the project and builds what faults are planted in.

    Raises:
        MutationError: one does not compile, or its tests import another package.
    """
    clean = CleanRuns()
    copies = [PlantedCopy(TREES / str(index), clean, options) for index in range(number)]
    for copy in copies:
        copy.update()
        for library in tqdm(sorted(set(LIBRARIES.values())), desc=f"building {copy.tree.name}", unit="library"):
            copy.build(library)
        copy.check_import()
    return copies


def run(mutants: Sequence[Mutant], *, is_anew: bool, copies: int = 1, options: tuple[str, ...] = ()) -> int:
    """Tries each mutant in one of the copies, with these options of pytest; returns the exit status."""
    check_texts(mutants)
    outcomes = [] if is_anew else known_outcomes(mutants, options)
    known = {outcome.mutant.name for outcome in outcomes}
    left = [mutant for mutant in mutants if mutant.name not in known]
    if outcomes:
        print(f"{len(outcomes)} of {len(mutants)} faults were caught before, and nothing of theirs has changed.")
    free: SimpleQueue[PlantedCopy] = SimpleQueue()
    for copy in prepared_copies(copies, options):
        free.put(copy)

    def tried(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return copy.try_mutant(mutant)
        finally:
            free.put(copy)

    wrong = []
    with ThreadPoolExecutor(copies) as pool, tqdm(total=len(left), desc="faults", unit="fault") as progress:
        pending = {pool.submit(tried, mutant): mutant for mutant in left}
        try:
            for future in as_completed(pending):
                name = pending[future].name
                progress.update()
                try:
                    outcomes.append(future.result())
                except MutationError as error:  # of this one alone: the others take hours
                    wrong.append(f"{name}: {error}")
                    progress.write(wrong[-1])
                    continue
                keep_outcome(outcomes[-1], options)
                progress.write(f"{name}: {outcomes[-1].caught_by or 'SURVIVED'}")
        except KeyboardInterrupt:  # what is known is kept: no other fault is begun
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    print_table(outcomes)
    if wrong:
        raise MutationError("\n".join([f"{len(wrong)} could not be tried:", *wrong]))
    return 1 if any(outcome.caught_by is None for outcome in outcomes) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults and see that the tests catch them.")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the faults with this in their names")
    parser.add_argument("--anew", action="store_true", help="try those too that were caught before")
    parser.add_argument(
        "--copies", type=int, default=1, help="so many copies of the project, tried in side by side (1)"
    )
    parser.add_argument("--draw", metavar="N", type=int, help="only N of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of --draw (0)")
    parser.add_argument("--fast", action="store_true", help="without the tests marked long")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    chosen = [mutant for mutant in EVERY if options.only in mutant.name]
    if not chosen:
        print(f"--only must be part of a fault's name, got {options.only!r}. --list prints them.", file=sys.stderr)
        return 2
    if options.draw is not None:
        if not 0 < options.draw <= len(chosen):
            print(f"--draw must be in [1, {len(chosen)}], the number of faults, got {options.draw}.", file=sys.stderr)
            return 2
        chosen = random.Random(options.seed).sample(chosen, options.draw)
    if options.copies < 1:
        print(f"--copies must be 1 or more, got {options.copies}. Leave it out for one copy.", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    try:
        return run(chosen, is_anew=options.anew, copies=options.copies, options=FAST * options.fast)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
