"""Builds the site: `make docs`, or `python docs/site/make.py [--without-examples]`.

The pages of docs/, the other texts of the repository and a notebook for each example are put together under
build/site/pages, with links to one another; Sphinx runs the notebooks and makes HTML of all in build/site/html. A
warning of Sphinx, a link that leads nowhere and an example that fails end it.

Notebooks are run by myst-nb, each in a process of its own, and not by sphinx-gallery, which runs all examples in the
process of Sphinx: their `sys.exit(main())` would end the build, an NPU that one of them emulates would be there for the
others, and what starts processes by torchrun or by spawning cannot run there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
PAGES = SITE / "pages"
HOSTCANN = ("how_it_works", "testing", "profile", "operators", "collectives", "coverage")
OTHER_TEXTS = {
    "README.md": "readme.md",
    "README.zh-CN.md": "readme.zh-CN.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "csrc/cpu/README.md": "internals/cpu_kernel.md",
    "hostcann/README.md": "hostcann/index.md",
    "hostcann/CHANGELOG.md": "hostcann/changelog.md",
    **{f"hostcann/docs/{name}.md": f"hostcann/{name}.md" for name in HOSTCANN},
}
"""Texts outside docs/, and the page that each becomes."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "quickstart": (),
    "mixed_batch": (),
    "trace_row": (),
    "npu_emulated": (),
    "demo": (),
    "serve": ("--tokens", "16", "--device", "cpu"),
    "valid_json": (),
    "strategies": ("--json", "beam_tree.json"),
    "speculation_changes_nothing": ("--device", "cpu"),
    "tensor_parallel": (),
    "data_parallel": (),
    "flattening": ("--json", "flattening.json"),
    "faster_transformer": (),
    "translate_onnx": (),
}
"""The programs of examples/, and the arguments with which they run."""
LAUNCHERS = {
    "tensor_parallel": "python -m tensor_parallel",
    "data_parallel": "hostcann run \\\n"
    "  python -m torch.distributed.run --standalone --nproc_per_node=2 -m data_parallel",
}
"""The commands of those that start processes, which a notebook's own functions cannot be sent to."""
PICTURES = {"strategies": "beam_tree", "flattening": "flattening"}
"""Of examples that write figures as JSON: what docs/pictures/make.py calls the picture of them."""
PICTURE = """from pathlib import Path

import model_cache
from IPython.display import Image

sys.path.append(str(Path(model_cache.__file__).parents[1] / "docs" / "pictures"))
import make

make.{constant} = Path("{name}.json")
make.draw_{name}().savefig("{name}.png", dpi=make.DOTS_PER_INCH)
Image("{name}.png", width=960)"""
JOBS = 4
"""So many pages are read side by side: while one trains the language model, those that wait for it hold up no other."""
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(#[^)\s]*)?(?=\))")
"""The target of a link within the repository, and its anchor."""
CHINESE_BREAK = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n *(?=[\u3000-\u9fff\uff00-\uffef])")
"""The end of a line within Chinese text, which browsers show as a space."""


def page_of(source: str) -> str | None:
    """Returns the page that a file of the repository becomes, if it does."""
    if source in OTHER_TEXTS:
        return OTHER_TEXTS[source]
    folder, name = posixpath.split(source)
    if folder == "examples" and name.removesuffix(".py") in EXAMPLES:
        return f"examples/{name.removesuffix('.py')}.ipynb"
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
        text = linked((ROOT / source).read_text(encoding="utf-8"), source, page)
        write_page(page, CHINESE_BREAK.sub("", text))


def cells_of(name: str) -> list[NotebookNode]:
    """Returns the cells of an example: its text, its code, and what runs it."""
    path = ROOT / "examples" / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = source.splitlines()
    text = re.sub(r"(?m)^python ", "    python ", ast.get_docstring(tree) or "")
    text = re.sub(r"(?m)^    ", "\n    ", text, count=1)  # before code, Markdown wants an empty line
    start, end = tree.body[0].end_lineno, tree.body[-1]
    is_program = isinstance(end, ast.If) and ast.unparse(end.test) == "__name__ == '__main__'"
    code = "\n".join(lines[start : end.lineno - 1 if is_program else None]).strip()
    cells = [new_markdown_cell(f"# {path.name}\n\n{text}")]
    if name in LAUNCHERS:
        # IPython would pass on what is printed in pieces of 100 bytes, and myst-nb end a line after each.
        command = (new_code_cell(f"%%bash --out printed\n{LAUNCHERS[name]}"), new_code_cell("print(printed)"))
        cells += [new_markdown_cell(f"```python\n{code}\n```"), *command]
    elif is_program:
        cells += [
            new_code_cell(code, metadata={"tags": ["hide-input"]}),
            new_code_cell(f"import sys\n\nsys.argv[1:] = {json.dumps(EXAMPLES[name])}\nassert not main()"),
        ]
    else:
        cells.append(new_code_cell(code))
    if name in PICTURES:
        drawn = PICTURE.format(name=PICTURES[name], constant=PICTURES[name].upper())
        cells.append(new_code_cell(drawn, metadata={"tags": ["hide-input"]}))
    return cells


def write_example(name: str) -> None:
    """Writes an example's program and notebook, as one can download them, and the page: the notebook with links."""
    downloads, pages = PAGES / "downloads", PAGES / "examples"
    for folder in (downloads, pages):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "examples" / f"{name}.py", downloads)
    cells = cells_of(name)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), downloads / f"{name}.ipynb")
    links = " · ".join(f"{{download}}`{file} <../downloads/{file}>`" for file in (f"{name}.py", f"{name}.ipynb"))
    cells.insert(1, new_markdown_cell(f"Download, to be run in examples/: {links}"))
    nbformat.write(new_notebook(cells=cells, metadata=kernel), pages / f"{name}.ipynb")


def write_examples() -> None:
    """Writes the pages of the examples, and one that names them all."""
    rows = []
    for name in EXAMPLES:
        write_example(name)
        source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        rows.append(f"| [{name}]({name}.ipynb) | {title} |")
    contents = "\n".join(("```{toctree}", ":hidden:", "", *EXAMPLES, "```"))
    table = "\n".join(("| example | |", "|---|---|", *rows))
    text = "Each page has what the program prints when the site is built, and the program as a notebook."
    write_page("examples/index.md", f"# Examples\n\n{text}\n\n{table}\n\n{contents}\n")


def main() -> int:
    """Builds the site; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument(
        "--without-examples", action="store_true", help="do not run them: their pages have the code alone"
    )
    options = parser.parse_args()
    from sphinx.cmd.build import main as sphinx_build  # no requirement of whoever looks at the pages alone

    shutil.rmtree(SITE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    write_texts()
    write_examples()
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "examples"), str(ROOT)))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["IPYTHONDIR"] = str(SITE / "ipython")  # not the user's
    profile = SITE / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 'ERROR'\n", encoding="utf-8")
    mode = "off" if options.without_examples else "force"
    status: int = sphinx_build(
        [
            *("--fail-on-warning", "--keep-going", "--jobs", str(JOBS), "-c", str(Path(__file__).parent)),
            *("-D", f"nb_execution_mode={mode}", str(PAGES), str(SITE / "html")),
        ]
    )
    if status == 0:
        print(f"{SITE / 'html' / 'index.html'} is the front page.")
    return status


if __name__ == "__main__":
    sys.exit(main())
