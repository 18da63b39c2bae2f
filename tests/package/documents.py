"""Finds the documents of the project and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSLATED = {
    ROOT / f"{name}.zh-CN.md": ROOT / f"{name}.md"
    for name in (
        *("README", "docs/index", "docs/guides/quickstart", "docs/guides/serving", "docs/guides/without_an_npu"),
        "docs/guides/research",
    )
}
"""Documents in Chinese, and what they say in English."""
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "hostcann" / "README.md",
    *sorted((ROOT / "hostcann" / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*|{\w+})\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block: what it is (in braces, a directive of the site), and its text."""


def code_blocks(document: Path, language: str) -> list[str]:
    return [code for name, code in FENCE.findall(document.read_text()) if name == language]
