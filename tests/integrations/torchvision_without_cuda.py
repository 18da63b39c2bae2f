"""Lets torchvision be imported without its compiled operators, which are linked with CUDA in the wheels of PyPI.

SGLang's sampler imports it through image processing; no operator of it is called here. torchvision describes the
operators to torch when it is imported, which fails for operators that do not exist, so they are declared first.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch

_found = importlib.util.find_spec("torchvision")
LIBRARY = torch.library.Library("torchvision", "DEF")
if _found is not None and _found.origin is not None:
    _described = Path(_found.origin).with_name("_meta_registrations.py").read_text()
    for _name in sorted(set(re.findall(r'(?:register_meta\("|torchvision::)(\w+)"', _described))):
        LIBRARY.define(f"{_name}() -> ()")
