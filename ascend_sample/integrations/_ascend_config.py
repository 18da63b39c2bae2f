"""The configuration of vllm_ascend."""

from __future__ import annotations

import importlib
from typing import Any


def ascend_config(kind: type[Any]) -> Any:
    """Returns vllm_ascend's configuration for a class of its own; None for another one."""
    if not kind.__module__.startswith("vllm_ascend"):
        return None
    return importlib.import_module("vllm_ascend.ascend_config").get_ascend_config()
