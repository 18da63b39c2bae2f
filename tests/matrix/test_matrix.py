"""The READMEs show what nox's `matrix` has found, and what it looks at exists."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import noxfile
from hostcann._elf import hide_symbols
from hostcann._home import PACKAGE_HOME
from tests.matrix.symbols import missing


def test_the_readmes_show_what_is_kept() -> None:
    outcomes = json.loads(noxfile.OUTCOMES.read_text())
    for name, heading in noxfile.READMES.items():
        assert noxfile.table(outcomes, heading) in (noxfile.ROOT / name).read_text(encoding="utf-8")


def test_a_pair_that_was_not_run_is_not_green() -> None:
    assert noxfile.table({"2.14.0 python 3.13": "fails: parity"}, "torch").splitlines()[-1] == (
        "| 2.14.0, 2.14.0 | not run | not run | not run | fails: parity |"
    )


def test_every_chosen_test_exists() -> None:
    chosen = [*noxfile.OF_WHEEL, *(f"tests/{test}" for tests in noxfile.STEPS.values() for test in tests.split())]
    chosen += [f"tests/engines/{name}" for _, _, programs in noxfile.ENGINES.values() for name in programs]
    chosen += [f"tests/integrations/{name}" for _, _, programs in noxfile.INSIDE.values() for name in programs]
    assert [name for name in chosen if not (noxfile.ROOT / name).exists()] == []


def test_a_function_that_hostcann_lacks_is_named(tmp_path: Path) -> None:
    """libhcomm.so, in torch_npu's place, needs a function of libhccl.so."""
    libraries = tmp_path / "lib64"
    libraries.mkdir()
    needs = PACKAGE_HOME / "lib64" / "libhcomm.so"
    hide_symbols(PACKAGE_HOME / "lib64" / "libhccl.so", ["HcclGroupStart"], libraries / "libhccl.so")
    assert missing(needs, tmp_path) == {"HcclGroupStart"}
    shutil.copy(PACKAGE_HOME / "lib64" / "libhccl.so", libraries)
    assert missing(needs, tmp_path) == set()
