"""Builds the site: `make docs`, or `python docs/site/make.py [--without-examples]`.

The pages of docs/, the other texts of the repository and a page for each example, with what it prints, are put
together under build/site/pages, with links to one another; Sphinx makes HTML of them in build/site/html. A warning of
Sphinx, a link that leads nowhere and an example that fails end it with status 1.
"""

from __future__ import annotations

import argparse
import ast
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
PAGES = SITE / "pages"
OTHER_TEXTS = {
    "README.md": "readme.md",
    "README.zh-CN.md": "readme.zh-CN.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "csrc/cpu/README.md": "internals/cpu_kernel.md",
    "csrc/hostcann/README.md": "internals/hostcann.md",
}
"""Texts outside docs/, and the page that each becomes."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "quickstart": (),
    "mixed_batch": (),
    "trace_row": (),
    "npu_emulated": (),
    "demo": (),
    "serve": ("examples/serve.py", "--tokens", "16", "--device", "cpu"),
    "valid_json": (),
    "strategies": (),
    "speculation_changes_nothing": ("examples/speculation_changes_nothing.py", "--device", "cpu"),
    "tensor_parallel": (),
    "data_parallel": (
        *("-m", "ascend_sample.hostcann", "run"),
        *("python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "examples/data_parallel.py"),
    ),
    "flattening": (),
    "faster_transformer": (),
    "translate_onnx": (),
}
"""The programs of examples/, and what follows `python` where that is more than the file."""
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(#[^)\s]*)?(?=\))")
"""The target of a link within the repository, and its anchor."""


def page_of(source: str) -> str | None:
    """Returns the page that a file of the repository becomes, if it does."""
    if source in OTHER_TEXTS:
        return OTHER_TEXTS[source]
    folder, name = posixpath.split(source)
    if folder == "examples" and name.removesuffix(".py") in EXAMPLES:
        return f"examples/{name.removesuffix('.py')}.md"
    return source.removeprefix("docs/") if source.startswith("docs/") and source.endswith(".md") else None


def linked(text: str, source: str, page: str) -> str:
    """Returns a text whose links lead from its page to other pages; files without a page are put beside the pages."""

    def target(match: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        found = page_of(wanted)
        if found is None:
            found = wanted.removeprefix("docs/")
            (PAGES / found).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / wanted, PAGES / found)  # tests see that every link leads to a file
        return posixpath.relpath(found, posixpath.dirname(page) or ".") + (match[2] or "")

    return LINK.sub(target, text)


def write_page(page: str, text: str) -> None:
    """Writes a page of Markdown."""
    (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / page).write_text(text, encoding="utf-8")


def write_texts() -> None:
    """Writes a page for each text of the repository."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    for source in (*OTHER_TEXTS, *(str(path.relative_to(ROOT)) for path in docs)):
        page = page_of(source)
        assert page is not None
        write_page(page, linked((ROOT / source).read_text(encoding="utf-8"), source, page))


def write_example(name: str, is_run: bool) -> None:
    """Writes the page of an example: its text, what it prints, its source."""
    path = ROOT / "examples" / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or name).partition("\n")
    text = re.sub(r"(?m)^    ", "\n    ", text, count=1)  # Markdown wants an empty line before code
    parts = [f"# {name}.py", title, text]
    if is_run:
        command = EXAMPLES[name] or (f"examples/{path.name}",)
        here = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        finished = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=here, capture_output=True, text=True, check=False
        )
        if finished.returncode != 0:
            raise RuntimeError(f"python {' '.join(command)}: status {finished.returncode}\n{finished.stderr}")
        parts.append(f"## What it prints\n\n```text\n$ python {' '.join(command)}\n{finished.stdout}```")
    parts.append(f"## Source\n\n```python\n{source}```")
    write_page(f"examples/{name}.md", "\n\n".join(parts) + "\n")


def main() -> int:
    """Builds the site; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--without-examples", action="store_true", help="do not run them: their pages have the source")
    options = parser.parse_args()
    from sphinx.cmd.build import main as sphinx_build  # no requirement of whoever looks at the pages alone

    shutil.rmtree(SITE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    write_texts()
    for name in tqdm(EXAMPLES, desc="examples", unit="example"):
        write_example(name, not options.without_examples)
    os.chdir(ROOT)
    status: int = sphinx_build(
        ["--quiet", "--fail-on-warning", "--keep-going", "-c", "docs/site", str(PAGES), str(SITE / "html")]
    )
    if status == 0:
        print(f"{SITE / 'html' / 'index.html'} is the front page.")
    return status


if __name__ == "__main__":
    sys.exit(main())
