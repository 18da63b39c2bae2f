"""Imports go down alone, from what is called to what it is made of: those for type checkers too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import accumulate
from operator import or_
from pathlib import Path

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
LAYERS: dict[str, set[str]] = {
    "sampling": set(),
    "requests": {"sampling"},
    "decoding": {"sampling"},
    "integrations": {"sampling", "requests", "decoding"},
}
"""What each layer may import of the others."""
MODULES = [
    path.relative_to(ROOT).as_posix()
    for layer in BELOW
    for path in sorted((ROOT / layer).rglob("*.py"))
    if path != ROOT / layer / "__init__.py"
]


def storey_of(layer: str, inside: str) -> str:
    """The storey of a module, which is a folder or a file; what is in no folder of the decoding layer is shared."""
    return inside if inside in BELOW[layer] or layer == "sampling" else "shared"


def imported(module: str) -> Iterator[str]:
    """The modules that a module imports, wherever it does; a name that is none of its package's stands for the package.

    Those that only its types name count, as nobody understands one without the other.
    """
    for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            yield from (
                f"{package}.{alias.name}" if is_module(f"{package}.{alias.name}") else package for alias in node.names
            )


def is_module(name: str) -> bool:
    return any((ROOT.parent / f"{name.replace('.', '/')}{end}").is_file() for end in (".py", "/__init__.py"))


def test_no_modules_import_each_other() -> None:
    paths = {path.relative_to(ROOT.parent).with_suffix(""): path.relative_to(ROOT) for path in ROOT.rglob("*.py")}
    names = {".".join(path.parts).removesuffix(".__init__"): module for path, module in paths.items()}
    needed = {name: {*imported(module.as_posix())} & names.keys() - {name} for name, module in names.items()}
    TopologicalSorter(needed).prepare()  # raises CycleError, which names a circle


def test_layers_import_those_below() -> None:
    for layer, below in LAYERS.items():
        for path in (ROOT / layer).rglob("*.py"):
            module = path.relative_to(ROOT).as_posix()
            layers = {name.split(".")[1] for name in imported(module) if name.startswith("ascend_sample.")}
            assert layers & LAYERS.keys() <= below | {layer}, module


def test_imports_go_down() -> None:
    for module in MODULES:
        layer, inside, *_ = module.removesuffix(".py").split("/")
        own = storey_of(layer, inside)
        assert own in BELOW[layer], f"{own} is a new storey: say what it may import"
        package = f"ascend_sample.{layer}"
        names = [name for name in imported(module) if f"{name}.".startswith(f"{package}.")]
        assert package not in names, f"{module}: the package imports all that is called"
        storeys = {storey_of(layer, name.removeprefix(package).split(".")[1]) for name in names}
        assert storeys <= BELOW[layer][own] | {own}, module
