"""Finds the documents of the project and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSLATED = {ROOT / "README.zh-CN.md": ROOT / "README.md"}
"""Documents in Chinese, and what they say in English."""
DOCUMENTS = [
    ROOT / "README.md",
    *TRANSLATED,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(document: Path, language: str) -> list[str]:
    return [code for name, code in FENCE.findall(document.read_text()) if name == language]
