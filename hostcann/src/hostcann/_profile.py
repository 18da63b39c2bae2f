"""What a program asks of the device: launches, bytes, copies, waits and memory, by operator and by line."""

from __future__ import annotations

import functools
import json
import linecache
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hostcann import _lines
from hostcann._control import load_runtime
from hostcann._errors import check_number

LAUNCH_US: Final = 8.0
"""What the host pays for a launch, in microseconds, unless another number is given."""
BANDWIDTH_GBS: Final = 1200.0
"""Bytes of device memory in a nanosecond, unless another number is given."""
NO_LINE: Final = "(other threads)"
_SHOWN_SOURCE: Final = 44  # characters


@dataclass(frozen=True)
class Activity:
    """What one line of the program asked for, of one kind and name.

    Attributes:
        file, line: the line; "" and 0 for what no line of Python asked for.
        kind: "launch", "copy", "fill" (a memset), "wait", "replay" (of a graph), "replayed" (a kernel by a replay).
        name: the operator, the direction of the copy, or what was waited for.
        count: how often.
        read, written: bytes of device memory that kernels, copies inside it and fills touch.
        copied: bytes of copies.
        memory: the most bytes that tensors held then, with the workspace of the launch.
    """

    file: str
    line: int
    kind: str
    name: str
    count: int
    read: int
    written: int
    copied: int
    memory: int

    @property
    def operator(self) -> str:
        """Returns the row of the table by operator that it belongs to."""
        return {"copy": f"copy {self.name}", "wait": f"wait for {self.name}"}.get(self.kind, self.name)

    @property
    def place(self) -> str:
        """Returns the row of the table by line that it belongs to."""
        return f"{self.file}:{self.line}" if self.file else NO_LINE


class Collective(NamedTuple):
    """What this process gave to and got from the collectives of one name."""

    calls: int
    sent: int  # bytes of the buffers that were handed over to be sent
    received: int  # bytes of those to be filled


class Totals(NamedTuple):
    """Sums of activities; the largest of their memory."""

    launches: int
    replays: int
    read: int
    written: int
    copies: int
    copied: int
    waits: int
    peak_memory: int

    @classmethod
    def of(cls, activities: Iterable[Activity]) -> Totals:
        """Sums activities up."""
        every = list(activities)

        def count(kind: str) -> int:
            return sum(activity.count for activity in every if activity.kind == kind)

        return cls(
            launches=count("launch"),
            replays=count("replay"),
            read=sum(activity.read for activity in every),
            written=sum(activity.written for activity in every),
            copies=count("copy"),
            copied=sum(activity.copied for activity in every),
            waits=count("wait"),
            peak_memory=max((activity.memory for activity in every), default=0),
        )

    def modelled_us(self, launch_us: float = LAUNCH_US, bandwidth_gbs: float = BANDWIDTH_GBS) -> float:
        """Returns launches and replays times their cost, plus bytes over the bandwidth: a model, no measurement.

        Example:
            >>> Totals(3, 0, 900_000, 300_000, 1, 64, 1, 4096).modelled_us(launch_us=8, bandwidth_gbs=1200)
            25.0
        """
        return (self.launches + self.replays) * launch_us + (self.read + self.written) / (bandwidth_gbs * 1e3)


class Profile:
    """What was asked of the device, inside `profile()` or in a whole program.

    Inside the block it has what was counted so far. Printing it shows the table of the command line.
    """

    def __init__(self, read: Callable[[], list[Activity]]) -> None:
        self._read = read

    @classmethod
    def of_reports(cls, *reports: dict[str, Any]) -> Profile:
        """Returns what processes have asked for together, as their HOSTCANN_REPORT files say it."""
        activities = [Activity(**entry) for report in reports for entry in report["activities"]]
        return cls(lambda: activities)

    @property
    def activities(self) -> list[Activity]:
        """Returns everything, as hostcann counted it."""
        return self._read()

    @property
    def launches(self) -> dict[str, int]:
        """Returns how often each operator was launched; what a graph captures is no launch."""
        return self._sums("launch")

    @property
    def synchronizations(self) -> dict[str, int]:
        """Returns how often the host waited, by kind.

        "stream", "device", "event", "memcpy" (a blocking copy or fill) and "pageable_memcpy" (an asynchronous copy of
        memory that is not pinned, which blocks).
        """
        return self._sums("wait")

    @property
    def copies(self) -> dict[str, int]:
        """Returns how many copies there were, by direction: "h2d", "d2h", "d2d", "h2h"."""
        return self._sums("copy")

    @property
    def copied_bytes(self) -> dict[str, int]:
        """Returns the bytes of the copies, by direction."""
        return self._sums("copy", "copied")

    @property
    def collectives(self) -> dict[str, Collective]:
        """Returns the collectives of HCCL by name, such as "HcclAllReduce", those of replayed graphs with them."""
        return {
            name: Collective(
                sum(activity.count for activity in self.activities if activity.operator == name),
                totals.read,
                totals.written,
            )
            for name, totals in self.by_operator.items()
            if name.startswith("Hccl")
        }

    @property
    def replays(self) -> int:
        """Returns how often graphs were replayed."""
        return self.totals.replays

    @property
    def totals(self) -> Totals:
        """Returns the sums of all."""
        return Totals.of(self.activities)

    @property
    def by_operator(self) -> dict[str, Totals]:
        """Returns the sums by operator, direction of copies and kind of waits."""
        return self._grouped(lambda activity: activity.operator)

    @property
    def by_line(self) -> dict[str, Totals]:
        """Returns the sums by line of the program, "file:line": the innermost that is of no installed library."""
        return self._grouped(lambda activity: activity.place)

    def _sums(self, kind: str, field: str = "count") -> dict[str, int]:
        sums: dict[str, int] = {}
        for activity in self.activities:
            if activity.kind == kind:
                sums[activity.name] = sums.get(activity.name, 0) + getattr(activity, field)
        return dict(sorted(sums.items()))

    def _grouped(self, key: Callable[[Activity], str]) -> dict[str, Totals]:
        groups: dict[str, list[Activity]] = {}
        for activity in self.activities:
            groups.setdefault(key(activity), []).append(activity)
        return {name: Totals.of(groups[name]) for name in sorted(groups)}

    def as_json(self, launch_us: float = LAUNCH_US, bandwidth_gbs: float = BANDWIDTH_GBS) -> dict[str, Any]:
        """Returns what `table` shows, in numbers."""
        _check_model("Profile.as_json", launch_us, bandwidth_gbs)

        def row(totals: Totals) -> dict[str, float]:
            return {**totals._asdict(), "modelled_us": totals.modelled_us(launch_us, bandwidth_gbs)}

        return {
            "model": {"launch_us": launch_us, "bandwidth_gbs": bandwidth_gbs},
            "totals": row(self.totals),
            "launches": self.launches,
            "copies": self.copies,
            "copied_bytes": self.copied_bytes,
            "synchronizations": self.synchronizations,
            "collectives": {name: collective._asdict() for name, collective in self.collectives.items()},
            "by_operator": {name: row(totals) for name, totals in self.by_operator.items()},
            "by_line": {name: row(totals) for name, totals in self.by_line.items()},
        }

    def table(self, launch_us: float = LAUNCH_US, bandwidth_gbs: float = BANDWIDTH_GBS) -> str:
        """Returns the whole as text: totals, operators and lines, those first that the model finds dearest."""
        _check_model("Profile.table", launch_us, bandwidth_gbs)
        totals = self.totals
        moved = show_bytes(totals.read + totals.written)
        copies = [f"{count} {name} ({show_bytes(self.copied_bytes[name])})" for name, count in self.copies.items()]
        waits = [f"{count} {name}" for name, count in self.synchronizations.items()]
        collectives = [
            f"{each.calls} {name} ({show_bytes(each.sent)} sent, {show_bytes(each.received)} received)"
            for name, each in self.collectives.items()
        ]
        lines = [
            f"launches        {totals.launches}",
            f"replays         {totals.replays}",
            f"device memory   {show_bytes(totals.read)} read, {show_bytes(totals.written)} written",
            f"copies          {', '.join(copies) or 'none'}",
            f"waits           {', '.join(waits) or 'none'}",
            *([f"collectives     {', '.join(collectives)}"] if collectives else []),
            f"peak memory     {show_bytes(totals.peak_memory)}",
            f"modelled time   {totals.modelled_us(launch_us, bandwidth_gbs):.1f} us ="
            f" {totals.launches + totals.replays} x {launch_us:g} us + {moved} / {bandwidth_gbs:g} GB/s",
            "                a model of the two numbers given, not a measurement of any hardware",
        ]

        def section(title: str, groups: dict[str, Totals], remark: Callable[[str], str]) -> None:
            cost = {name: group.modelled_us(launch_us, bandwidth_gbs) for name, group in groups.items()}
            names = sorted(groups, key=lambda name: (-cost[name], -groups[name].waits, name))
            rows: list[tuple[str, ...]] = [(title, *_COLUMNS, "")]
            rows += [(name, *_cells(groups[name]), f"{cost[name]:.1f}", remark(name)) for name in names]
            widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
            for name, *cells, source in rows:
                numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
                lines.append(f"{name:<{widths[0]}}{numbers}  {source}".rstrip())

        lines.append("")
        section("by operator", self.by_operator, lambda name: "")
        lines.append("")
        by_line = self.by_line
        section("by line", {_shorten(name, by_line): group for name, group in by_line.items()}, _source)
        return "\n".join(lines)

    def __str__(self) -> str:
        """Shows the table, with the default numbers of the model."""
        return self.table()


_COLUMNS: Final = ("launches", "read", "written", "copies", "copied", "waits", "peak", "modelled us")


def _cells(totals: Totals) -> tuple[str, ...]:
    cells = (
        str(totals.launches),
        show_bytes(totals.read),
        show_bytes(totals.written),
        str(totals.copies),
        show_bytes(totals.copied),
        str(totals.waits),
        show_bytes(totals.peak_memory),
    )
    return tuple("-" if cell in ("0", "0 B") else cell for cell in cells)


def show_bytes(count: int) -> str:
    """Returns a number of bytes in the largest unit that it fills.

    Example:
        >>> show_bytes(1023), show_bytes(1536), show_bytes(3 << 20)
        ('1023 B', '1.5 KiB', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    value, units = float(count), iter(("KiB", "MiB", "GiB", "TiB"))
    unit = ""
    while value >= 1024 and (following := next(units, "")):
        value, unit = value / 1024, following
    return f"{value:.1f} {unit}"


def _shorten(place: str, places: Collection[str]) -> str:
    """Returns the place with its path from the working folder where it lies below it, and no other is called so."""
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # the program removed it: nothing lies below it
        return place
    short = place.removeprefix(here)
    return place if short in places else short


def _source(place: str) -> str:
    """Returns the text of a line, or its beginning."""
    file, _, number = place.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if file else ""
    return text if len(text) <= _SHOWN_SOURCE else text[: _SHOWN_SOURCE - 3] + "..."


def _check_model(owner: str, launch_us: object, bandwidth_gbs: object) -> None:
    """Raises unless the two numbers of the model can be."""
    check_number(owner, "launch_us", launch_us, low=0)
    check_number(owner, "bandwidth_gbs", bandwidth_gbs, low=0, above=True)


@functools.cache
def _install_lines() -> None:
    _lines.install(load_runtime())


def _drain() -> None:
    """Waits until torch_npu's task queue has launched what was called before; not for the device."""
    npu = getattr(sys.modules.get("torch"), "npu", None)
    if npu is not None and npu.is_initialized():
        _ = npu.current_stream().npu_stream


@contextmanager
def profile() -> Iterator[Profile]:
    """Counts what this process asks of the device inside the block.

    Blocks may lie in one another, and in a program that runs under `hostcann profile`; all
    threads are counted. Copies have a line with TASK_QUEUE_ENABLE=0 only: else torch_npu makes them on a thread of its
    own.

    Raises:
        RuntimeError: hostcann is not active.

    Example:
        >>> with hostcann.profile() as counted:  # doctest: +SKIP
        ...     y = x + x
        >>> counted.launches  # doctest: +SKIP
        {'aclnnAdd': 1}
    """
    runtime = load_runtime()
    _install_lines()
    _drain()
    number = runtime.hostcann_open_profile()
    counted = Profile(
        lambda: [Activity(**entry) for entry in json.loads(os.fsdecode(runtime.hostcann_profile(number)))]
    )
    try:
        try:
            yield counted
        finally:
            _drain()  # also what was called before the block raised
    finally:
        activities = counted.activities
        counted._read = lambda: activities
        runtime.hostcann_close_profile(number)
