"""Tensors are made of the type and on the device that the code means, whatever torch's defaults are in a process."""

from __future__ import annotations

import ast
from pathlib import Path

import ascend_sample

PACKAGE = Path(ascend_sample.__file__).parent
PARTS = ("sampling", "decoding", "integrations")
GRAPHS = "onnx"
"""What is exported there is traced, on the CPU, by a process of its own."""
FLOATS = {"empty", "zeros", "ones", "full", "rand"}
FACTORIES = FLOATS | {"arange", "tensor", "scalar_tensor", "as_tensor", "linspace", "eye"}


def test_factories_name_type_and_device() -> None:
    found, missing = 0, []
    for file in (path for part in PARTS for path in sorted((PACKAGE / part).rglob("*.py")) if GRAPHS not in path.parts):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).partition("torch.")[2] not in FACTORIES:
                continue
            name, given = ast.unparse(node.func).removeprefix("torch."), {each.arg for each in node.keywords}
            wanted = {"device", "dtype"} if name in FLOATS else {"device"}
            found += 1
            missing += [f"{file}:{node.lineno}: {name} without {each}" for each in wanted - given]
    assert missing == []
    assert found > 100
