"""The pages of the site: all texts and examples have one, are in the contents, and link to one another."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType

import pytest

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
    for name in site.EXAMPLES:
        site.write_example(name, is_run=False)
    pages = {str(path.relative_to(tmp_path).with_suffix("")) for path in tmp_path.rglob("*.md")}
    contents = re.findall(r"```{toctree}(.*?)```", (tmp_path / "index.md").read_text(), re.DOTALL)
    listed = [line for part in contents for line in part.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(pages - {"index"})


def test_links_lead_to_pages(site: ModuleType, tmp_path: Path) -> None:
    site.write_texts()
    for name in site.EXAMPLES:
        site.write_example(name, is_run=False)
    for page in tmp_path.rglob("*.md"):
        if page.parent.name == "examples":
            continue  # of source code
        for target, _ in site.LINK.findall(page.read_text()):
            assert (page.parent / target).is_file(), f"{page.relative_to(tmp_path)} links to {target}"


def test_links_from_a_folder_to_another(site: ModuleType) -> None:
    text = "[a](../README.md#use) [b](../examples/demo.py) ![c](pictures/walk.png) [d](https://e.org/f.md)"
    assert site.linked(text, "docs/seeds.md", "guides/seeds.md") == (
        "[a](../readme.md#use) [b](../examples/demo.md) ![c](../pictures/walk.png) [d](https://e.org/f.md)"
    )
    assert (site.PAGES / "pictures" / "walk.png").is_file()


def test_an_example_shows_what_it_prints(site: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_example("quickstart", is_run=True)
    page = (site.PAGES / "examples" / "quickstart.md").read_text()
    assert "$ python examples/quickstart.py\n" in page
    assert "## Source" in page
    monkeypatch.setitem(site.EXAMPLES, "quickstart", ("-c", "raise SystemExit(3)"))
    with pytest.raises(RuntimeError, match="status 3"):
        site.write_example("quickstart", is_run=True)


def test_pages_of_texts_are_where_links_say(site: ModuleType) -> None:
    assert site.page_of("docs/guides/serving.md") == "guides/serving.md"
    assert site.page_of("CHANGELOG.md") == "changelog.md"
    assert site.page_of("examples/model_cache.py") is None
    assert all(posixpath.splitext(page)[1] == ".md" for page in site.OTHER_TEXTS.values())
