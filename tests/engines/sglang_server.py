"""SGLang's OpenAI-compatible server with the options of its own command line, in this environment.

The processes that it starts import this file again, so that torchvision is there in each of them.
"""

from __future__ import annotations

import torchvision_without_cuda  # noqa: F401  isort: skip  before anything of SGLang

import runpy

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
