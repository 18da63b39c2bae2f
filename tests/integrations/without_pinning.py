"""vLLM pins memory wherever it copies to an accelerator, and there is none to pin for."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def do_without_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch make ordinary memory where pinned memory is asked for, for one test."""

    def without(make: Any) -> Any:
        return lambda *sizes, **named: make(*sizes, **(named | {"pin_memory": False}))

    for name in ("zeros", "ones", "empty", "tensor"):
        monkeypatch.setattr(torch, name, without(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
