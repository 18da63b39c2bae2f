"""Imports inside the sampling and the decoding layer go down alone, from what is called to what it is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import accumulate
from operator import or_
from pathlib import Path

import pytest

import ascend_sample

ROOT = Path(ascend_sample.__file__).parent
SAMPLING = (
    {"requests"},
    {"rows"},
    {"draws"},
    {"edits"},
    {"batch"},
    {"step"},
    {"drafts"},
    {"vocabulary_parallel"},
    {"sampler", "functional", "scoring"},
    {"verify"},
    {"static"},
)
"""From the lowest: a module imports those of its own storey and below. On the reference nothing rests."""
BELOW = {
    "sampling": {
        **{
            name: below - {name}
            for storey, below in zip(SAMPLING, accumulate(SAMPLING, or_), strict=True)
            for name in storey
        },
        "reference": {"requests", "draws"},
    },
    "decoding": {
        **{name: {"shared"} for name in ("strategies", "beams", "speculation", "models")},
        "onnx": {"models", "shared"},
        "shared": set(),
    },
}
"""What each storey of a layer may import beside itself."""
MODULES = [
    path.relative_to(ROOT).as_posix()
    for layer in BELOW
    for path in sorted((ROOT / layer).rglob("*.py"))
    if path != ROOT / layer / "__init__.py"
]


def storey_of(layer: str, inside: str) -> str:
    """The storey of a module, which is a folder or a file; what is in no folder of the decoding layer is shared."""
    return inside if inside in BELOW[layer] or layer == "sampling" else "shared"


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported when a module runs, not those that only its types name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imported(node)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    layer, inside, *_ = module.removesuffix(".py").split("/")
    own = storey_of(layer, inside)
    assert own in BELOW[layer], f"{own} is a new storey: say what it may import"
    package = f"ascend_sample.{layer}"
    names = [
        name for name in imported(ast.parse((ROOT / module).read_text("utf-8"))) if f"{name}.".startswith(f"{package}.")
    ]
    assert package not in names, "the package imports all that is called"
    storeys = {storey_of(layer, name.removeprefix(package).split(".")[1]) for name in names}
    assert storeys <= BELOW[layer][own] | {own}
