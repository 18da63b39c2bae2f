"""What the commands have in common: what their options must be, asked before the work, and how they end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def end_of(command: Callable[[], int]) -> int:
    """Runs a command that prints.

    Returns:
        Its exit status, or that of a program that SIGPIPE ended, where nobody reads on what is printed.

    Raises:
        KeyboardInterrupt: it was interrupted. The process ends by that signal, and says no more than that.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # its caller has closed it
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115  for the rest of the process
    try:
        status = command()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        sys.tracebacklimit = 0  # it says nothing to whom it was that interrupted
        raise
    return status


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Returns the type of an option that is a whole number of at least ``low``, and at most ``high``.

    Example:
        >>> whole_number(1)("0")
        Traceback (most recent call last):
        ...
        argparse.ArgumentTypeError: must be at least 1, got 0
    """

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text[:60]!r}") from None
        if value < low or (high is not None and value > high):
            rule = f"be at least {low}" if high is None else f"be in [{low}, {high}]"
            raise argparse.ArgumentTypeError(f"must {rule}, got {text[:60]}")
        return value

    return convert


def file_to_write(text: str) -> Path:
    """Serves as the type of an option that names a file that the command writes at its end.

    Example:
        >>> file_to_write("no/such/folder/file")
        Traceback (most recent call last):
        ...
        argparse.ArgumentTypeError: must name a file in a folder that exists, got 'no/such/folder/file'
    """
    rule = rule_broken_by_file(text)
    if rule is not None:
        raise argparse.ArgumentTypeError(f"must {rule}, got {text!r}")
    return Path(text)


def rule_broken_by_file(path: str) -> str | None:
    """Returns what a file's name must do and does not, beginning with a verb; None where the file can be written.

    It is opened, as permissions are not all that counts, and left as it was: one that was not there is removed again.
    """
    if not path or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or os.curdir):
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
