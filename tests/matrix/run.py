"""Builds and tests the project with each torch, torch_npu and Python that it is made for (``make test-matrix``).

    python -m tests.matrix.run                                    every pair of a torch_npu and a Python
    python -m tests.matrix.run --versions 2.10,2.7.1              these torch_npu alone
    python -m tests.matrix.run --versions 2.10 --pythons 3.12     and these Pythons alone
    python -m tests.matrix.run --keep                             leaves the environments, several GB each
    python -m tests.matrix.run --again STEP                       this step and those after it, in an environment kept
    python -m tests.matrix.run --until STEP                       no step after this one
    python -m tests.matrix.run --tables                           writes the tables anew, and runs nothing

One environment at a time is made under ``build/matrix``, with a log of all its commands, and removed after its turn.
Each step ends green or with the last lines of its error; where the build or the import fails, nothing follows. What
was found is kept in ``docs/matrix.json``, pair by pair, and the tables of the READMEs are made from that. Exit status
1 when a step has failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from tqdm import tqdm

from tests.matrix import steps, tables
from tests.matrix.environment import ROOT, Environment, Pair, StepFailure, interpreter

BUILD: Final = ROOT / "build" / "matrix"
VERSIONS: Final = {
    "2.7.1": "2.7.1.post11",
    "2.9.0": "2.9.0.post9",
    "2.10.0": "2.10.0.post7",
    "2.12.0": "2.12.0.post3",
    "2.13.0": "2.13.0",
    "2.14.0": "2.14.0",
}
"""torch -> its latest torch_npu."""
PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")


def attempt(environment: Environment, names: Sequence[str]) -> dict[str, Any]:
    """Runs the named steps in their order; returns what is kept of each: its seconds, and its error or None."""
    found: dict[str, Any] = {}
    progress = tqdm(names, unit="step")
    for name in progress:
        progress.set_description(f"{environment.pair.name}: {name}")
        start, error = time.monotonic(), None
        try:
            steps.of(environment)[name]()
        except StepFailure as failure:
            error = str(failure)
            tqdm.write(f"{environment.pair.name}: {name} failed\n{error}")
        found[name] = {"seconds": round(time.monotonic() - start), "error": error}
        if error is not None and name in steps.ALL_DEPENDS_ON:
            break
    return found


def record(pair: Pair, names: Sequence[str], *, is_kept: bool) -> dict[str, Any]:
    """Runs steps in the pair's environment; returns what docs/matrix.json says of it."""
    base = interpreter(pair.python)
    if base is None:
        return {"reason": "no interpreter here", "steps": {}}
    environment = Environment(pair, base, BUILD / f"{pair.torch_npu}-py{pair.python}")
    found = attempt(environment, names)
    facts = environment.facts() if found.get("install", {"error": None})["error"] is None else {}
    if not is_kept:
        shutil.rmtree(environment.folder / "venv", ignore_errors=True)
        shutil.rmtree(environment.tree, ignore_errors=True)
    return {"versions": facts, "steps": found}


def chosen(names: str | None, known: Sequence[str], option: str) -> list[str]:
    """The known names that an option's begin; all without the option."""
    if names is None:
        return list(known)
    wanted = names.split(",")
    found = [name for name in known for prefix in wanted if name == prefix or name.startswith(f"{prefix}.")]
    if len(found) != len(wanted):
        raise SystemExit(f"{option} must name some of {', '.join(known)}, got {names}. Leave it out for all.")
    return found


def pairs() -> list[list[Pair]]:
    """All pairs, those of one torch in a row."""
    return [[Pair(torch, VERSIONS[torch], python) for python in PYTHONS] for torch in VERSIONS]


def main() -> int:
    """Try the chosen pairs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", help=f"some of {', '.join(VERSIONS)}, with commas between")
    parser.add_argument("--pythons", help=f"some of {', '.join(PYTHONS)}, with commas between")
    parser.add_argument("--keep", action="store_true", help="leave the environments under build/matrix")
    for option, default, text in (
        ("--again", 0, "begin with this step, after --keep"),
        ("--until", -1, "the last one"),
    ):
        parser.add_argument(option, choices=steps.NAMES, default=steps.NAMES[default], metavar="STEP", help=text)
    parser.add_argument("--tables", action="store_true", help="write the tables from docs/matrix.json, and run nothing")
    options = parser.parse_args()
    names = steps.NAMES[steps.NAMES.index(options.again) : steps.NAMES.index(options.until) + 1]
    has_failed = False
    if not options.tables:
        for torch in chosen(options.versions, tuple(VERSIONS), "--versions"):
            for python in chosen(options.pythons, PYTHONS, "--pythons"):
                pair = Pair(torch, VERSIONS[torch], python)
                now = record(pair, names, is_kept=options.keep)
                found = tables.read()  # another run may have written meanwhile
                before = found.get(pair.name, {"steps": {}})["steps"] if options.again != "install" else {}
                found[pair.name] = now | {"steps": before | now["steps"]}
                has_failed |= tables.failed(found[pair.name])
                tables.keep(found)
    found = tables.read()
    tables.publish(found, pairs())
    print(json.dumps({name: tables.verdict(each) for name, each in found.items()}, indent=1))
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
