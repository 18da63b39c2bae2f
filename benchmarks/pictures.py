"""The pictures of a run: what docs/performance.md shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # the backend is chosen first
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import cases, gates
from benchmarks.cases import BY_BATCH, BY_K, BY_VOCABULARY, GRID
from benchmarks.gates import Record, median
from benchmarks.report import Run

DOTS_PER_INCH = 100
COLOURS = {
    cases.OPERATOR: "#2b8a5a",
    cases.FLOOR: "#6b7280",
    cases.TORCH_TOPK: "#2f6fb2",
    cases.CANDIDATES: "#b9770e",
    cases.VLLM: "#c0392b",
    cases.TRANSFORMERS: "#8e44ad",
    cases.ARGPARTITION: "#d98880",
    cases.REFERENCE: "#a0a0a0",
}
_MICRO = 1e6


def _curve(axes: Axes, records: list[Record], along: str) -> None:
    """Time of every contestant against one parameter, with a band between the quartiles."""
    records = sorted(records, key=lambda record: record[along])
    for name in cases.EVERYTHING:
        points = [(record[along], record["results"][name]) for record in records if name in record["results"]]
        if not points:
            continue
        places = [place for place, _ in points]
        style = "--" if name == cases.FLOOR else "-"
        medians = [result["median"] * _MICRO for _, result in points]
        axes.plot(places, medians, style, color=COLOURS[name], label=name, marker="o", markersize=3)
        lower, upper = ([result[f"{end}_quartile"] * _MICRO for _, result in points] for end in ("lower", "upper"))
        axes.fill_between(places, lower, upper, color=COLOURS[name], alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, which="major")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{records[0]['case']}, {records[0]['dtype']}, {records[0]['cache']}", fontsize=10)


def _curves(run: Run, section: str, along: str, label: str) -> Figure | None:
    """One panel for each case of a section."""
    cells = [record for record in run["records"] if record["section"] == section]
    groups = (
        [cells]
        if along == "k"
        else [
            [cell for cell in cells if cell["case"] == name] for name in dict.fromkeys(cell["case"] for cell in cells)
        ]
    )
    if not cells:
        return None
    figure, panels = pyplot.subplots(
        1, len(groups), figsize=(4.6 * len(groups), 3.9), layout="constrained", squeeze=False
    )
    for axes, group in zip(panels[0], groups, strict=True):
        _curve(axes, group, along)
        axes.set_xlabel(label)
    if along == "k":
        panels[0][0].set_title(f"p=0.9, {cells[0]['dtype']}, {cells[0]['cache']}", fontsize=10)
    panels[0][0].set_ylabel("microseconds a call (log)")
    panels[0][0].legend(frameon=False, fontsize=8)
    return figure


def _by_vocabulary(run: Run) -> Figure | None:
    return _curves(run, BY_VOCABULARY, "vocab_size", "vocabulary (batch of 8)")


def _by_batch(run: Run) -> Figure | None:
    return _curves(run, BY_BATCH, "batch_size", f"batch (vocabulary of {gates.LARGE_VOCABULARY})")


def _by_k(run: Run) -> Figure | None:
    return _curves(run, BY_K, "k", f"k (batch of 64, vocabulary of {gates.LARGE_VOCABULARY})")


def _peers(run: Run) -> Figure | None:
    """All contestants at the usual shape, as bars."""
    wanted = (GRID, gates.LARGE_VOCABULARY, 64, "bfloat16", "warm")
    keys = ("section", "vocab_size", "batch_size", "dtype", "cache")
    cells = [
        record
        for record in run["records"]
        if tuple(record[key] for key in keys) == wanted and cases.VLLM in record["results"]
    ]
    if not cells:
        return None
    names = [name for name in cases.EVERYTHING if any(name in cell["results"] for cell in cells)]
    figure, axes = pyplot.subplots(figsize=(9.2, 4.2), layout="constrained")
    width = 0.86 / len(names)
    for number, name in enumerate(names):
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(cells))]
        heights = {
            place: median(cell, name) * 1e3
            for place, cell in zip(places, cells, strict=True)
            if name in cell["results"]
        }
        axes.bar(list(heights), list(heights.values()), width=width, color=COLOURS[name], label=name)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds a call (log)")
    axes.set_xticks(range(len(cells)), [cell["case"].replace(", ", ",\n", 1) for cell in cells], fontsize=8)
    axes.set_title(f"[64, {gates.LARGE_VOCABULARY}] bfloat16, warm, two threads", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, axis="y")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.06))
    return figure


PICTURES: dict[str, tuple[str, Callable[[Run], Figure | None]]] = {
    "peers.png": ("Time of a call for every contestant, case by case", _peers),
    "by_vocabulary.png": ("Time of a call against the size of the vocabulary", _by_vocabulary),
    "by_batch.png": ("Time of a call against the size of the batch", _by_batch),
    "by_k.png": ("Time of a call against k", _by_k),
}


def draw(run: Run, folder: Path) -> list[str]:
    """Draws every picture that the run has figures for; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (_, make) in PICTURES.items():
        figure = make(run)
        if figure is not None:
            figure.savefig(folder / name, dpi=DOTS_PER_INCH, metadata={"Software": None})
            pyplot.close(figure)
            drawn.append(name)
    return drawn


def links(names: list[str], folder: str) -> list[str]:
    """Lines of Markdown that show pictures."""
    return [f"![{PICTURES[name][0]}]({folder}/{name})" for name in names]
