"""Lets an engine of SGLang do a job in a process of its own: ``python sglang_generating.py JOB RESULT``.

A job is a JSON file with the engine's options beside `OPTIONS`, and calls of `Engine.generate`; what they return is the
result. The processes that the engine starts import this file again, so that torchvision is there in each of them.
"""

from __future__ import annotations

import torchvision_without_cuda  # noqa: F401  isort: skip  before anything of SGLang

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

OPTIONS: Final[dict[str, Any]] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "disable_cuda_graph": True,
    "max_total_tokens": 8192,
    "skip_server_warmup": True,
    "log_level": "warning",
}


def generated(options: dict[str, Any], calls: list[dict[str, Any]]) -> list[Any]:
    """Returns what an engine answers to each call."""
    import sglang

    engine = sglang.Engine(model_path=os.environ["ENGINES_MODEL"], **OPTIONS | options)
    try:
        return [engine.generate(**call) for call in calls]
    finally:
        engine.shutdown()


if __name__ == "__main__":
    job, result = map(Path, sys.argv[1:])
    result.write_text(json.dumps(generated(**json.loads(job.read_text()))))
