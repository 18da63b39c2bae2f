"""Tensors are made of the type and on the device that the code means, whatever torch's defaults are in a process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ascend_sample

PACKAGE = Path(ascend_sample.__file__).parent
PARTS = ("sampling", "decoding", "integrations")
GRAPHS = "onnx"
"""What is exported there is traced, on the CPU, by a process of its own."""
FLOATS = {"empty", "zeros", "ones", "full", "rand"}
FACTORIES = FLOATS | {"arange", "tensor", "scalar_tensor", "as_tensor", "linspace", "eye"}


def calls() -> Iterator[tuple[str, str, set[str | None]]]:
    """Each call of one of torch's factories: where it is, which, and the names of what it is given by name."""
    for part in PARTS:
        for file in sorted((PACKAGE / part).rglob("*.py")):
            if GRAPHS in file.parts:
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).partition("torch.")[2] in FACTORIES:
                    name = ast.unparse(node.func).removeprefix("torch.")
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}", name, {each.arg for each in node.keywords}


def test_factories_name_type_and_device() -> None:
    found = list(calls())
    assert len(found) > 100
    missing = [
        f"{place}: torch.{name} without {wanted}"
        for place, name, given in found
        for wanted, names in (("device", FACTORIES), ("dtype", FLOATS))
        if name in names and wanted not in given
    ]
    assert missing == []
