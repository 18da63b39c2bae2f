"""Keeps what was trained in a file, so that it is trained once."""

from __future__ import annotations

import fcntl
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def cache_directory(name: str) -> Path:
    """Returns where files of that name are kept: `.cache` of the repository, or the user's cache when not in one."""
    repository = Path(__file__).resolve().parents[1]
    if (repository / "pyproject.toml").is_file() and os.access(repository, os.W_OK):
        return repository / ".cache" / name
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "ascend_sample" / name


def load_or_make(path: Path, make: Callable[[], dict[str, Any]], again: bool = False) -> dict[str, Any]:
    """Returns what the file holds; makes and writes it where there is none, or none that can be read.

    Args:
        path: the file; its name should say what it was made from.
        make: returns tensors, numbers, texts, and dicts and lists of them.
        again: whether to make it although there is a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _exclusively(path):  # of several processes one makes it and the others wait
        if not again and path.is_file():
            try:
                found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            except (EOFError, RuntimeError, pickle.UnpicklingError) as error:  # a part of it is missing
                print(f"{path} cannot be read, and is made anew: {error}", file=sys.stderr)
            else:
                return found
        made = make()
        _write_atomically(made, path)
        return made


def _write_atomically(made: dict[str, Any], path: Path) -> None:
    """Writes beside `path` and renames, so that nobody ever reads half a file."""
    part = path.with_suffix(".part")
    try:
        torch.save(made, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _exclusively(path: Path) -> Iterator[None]:
    # Not opened for writing: what is kept can be read where nothing may be written.
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDONLY, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
