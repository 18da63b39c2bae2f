"""The pages of the site: all texts and examples have one, are in the contents, and link to one another."""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
PARTS = {"model_cache", "number_speller", "schedule", "serving_engine"}
"""Of examples, what the programs import."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "site" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGES", tmp_path)
    return module


def test_every_page_is_in_the_contents(site: ModuleType, tmp_path: Path) -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} - PARTS == set(site.EXAMPLES)
    site.write_texts()
    site.write_examples()
    pages = {
        str(path.relative_to(tmp_path).with_suffix(""))
        for kind in ("*.md", "*.ipynb")
        for path in tmp_path.rglob(kind)
        if path.parent.name != "downloads"
    }
    listed = [
        posixpath.normpath(posixpath.join(path.parent.relative_to(tmp_path), line))
        for path in (tmp_path / "index.md", tmp_path / "examples" / "index.md")
        for part in re.findall(r"```{toctree}(.*?)```", path.read_text(), re.DOTALL)
        for line in part.splitlines()
        if line and not line.startswith(":")
    ]
    assert sorted(listed) == sorted(pages - {"index"})


def test_links_lead_to_pages(site: ModuleType, tmp_path: Path) -> None:
    site.write_texts()
    site.write_examples()
    for page in tmp_path.rglob("*.md"):
        for target, _ in site.LINK.findall(page.read_text()):
            assert (page.parent / target).is_file(), f"{page.relative_to(tmp_path)} links to {target}"


def run_cells(cells: list[NotebookNode], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the code of a notebook without IPython, as far as that goes, outside examples/."""
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_notebooks_run(site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = run_cells(site.cells_of("quickstart"), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("drawn ids:")
    monkeypatch.setitem(site.EXAMPLES, "translate_onnx", ("--unknown",))
    failed = run_cells(site.cells_of("translate_onnx"), tmp_path)
    assert failed.returncode == 2
    assert "unrecognized arguments: --unknown" in failed.stderr
