"""Imports inside the decoding layer go down alone: from strategies and models to what they share, never back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ascend_sample import decoding

PACKAGE = Path(decoding.__file__).parent
NAME = decoding.__name__
BELOW = {"strategies": set(), "beams": set(), "speculation": set(), "models": set(), "onnx": {"models"}, "": set()}
"""What each storey may import beside itself and what all share, which has no name."""
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"
)


def storey_of(imported: str) -> str:
    """The folder that a module of the layer lies in; empty for those beside the folders."""
    first = imported.removeprefix(NAME).lstrip(".").split(".")[0]
    return first if first in BELOW else ""


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    own = module.rpartition("/")[0]
    assert own in BELOW, f"{own} is a new storey: say what it may import"
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    of_the_layer = [name for name in imported if name.startswith(NAME)]
    assert NAME not in of_the_layer, "the package imports all strategies"
    assert {storey_of(name) for name in of_the_layer} <= BELOW[own] | {own, ""}
