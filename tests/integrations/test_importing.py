"""Changes to modules, made when an engine imports them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ascend_sample.integrations import vllm
from ascend_sample.integrations._importing import when_imported

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module that can be imported, and is forgotten behind the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = set()

    def write_module(name: str, text: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        written.add(name.partition(".")[0])

    yield write_module
    for name in [name for name in sys.modules if name.partition(".")[0] in written]:
        del sys.modules[name]


def test_whoever_imports_a_name_gets_the_changed_one(write: Write) -> None:
    write("engine_functions", "def draw(): return 'its own'\n")
    write("engine_step", "from engine_functions import draw\n")
    seen = []
    when_imported("engine_functions", lambda module: setattr(module, "draw", lambda: "here"))
    when_imported("engine_functions", lambda module: seen.append(module.draw()))
    assert "engine_functions" not in sys.modules
    assert importlib.import_module("engine_step").draw() == "here"
    assert seen == ["here"]
    assert importlib.import_module("engine_functions").__spec__.loader.get_source("engine_functions")
    del sys.modules["engine_functions"]
    assert importlib.import_module("engine_functions").draw() == "its own"


def test_what_is_there_is_changed_at_once_and_once(write: Write) -> None:
    write("engine_functions", "")
    changed: list[ModuleType] = []
    module = importlib.import_module("engine_functions")
    when_imported("engine_functions", changed.append)
    assert changed == [module]
    del sys.modules["engine_functions"]
    assert importlib.import_module("engine_functions") is not module
    assert changed == [module]


def test_a_module_that_cannot_be_imported_is_waited_for(write: Write) -> None:
    changed: list[ModuleType] = []
    when_imported("engine_of_late", changed.append)
    with pytest.raises(ModuleNotFoundError, match="engine_of_late"):
        importlib.import_module("engine_of_late")
    write("engine_of_late", "raise OSError('no device')\n")
    with pytest.raises(OSError, match="no device"):
        importlib.import_module("engine_of_late")
    assert not changed
    write("engine_of_late", "device = 'the first of all'\n")
    assert changed == [importlib.import_module("engine_of_late")]


def test_an_error_of_a_change_is_not_hidden(write: Write) -> None:
    write("engine_functions", "")
    when_imported("engine_functions", lambda module: module.of_another_version)
    with pytest.raises(AttributeError, match="of_another_version"):
        importlib.import_module("engine_functions")
    assert "engine_functions" not in sys.modules


def test_vllms_plugin_imports_nothing_of_it(write: Write) -> None:
    write("vllm.__init__", f"__version__ = {vllm.TESTED_VERSIONS[0]!r}\n")
    write("vllm.v1.sample.ops.topk_topp_sampler", "class TopKTopPSampler: pass\n")
    write("vllm.v1.sample.sampler", "from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler\n")
    before = set(sys.modules)
    vllm.register()
    vllm.register()
    assert {name for name in set(sys.modules) - before if name.startswith("vllm")} == {"vllm"}
    sampler = importlib.import_module("vllm.v1.sample.sampler").TopKTopPSampler
    assert sampler.replaced.__name__ == "TopKTopPSampler"
    assert not hasattr(sampler.replaced, "replaced")
