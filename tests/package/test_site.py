"""The pages of the site: all texts and examples have one, are in the contents, and link to one another."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.user_process import EXAMPLES, run_python_warm

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


def test_every_page_is_in_the_contents_and_links_lead_to_pages(site: ModuleType, tmp_path: Path) -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - PARTS == set(site.EXAMPLES)
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
    for page in tmp_path.rglob("*.md"):
        for target, _ in site.LINK.findall(page.read_text()):
            assert (page.parent / target).is_file(), f"{page.relative_to(tmp_path)} links to {target}"


@pytest.mark.long
def test_a_notebook_runs(site: ModuleType) -> None:
    """Without IPython, as far as that goes."""
    code = "\n".join(cell.source for cell in site.cells_of("quickstart") if cell.cell_type == "code")
    finished = run_python_warm("-c", code, PYTHONPATH=f"{EXAMPLES}:{ROOT}")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("drawn ids:")
