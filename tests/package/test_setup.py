"""setup.py: what a build leaves of an earlier one, what it is made of and with. Nothing is really compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = """#!/bin/sh
# Says that it is gcc, and makes the file after -o.
case "$1" in -dump* | -v | --version) echo "gcc version 12.2.0"; exit ;; esac
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo made > "$2"; fi; shift; done
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, not built, beside a compiler."""
    (tmp_path / "compiler").write_text(COMPILER)
    (tmp_path / "compiler").chmod(0o755)
    copy = tmp_path / "project"
    built = shutil.ignore_patterns("*.so", "__pycache__")
    for folder in ("ascend_sample", "csrc"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=built)
    for file in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md"):
        shutil.copy(ROOT / file, copy)
    return copy


def run_setup(
    project: Path, *arguments: str, python: str | Path = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs setup.py, which is to build the core alone."""
    compiler = str(project.parent / "compiler")
    left_out = {"ASCEND_SAMPLE_NPU": "0", "MAX_JOBS": "1"}
    environment = os.environ | left_out | {"CC": compiler, "CXX": compiler} | variables
    command = [python, "setup.py", "--quiet", *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


def build_in_place(project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_setup(project, "build_ext", "--inplace", "--build-lib", "library", **variables)


def test_what_is_left_out_is_removed_where_an_earlier_build_made_it(project: Path) -> None:
    for folder in (project, project / "library"):
        for name in ("_npu.so", "_C_torch_2_13.so", "old/library.so"):
            file = folder / "ascend_sample" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    finished = build_in_place(project)
    assert finished.returncode == 0, finished.stderr
    for folder in (project, project / "library"):
        assert [path.name for path in folder.glob("ascend_sample/**/*.so")] == ["_C.so"]


def objects(project: Path) -> dict[Path, int]:
    """What was compiled, and when."""
    return {path: path.stat().st_mtime_ns for path in project.rglob("*.o")}


@pytest.mark.long
def test_what_is_made_again(project: Path) -> None:
    """Half a library of a build that was killed; all, for another torch in the same place; else nothing, which ninja
    says, also the one beside a Python whose folder is not on PATH.

    Before that, a number of jobs that cannot be is refused.
    """
    finished = build_in_place(project, MAX_JOBS="many")
    assert finished.returncode == 1
    said = "ascend_sample: MAX_JOBS must be a whole number above 0, got 'many'. Unset it to use all processors."
    assert finished.stderr.splitlines()[-1] == said
    assert not list(project.rglob("*.o"))
    programs = project.parent / "programs"
    programs.mkdir()
    for name in ("sh", "which"):
        (programs / name).symlink_to(str(shutil.which(name)))
    finished = build_in_place(project, PATH=str(programs))
    assert finished.returncode == 0, finished.stderr
    compiled = objects(project)
    libraries = [folder / "ascend_sample" / "_C.so" for folder in (project, project / "library")]
    for library in libraries:
        library.write_text("ma")
    finished = build_in_place(project, PATH=str(programs))
    assert finished.returncode == 0, finished.stderr
    assert [library.read_text() for library in libraries] == ["made\n"] * 2
    assert objects(project) == compiled
    finished = build_in_place(project, CXX="no-such-compiler -O2")
    assert finished.returncode != 0
    assert "no-such-compiler is not on PATH" in finished.stderr
    compiler = {"CXX": f"env {project.parent / 'compiler'}"}  # with a word before it
    assert build_in_place(project, **compiler).returncode == 0
    before = objects(project)
    (project / "sitecustomize.py").write_text("import torch\ntorch.__version__ = '9.9.9'\n")
    other = {"PYTHONPATH": str(project), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    finished = build_in_place(project, **compiler, **other)
    assert finished.returncode == 0, finished.stderr
    again = objects(project)
    assert again.keys() == before.keys()
    assert all(again[path] > before[path] for path in before)


@pytest.mark.long
def test_what_is_packed(project: Path) -> None:
    """All sources, and no module that is no more."""
    module = project / "ascend_sample" / "earlier.py"
    for exists in (True, False):
        module.touch() if exists else module.unlink()
        finished = run_setup(project, "bdist_wheel")
        assert finished.returncode == 0, finished.stderr
        (wheel,) = (project / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            assert ("ascend_sample/earlier.py" in packed.namelist()) == exists
    finished = run_setup(project, "sdist")
    assert finished.returncode == 0, finished.stderr
    (archive,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {Path(*Path(name).parts[1:]) for name in packed.getnames()}
    sources = {path.relative_to(project) for path in (project / "csrc").rglob("*.*")}
    assert {path for path in sources if path.suffix in (".cpp", ".h", ".json")} <= names


@pytest.mark.long
def test_a_torch_of_the_user_is_found_where_pip_hides_it(project: Path, tmp_path: Path) -> None:
    """As pip does that builds in isolation: PYTHONPATH leads to setuptools, and the user's folder is left out."""
    venv.create(tmp_path / "environment", system_site_packages=True, symlinks=True)
    packages = sysconfig.get_path("purelib")
    (tmp_path / "overlay").mkdir()
    for name in ("setuptools", "_distutils_hack"):
        (tmp_path / "overlay" / name).symlink_to(Path(packages) / name)
    python = tmp_path / "environment" / "bin" / "python"
    users = {"PYTHONUSERBASE": str(tmp_path / "user")}
    command = [python, "-c", "import site; print(site.getusersitepackages())"]
    folder = Path(subprocess.check_output(command, env=os.environ | users, text=True).strip())
    folder.mkdir(parents=True)
    (folder / "torch.pth").write_text(packages)
    hidden = {"PYTHONPATH": str(tmp_path / "overlay"), "PYTHONNOUSERSITE": "1"}
    finished = run_setup(project, "--name", python=python, **users, **hidden)
    assert (finished.returncode, finished.stdout) == (0, "ascend_sample\n"), finished.stderr
