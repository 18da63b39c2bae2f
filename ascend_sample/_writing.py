"""Files that commands are to write: whether that can be is asked before the work whose results they are for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def broken_rule(path: str | Path) -> str | None:
    """Returns what a file's name must do and does not, beginning with a verb; None where the file can be written.

    It is opened, as permissions are not all that counts, and left as it was: one that was not there is removed again.
    """
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or os.curdir):
        return "name a file in a folder that exists"
    is_new = not os.path.lexists(path)
    if not is_new and not os.path.isfile(path):
        return None  # a pipe, say: opening it would wait for a reader
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.remove(path)
    except OSError as error:
        return f"name a file that can be written ({error.strerror})"
    return None


def file_to_write(text: str) -> Path:
    """Serves as the type of an option.

    Raises:
        ArgumentTypeError: the file cannot be written.

    Example:
        >>> file_to_write("no/such/folder/file")
        Traceback (most recent call last):
        ...
        argparse.ArgumentTypeError: must name a file in a folder that exists, got 'no/such/folder/file'
    """
    rule = "name a file in a folder that exists" if not text else broken_rule(text)
    if rule is not None:
        raise argparse.ArgumentTypeError(f"must {rule}, got {text!r}")
    return Path(text)
