"""Plants a fault in a module that is imported already, for tests that must fail with it."""

from __future__ import annotations

import importlib
import inspect
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
import torch.utils._pytree

from tests.mutation.mutants import read_faults


class Trap(NamedTuple):
    """A mistake that a faithful copy of the source documents makes, and the check that notices it.

    Attributes:
        name: what goes wrong.
        module: where it is planted.
        right: the text of the module, which occurs once.
        wrong: what replaces it.
        check: raises when the fault is there, and only then.
    """

    name: str
    module: ModuleType
    right: str
    wrong: str
    check: Callable[[], None]


def assert_caught(trap: Trap) -> None:
    """The check passes as things are, and fails with the fault planted."""
    trap.check()
    noticed = (Exception, pytest.fail.Exception)  # a crash counts too; pytest.raises fails with the latter
    with planted(trap.module, trap.right, trap.wrong), pytest.raises(noticed):
        trap.check()


def noticed(traps: Sequence[Trap]) -> Callable[[Trap], None]:
    """Returns the test of a module that each of its faults is caught."""

    @pytest.mark.parametrize("trap", traps, ids=lambda trap: trap.name)
    def test_trap(trap: Trap) -> None:
        assert_caught(trap)

    return test_trap


def faults_beside(test_file: str) -> dict[str, tuple[ModuleType, str, str]]:
    """Returns the faults that lie beside a test in a .toml of its name: by their names, what `planted` takes."""
    return {
        fault.name: (importlib.import_module(fault.file.removesuffix(".py").replace("/", ".")), fault.old, fault.new)
        for fault in read_faults(Path(test_file).with_suffix(".toml"))
    }


def caught(test_file: str, check: Callable[[str], None]) -> Callable[[str | None, str], None]:
    """Returns the test of a module that a check of a device passes without a fault, and fails with each beside it."""
    faults = faults_beside(test_file)

    @pytest.mark.parametrize("fault", [None, *faults])
    def test_fault(fault: str | None, npu: str) -> None:
        if fault is None:
            check(npu)
            return
        with planted(*faults[fault]), pytest.raises(AssertionError):
            check(npu)

    return test_fault


@contextmanager
def planted(module: ModuleType, right: str, wrong: str) -> Iterator[None]:
    """Run with right replaced by wrong in a module's functions and methods, wherever these were imported to."""
    source = inspect.getsource(module)
    if source.count(right) != 1:
        raise ValueError(f"planted: right must occur once in {module.__name__}, got {source.count(right)}: {right!r}.")
    changed: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
    # The copy's classes must not take the names of the module's, by which exported programs find them again.
    with unittest.mock.patch.object(torch.utils._pytree, "_register_namedtuple"):
        exec(compile(source.replace(right, wrong), str(module.__file__), "exec"), changed)
    before = {function: function.__code__ for function in _functions(vars(module), module.__name__).values()}
    after = _functions(changed, module.__name__)
    differs = False
    try:
        for name, function in _functions(vars(module), module.__name__).items():
            differs |= function.__code__.co_code != after[name].__code__.co_code
            differs |= function.__code__.co_consts != after[name].__code__.co_consts
            differs |= function.__code__.co_names != after[name].__code__.co_names
            function.__code__ = after[name].__code__
        if not differs:
            raise ValueError(f"planted: {wrong!r} must change a function of {module.__name__}; it changed none.")
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def _functions(namespace: dict[str, Any], module: str) -> dict[str, FunctionType]:
    """The functions and methods that a namespace of a module defines, by their qualified names."""
    found: dict[str, FunctionType] = {}
    for value in namespace.values():
        members = [value]
        if isinstance(value, type) and value.__module__ == module:
            members = [getattr(member, "fget", getattr(member, "__func__", member)) for member in vars(value).values()]
        for member in members:
            function = inspect.unwrap(member) if callable(member) else member
            if isinstance(function, FunctionType) and function.__module__ == module:
                found[function.__qualname__] = function
    return found
