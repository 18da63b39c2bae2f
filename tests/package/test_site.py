"""The pages of the site: all texts and examples have one, are in the contents, and link to one another."""

from __future__ import annotations

import ast
import importlib.util
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
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


def test_programs_of_the_examples_have_pages(site: ModuleType) -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} - PARTS == set(site.EXAMPLES)


def test_every_page_is_in_the_contents(site: ModuleType, tmp_path: Path) -> None:
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


def test_links_from_a_folder_to_another(site: ModuleType) -> None:
    text = "[a](../README.md#use) [b](../examples/demo.py) ![c](pictures/walk.png) [d](https://e.org/f.md)"
    assert site.linked(text, "docs/seeds.md", "guides/seeds.md") == (
        "[a](../readme.md#use) [b](../examples/demo.ipynb) ![c](../pictures/walk.png) [d](https://e.org/f.md)"
    )
    assert (site.PAGES / "pictures" / "walk.png").is_file()


def test_notebooks_have_the_whole_program(site: ModuleType, tmp_path: Path) -> None:
    """What is downloaded is what the page shows, without the page's links; no statement of the program is missing."""
    site.write_examples()
    for name in site.EXAMPLES:
        source = (ROOT / "examples" / f"{name}.py").read_text()
        assert (tmp_path / "downloads" / f"{name}.py").read_text() == source
        cells, shown = (
            nbformat.read(tmp_path / folder / f"{name}.ipynb", as_version=4).cells
            for folder in ("downloads", "examples")
        )
        assert [cell.source for cell in shown] == [
            cells[0].source,
            shown[1].source,
            *(cell.source for cell in cells[1:]),
        ]
        assert f"downloads/{name}.ipynb>" in shown[1].source
        code = cells[1].source.removeprefix("```python\n").removesuffix("\n```")
        program = [ast.unparse(statement) for statement in ast.parse(source).body]
        kept = [ast.unparse(statement) for statement in ast.parse(code).body]
        is_run_by_a_cell = len(cells) > 2
        end = program.pop() if program[-1].startswith("if __name__ ==") else ""
        assert program[1:] == kept
        assert bool(end) <= is_run_by_a_cell


def run_cells(cells: list[NotebookNode], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the code of a notebook without IPython, as far as that goes, outside examples/."""
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_notebooks_run(site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = run_cells(site.cells_of("quickstart"), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("drawn ids:")
    monkeypatch.setitem(site.EXAMPLES, "translate_onnx", ("--unknown",))
    failed = run_cells(site.cells_of("translate_onnx"), tmp_path)
    assert failed.returncode == 2
    assert "unrecognized arguments: --unknown" in failed.stderr


def test_what_a_command_prints_comes_whole(site: ModuleType) -> None:
    for name, command in site.LAUNCHERS.items():
        run, shown = site.cells_of(name)[2:]
        assert run.source == f"%%bash --out printed\n{command}"
        assert shown.source == "print(printed)"


def test_pages_of_texts_are_where_links_say(site: ModuleType) -> None:
    assert site.page_of("docs/guides/serving.md") == "guides/serving.md"
    assert site.page_of("CHANGELOG.md") == "changelog.md"
    assert site.page_of("examples/model_cache.py") is None
    assert all(posixpath.splitext(page)[1] == ".md" for page in site.OTHER_TEXTS.values())
