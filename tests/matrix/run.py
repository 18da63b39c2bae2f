"""Builds and tests the project with each torch, torch_npu and Python that it is made for (``make test-matrix``).

    python -m tests.matrix.run                                    every pair of a torch_npu and a Python
    python -m tests.matrix.run --versions 2.10,2.7.1              these torch_npu alone
    python -m tests.matrix.run --versions 2.10 --pythons 3.12     and these Pythons alone
    python -m tests.matrix.run --keep                             leaves the environments, several GB each
    python -m tests.matrix.run --again STEP                       this step and those after it, in an environment kept
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
from collections.abc import Callable, Sequence
from typing import Any, Final

from tqdm import tqdm

from tests.matrix import tables
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
OPERATORS: Final = ("top_k_top_p_sample", "top_k_top_p_sample_v2")
ROWS: Final = 2000
TESTS: Final = {
    "golden rows": ("tests/operators/test_golden.py", "tests/operators/test_golden_v2.py"),
    "parity": ("tests/parity/test_parity.py", "tests/parity/test_parity_v2.py", "tests/parity/test_parity_builtin.py"),
    "conformance": ("tests/conformance",),
    "binding": (
        *(
            "tests/npu/test_abi.py",
            "tests/npu/test_builtin.py",
            "tests/npu/test_capture.py",
            "tests/npu/test_composite.py",
        ),
        *("tests/npu/test_memory.py", "tests/npu/test_routes.py", "tests/npu/test_streams.py"),
    ),
    "faults": ("tests/npu/test_faults.py",),
    "hostcann": ("tests/hostcann/test_activation.py", "tests/hostcann/test_aten.py"),
    "sampling": (
        *("tests/sampling/test_sampler.py", "tests/sampling/test_native_rows.py", "tests/sampling/test_noise.py"),
        *("tests/sampling/test_filters.py", "tests/sampling/test_logprobs.py", "tests/sampling/test_verify_drafts.py"),
    ),
    "decoding": (
        *("tests/decoding/strategies/test_greedy.py", "tests/decoding/strategies/test_sampled.py"),
        *("tests/decoding/beams/test_beam_search.py", "tests/decoding/beams/test_gather_tree.py"),
        *("tests/decoding/speculation/test_speculative.py", "tests/decoding/models/test_module_model.py"),
        "tests/decoding/models/test_transformers_cache.py",
    ),
}
"""The parts of `make test` that meet what differs between versions."""
ALL_DEPENDS_ON: Final = ("install", "build", "import")


def verify(environment: Environment) -> None:
    """Compares rows of each operator with the reference, on the CPU and on the emulated NPU."""
    for operator in OPERATORS:
        arguments = ("-m", "ascend_sample", "verify", "--operator", operator, "--rows", str(ROWS))
        environment.run(environment.python, *arguments, "--device", "cpu")
        environment.emulated(*arguments, "--device", "npu")


def steps(environment: Environment) -> dict[str, Callable[[], object]]:
    """Each step by its name, in their order."""
    first: dict[str, Callable[[], object]] = {
        "install": environment.install,
        "build": environment.build,
        "symbols": environment.check_symbols,
        "import": lambda: environment.emulated(environment.tree / "tests" / "matrix" / "program.py"),
        "verify": lambda: verify(environment),
    }
    return first | {name: lambda tests=tests: environment.test(*tests) for name, tests in TESTS.items()}


def attempt(environment: Environment, start_with: str) -> dict[str, Any]:
    """Runs the steps from one of them on; returns what is kept of each that was run: seconds, and the error or None."""
    found: dict[str, Any] = {}
    names = list(steps(environment))
    progress = tqdm(names[names.index(start_with) :], unit="step")
    for name in progress:
        progress.set_description(f"{environment.pair.name}: {name}")
        start, error = time.monotonic(), None
        try:
            steps(environment)[name]()
        except StepFailure as failure:
            error = str(failure)
            tqdm.write(f"{environment.pair.name}: {name} failed\n{error}")
        found[name] = {"seconds": round(time.monotonic() - start), "error": error}
        if error is not None and name in ALL_DEPENDS_ON:
            break
    return found


def record(pair: Pair, *, is_kept: bool, start_with: str) -> dict[str, Any]:
    """Makes the pair's environment and runs its steps; returns what docs/matrix.json says of it."""
    base = interpreter(pair.python)
    if base is None:
        return {"reason": "no interpreter here", "steps": {}}
    environment = Environment(pair, base, BUILD / f"{pair.torch_npu}-py{pair.python}")
    found = attempt(environment, start_with)
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
    parser.add_argument("--again", metavar="STEP", default="install", help="begin with this step, after --keep")
    parser.add_argument("--tables", action="store_true", help="write the tables from docs/matrix.json, and run nothing")
    options = parser.parse_args()
    has_failed = False
    if not options.tables:
        for torch in chosen(options.versions, tuple(VERSIONS), "--versions"):
            for python in chosen(options.pythons, PYTHONS, "--pythons"):
                pair = Pair(torch, VERSIONS[torch], python)
                now = record(pair, is_kept=options.keep, start_with=options.again)
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
