"""Draws every picture of the documentation: `make pictures`.

python docs/pictures/make.py [FOLDER]

The numbers in a picture are computed by the package when it is drawn. The same versions of matplotlib and of the
package give the same files; `tests/package/test_docs.py` draws them again and compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

from ascend_sample.reference import top_k_top_p_sample_trace

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN

matplotlib.use("Agg")

from matplotlib import pyplot  # the backend is chosen first
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK = "#1f2937"
MUTED = "#6b7280"
PYTHON = ("#e8f1fb", "#2f6fb2")  # fill, edge
COMPILED = ("#e7f6ee", "#2b8a5a")
FOREIGN = ("#fdf3e1", "#b9770e")
EMULATED = ("#fdeaea", "#c0392b")
SPECIFICATION = ("#f0ecfa", "#6b4fb3")

DOTS_PER_INCH = 110
FLATTENING = Path(__file__).parents[1] / "flattening.json"  # written by examples/flattening.py
BEAM_TREE = Path(__file__).parents[1] / "beam_tree.json"  # written by examples/strategies.py
DECODING_SPEED = Path(__file__).parents[1] / "decoding_speed.json"  # written by benchmarks/decoding_docs.py

Colours = tuple[str, str]
Point = tuple[float, float]


class Diagram:
    """Boxes and arrows on a canvas whose unit is a hundredth of an inch; y grows downwards."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width / 100, height / 100))
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.axes.axis("off")

    def box(
        self, x: float, y: float, width: float, height: float, title: str, text: str = "", colours: Colours = PYTHON
    ) -> None:
        """Draws a box with a title and, below it, smaller text."""
        fill, edge = colours
        style = "round,pad=0,rounding_size=8"
        self.axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=fill, ec=edge, lw=1.4))
        middle = x + width / 2
        if not text:
            self.text(middle, y + height / 2, title, size=10, weight="bold")
            return
        self.text(middle, y + 19, title, size=10, weight="bold")
        self.text(middle, y + 32 + (height - 38) / 2, text, size=8.6, linespacing=1.45)

    def text(self, x: float, y: float, text: str, **style: object) -> None:
        """Writes centred text, unless the style says otherwise."""
        self.axes.text(x, y, text, **({"ha": "center", "va": "center", "color": INK} | style))

    def arrow(self, start: Point, end: Point, label: str = "", dashed: bool = False, label_at: Point = (0, 0)) -> None:
        """Draws an arrow, with a label beside its middle."""
        line = "--" if dashed else "-"
        self.axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=11, lw=1.2, ls=line, color=MUTED, shrinkA=0, shrinkB=0
            )
        )
        if label:
            middle = ((start[0] + end[0]) / 2 + label_at[0], (start[1] + end[1]) / 2 + label_at[1])
            self.text(*middle, label, size=8.2, color=MUTED, ha="left")

    def band(self, y: float, height: float, width: float, label: str, colour: str) -> None:
        """Draws a tinted band across the canvas, named at its left end."""
        self.axes.axhspan(y, y + height, color=colour, alpha=0.10, lw=0)
        self.text(14, y + height / 2, label, rotation=90, size=8.6, color=colour, weight="bold")


def draw_overview() -> Figure:
    """The README's picture: what runs where, and where the emulation begins."""
    diagram = Diagram(860, 372)
    diagram.box(230, 14, 430, 50, "ascend_sample.top_k_top_p_sample(logits, k, p, q)", colours=SPECIFICATION)
    diagram.arrow((330, 64), (180, 96), "CPU tensors", label_at=(-92, -6))
    diagram.arrow((445, 64), (445, 96), "NPU tensors", label_at=(8, 0))
    diagram.arrow((560, 64), (715, 96), "any other device", label_at=(22, -6))

    diagram.box(40, 98, 240, 62, "CPU kernel", "C++, rows in parallel", COMPILED)
    diagram.box(325, 98, 240, 62, "NPU binding", "C++: the two calls of the operator", COMPILED)
    diagram.box(610, 98, 220, 62, "composite", "vectorised torch operators", COMPILED)

    diagram.arrow((445, 160), (445, 184))
    diagram.box(325, 186, 240, 62, "torch_npu, the real one", "allocator, streams, task queue", FOREIGN)

    diagram.axes.plot([40, 830], [270, 270], ls=(0, (5, 4)), lw=1.2, color=MUTED)
    diagram.text(40, 261, "here CANN's interfaces begin", size=8.6, color=MUTED, ha="left", va="bottom")
    diagram.arrow((395, 248), (240, 296), "on an Atlas A2 or A3", label_at=(-180, 10))
    diagram.arrow((495, 248), (650, 296), "everywhere else", label_at=(78, 10))
    diagram.box(105, 298, 270, 60, "CANN and an NPU", "never run by this project", FOREIGN)
    diagram.box(515, 298, 270, 60, "hostcann", "CANN's interfaces, emulated on the host", EMULATED)
    return diagram.figure


def draw_layers() -> Figure:
    """Hostcann's picture: what torch_npu is linked to and what it opens, and what stands in its place."""
    diagram = Diagram(860, 330)
    diagram.box(280, 12, 300, 50, "your program, torch", colours=PYTHON)
    diagram.arrow((430, 62), (430, 84))
    diagram.box(180, 86, 500, 58, "torch_npu, the real wheel", "allocator, task queue, graphs, process group", FOREIGN)
    diagram.axes.plot([30, 830], [172, 172], ls=(0, (5, 4)), lw=1.2, color=MUTED)
    diagram.text(30, 164, "CANN's C interface", size=8.6, color=MUTED, ha="left", va="bottom")
    libraries = (
        (30, 190, "libascendcl.so", "memory, streams, events,\ngraphs, errors", "linked"),
        (232, 190, "libhccl.so", "collectives between\nprocesses", "linked"),
        (434, 190, "libopapi(_math).so", "aclTensor, executors,\nATen's CPU kernels", "opened"),
        (636, 190, "libcust_opapi.so", "your operators, and\nother vendors'", "opened first"),
    )
    for x, width, title, text, how in libraries:
        diagram.arrow((min(max(x + width / 2, 190), 670), 144), (x + width / 2, 206), how, label_at=(6, 8))
        diagram.box(x, 208, width, 78, title, text, EMULATED)
    diagram.text(430, 308, "hostcann's home folder stands where CANN's installation would", size=8.6)
    return diagram.figure


def draw_walk() -> Figure:
    """The way of a call through the files, and the two threads of a call on an NPU."""
    diagram = Diagram(960, 690)
    diagram.box(330, 14, 300, 58, "ops.py", "the public function", PYTHON)
    diagram.arrow((480, 72), (480, 98))
    diagram.box(330, 100, 300, 58, "_validate.py", "scalars, None and dtypes of k and p", PYTHON)
    diagram.arrow((480, 158), (480, 184))
    diagram.box(330, 186, 300, 58, "backend.py", "a forced backend, or the dispatcher", PYTHON)

    diagram.arrow((330, 215), (232, 215), dashed=True)
    diagram.text(281, 203, "forced", size=8.2, color=MUTED)
    diagram.box(30, 174, 200, 84, "reference.py", "the specification in code,\nrow by row", SPECIFICATION)
    diagram.arrow((630, 215), (728, 215), dashed=True)
    diagram.text(679, 203, "forced", size=8.2, color=MUTED)
    diagram.box(730, 174, 200, 84, "npu/aclnn_cffi.py", "the same operator, with\nno compiled binding", PYTHON)

    diagram.arrow((480, 244), (480, 270))
    operator = "ascend_sample::top_k_top_p_sample"
    diagram.box(230, 272, 500, 58, f"dispatcher: {operator}", "schema in csrc/library.cpp", FOREIGN)

    kernels = (
        (30, 170, "CPU", "csrc/cpu/\nrows in parallel", COMPILED),
        (212, 170, "Meta (fake)", "csrc/library.cpp\nshapes only", COMPILED),
        (394, 170, "Autograd", "csrc/autograd.cpp\n“not implemented”", COMPILED),
        (576, 170, "composite", "csrc/composite.cpp\nany other device", COMPILED),
        (758, 172, "PrivateUse1 (NPU)", "csrc/npu/\naclnn, two phases", COMPILED),
    )
    for x, width, title, text, colours in kernels:
        middle = x + width / 2
        diagram.arrow((min(max(middle, 260), 700), 330), (middle, 362))
        diagram.box(x, 364, width, 76, title, text, colours)
    diagram.text(210, 459, "one set of checks for all: csrc/checks.cpp", size=8.6)
    diagram.axes.plot([800, 800, 661], [440, 458, 458], ls="--", lw=1.2, color=MUTED)
    diagram.arrow((661, 458), (661, 441), dashed=True)
    diagram.text(651, 459, "float32, other SoC, missing symbol", size=8.2, color=MUTED, ha="right")

    diagram.axes.plot([875, 875, 120], [440, 488, 488], lw=1.2, color=MUTED)
    diagram.arrow((120, 488), (120, 517))
    diagram.text(132, 502, "a call on an NPU, in time", size=8.6, color=MUTED, ha="left")
    steps = (
        (30, 178, "phase 1", "GetWorkspaceSize: CANN\nchecks, plans; status here", COMPILED),
        (221, 160, "workspace", "from torch_npu's\ncaching allocator", FOREIGN),
        (394, 170, "task queue", "RunOpApiV2: in order\nwith all operators", FOREIGN),
        (577, 170, "phase 2", "launch, on the queue's\nthread; status checked", COMPILED),
        (760, 170, "stream", "CANN on a device,\nor hostcann here", EMULATED),
    )
    for index, (x, width, title, text, colours) in enumerate(steps):
        diagram.box(x, 518, width, 84, title, text, colours)
        if index:
            previous = steps[index - 1]
            diagram.arrow((previous[0] + previous[1], 560), (x, 560))
    diagram.axes.plot([30, 564], [620, 620], lw=2, color=PYTHON[1], solid_capstyle="butt")
    diagram.text(297, 636, "on the calling thread; then the call returns", size=8.6, color=PYTHON[1])
    diagram.axes.plot([577, 930], [620, 620], lw=2, color=FOREIGN[1], solid_capstyle="butt")
    diagram.text(754, 636, "later (at once with TASK_QUEUE_ENABLE=0)", size=8.6, color=FOREIGN[1])

    legend = (
        ("Python", PYTHON),
        ("compiled here", COMPILED),
        ("torch, torch_npu", FOREIGN),
        ("specification", SPECIFICATION),
        ("CANN or its emulation", EMULATED),
    )
    x = 150.0
    for name, (fill, edge) in legend:
        style = "round,pad=0,rounding_size=3"
        diagram.axes.add_patch(FancyBboxPatch((x, 661), 16, 12, boxstyle=style, fc=fill, ec=edge, lw=1.2))
        diagram.text(x + 24, 667, name, size=8.6, ha="left")
        x += 52 + 6.1 * len(name)
    return diagram.figure


def draw_step_walk() -> Figure:
    """A step of the sampling layer, from the call to the token: on the left of a CPU, on the right of a device."""
    diagram = Diagram(900, 640)
    shared = (
        (14, "Sampler.__call__ checks", "sampler.py"),
        (92, "plan, made once for a batch as it is", "whole_steps.py: the route of each row, who wants logprobs"),
    )
    for y, title, text in shared:
        diagram.box(230, y, 440, 56, title, text)
    diagram.arrow((450, 70), (450, 90))
    diagram.text(110, 172, "on a CPU", size=9.5, weight="bold")
    diagram.text(790, 172, "on a device", size=9.5, weight="bold")
    sides = (
        (
            30,
            (
                ("native_edits", "row_edits.py: lists of ids, as arguments", PYTHON, 56),
                ("draw", "serving.py: one call of an operator", PYTHON, 56),
                (
                    "sample_rows",
                    "csrc/cpu: a row is edited, filtered,\ndrawn from and ranked while it is near",
                    COMPILED,
                    74,
                ),
                ("Drawn", "tokens, statuses, logprobs, sets", PYTHON, 56),
            ),
        ),
        (
            480,
            (
                ("LogitsEdits, apply", "row_edits.py, apply.py: an edited float32 copy", PYTHON, 56),
                ("draw", "serving.py: noise, statuses, then each route", PYTHON, 56),
                (
                    "the route's operators",
                    "device_routes.py: aclnnTopKTopPSampleV2,\nor sums and races by torch",
                    FOREIGN,
                    74,
                ),
                ("gather_logprobs", "logprobs.py: few launches, no wait", PYTHON, 56),
            ),
        ),
    )
    for x, boxes in sides:
        diagram.arrow((450 + (-60 if x < 200 else 60), 148), (x + 195, 190))
        y = 192.0
        for place, (title, text, colours, height) in enumerate(boxes):
            diagram.box(x, y, 390, height, title, text, colours)
            y += height + 26
            if place < len(boxes) - 1:
                diagram.arrow((x + 195, y - 26), (x + 195, y - 2))
        diagram.arrow((x + 195, y - 26), (450 + (-60 if x < 200 else 60), 554))
    diagram.box(230, 556, 440, 56, "batch.advance", "batch.py: tokens are counted, positions move on")
    for y, name in ((120, "plan"), (250, "draw"), (485, "report"), (584, "tell")):
        diagram.text(450 if 200 < y < 500 else 190, y, name, size=9.5, color=MUTED, style="italic")
    return diagram.figure


def draw_second_softmax() -> Figure:
    """The weights of a draw by top-p alone: those of softmax(logits) beside those of the operator."""
    ranks = torch.arange(1, 201)
    logits = (-1.4 * ranks.log())[None]  # falls with the logarithm of the rank, as a language model's do
    p = 0.9
    (alone,) = top_k_top_p_sample_trace(logits, None, p)
    (with_k,) = top_k_top_p_sample_trace(logits, logits.shape[1], p)
    shown = 12
    figure, axes = pyplot.subplots(figsize=(8.0, 3.3), layout="constrained")
    places = torch.arange(shown).numpy()
    for offset, row, name, colour in (
        (-0.2, with_k, "softmax(logits) of the kept tokens (k = vocab_size, p = 0.9)", COMPILED[1]),
        (0.2, alone, "the operator with top-p alone (no k, p = 0.9)", EMULATED[1]),
    ):
        axes.bar(places + offset, row.weights[:shown].numpy(), width=0.38, color=colour, label=name)
    first, second = float(with_k.weights[0]), float(alone.weights[0])
    axes.annotate(f"{first:.2f}", (-0.2, first), ha="center", va="bottom", fontsize=9)
    axes.annotate(f"{second:.2f}", (0.22, second), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(places, [str(rank) for rank in range(1, shown + 1)])
    axes.set_xlabel(f"rank of the token (the first {shown} of {alone.n_kept} that are kept)")
    axes.set_ylabel("weight in the draw")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure


def draw_flattening() -> Figure:
    """Top-p alone with a language model's logits: one context token by token, and the distance in many contexts."""
    figures = json.loads(FLATTENING.read_text())
    shown = figures["shown"]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9.6, 3.7), layout="constrained", gridspec_kw={"width_ratios": (1.5, 1)}
    )
    kinds = (
        (-0.2, "exact", "drawn_by_layer", "the sampling layer: exact", COMPILED[1]),
        (0.2, "operator", "drawn_by_operator", "the operator with top-p alone", EMULATED[1]),
    )
    places = range(len(shown["tokens"]))
    for offset, computed, drawn, name, colour in kinds:
        middles = [place + offset for place in places]
        left.bar(middles, shown[computed], width=0.38, color=colour, alpha=0.75, label=name)
        counted = [count / shown["draws"] for count in shown[drawn]]
        left.plot(middles, counted, "_", color=INK, markersize=9, markeredgewidth=1.4)
        first = shown[computed][0]
        left.annotate(f"{first:.1%}", (offset, first), (0, 6), textcoords="offset points", ha="center", fontsize=9)
    left.set_ylim(0, 1.12 * max(shown["exact"]))
    left.plot([], [], "_", color=INK, markersize=9, markeredgewidth=1.4, label=f"counted in {shown['draws']} draws")
    left.set_xticks(places, shown["tokens"], rotation=35, ha="right", fontsize=9)
    left.set_ylabel("share of the draws")
    left.set_title(f"“{shown['prompt']} …”, top_p = {shown['top_p']}, {shown['kept']} tokens kept", fontsize=10)
    left.legend(frameon=False, fontsize=9)

    bins = len(figures["histograms"][0])
    edges = [place / bins for place in range(bins + 1)]
    temperatures = sorted({row["temperature"] for row in figures["table"]}, reverse=True)
    colours = (EMULATED[1], FOREIGN[1])
    for temperature, counts, colour in zip(temperatures, figures["histograms"], colours, strict=True):
        shares = [count / figures["contexts"] for count in counts]
        right.stairs(shares, edges, fill=True, color=colour, alpha=0.5, label=f"temperature {temperature:g}")
    right.set_xlim(0, 1)
    right.set_xlabel("total variation distance from the exact draw")
    right.set_ylabel("share of the contexts")
    right.set_title(f"{figures['contexts']} contexts, top_p = {shown['top_p']}", fontsize=10)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_beam_tree() -> Figure:
    """The beams of one search: the kept ones of each step by rank, what they continue, and the path that won."""
    tree = json.loads(BEAM_TREE.read_text())
    steps = [*tree["steps"], tree["ends"]]
    beams = len(steps[0]["tokens"])
    winner = [0]
    for step in reversed(steps):
        winner.insert(0, step["parents"][winner[0]])
    column, line = 1180 / (len(steps) + 1), 58
    diagram = Diagram(1200, line * beams + 40)
    diagram.box(10, 22, column - 26, 40, tree["prompt"] + " …", colours=SPECIFICATION)
    for number, step in enumerate(steps):
        x = 10 + column * (number + 1)
        for beam, (token, parent, score) in enumerate(
            zip(step["tokens"], step["parents"], step["scores"], strict=True)
        ):
            is_winner = winner[number + 1] == beam
            goes_on = number + 1 == len(steps) or beam in steps[number + 1]["parents"]
            colours = COMPILED if is_winner else PYTHON if goes_on else ("#f3f4f6", "#c5cad3")
            y = 22 + line * beam
            diagram.box(x, y, column - 26, 40, token, f"{score:.1f}", colours)
            start = 22 + line * (parent if number else 0) + 20
            edge = {"color": COMPILED[1], "lw": 2.6} if is_winner else {"color": "#c5cad3", "lw": 1.1}
            diagram.axes.plot([x - 26, x], [start, y + 20], zorder=0, **edge)
    return diagram.figure


def draw_acceptance() -> Figure:
    """Speculative sampling: acceptance at each place of a round, and speed beside what the formula says."""
    part = json.loads(DECODING_SPEED.read_text())["speculative"]["speed"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    colours = pyplot.get_cmap("viridis")
    records = [record for record in part["records"] if record["case"]["batch_size"] == 1]
    for number, record in enumerate(records):
        places = range(1, len(record["acceptance_by_place"]) + 1)
        colour = colours(number / max(1, len(records) - 1))
        left.plot(places, record["acceptance_by_place"], "o-", color=colour, markersize=4, label=record["case"]["name"])
    left.set_ylim(0, 1.03)
    left.set_xlabel("place of the draft token in its round")
    left.set_ylabel("accepted, of those that were looked at")
    left.legend(frameon=False, fontsize=8)
    for batch_size, marker in ((1, "o"), (8, "s")):
        chosen = [record for record in part["records"] if record["case"]["batch_size"] == batch_size]
        model = [record["model_with_verification"] for record in chosen]
        speed = [record["speed"] for record in chosen]
        right.plot(model, speed, marker, color=COMPILED[1], label=f"gamma = 7, batch {batch_size}")
    top = 1.1 * max(max(record["model_with_verification"], record["speed"]) for record in part["records"])
    right.plot([0, top], [0, top], color=MUTED, lw=1)
    right.fill_between([0, top], [0, 0.85 * top], [0, 1.15 * top], color=MUTED, alpha=0.15, label="within 15 %")
    right.set_xlim(0, top)
    right.set_ylim(0, top)
    right.set_xlabel("(accepted + 1) / (gamma c + v)")
    right.set_ylabel("measured, beside plain decoding")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_cpu_kernel() -> Figure:
    """A row's way through the CPU kernel, branch by branch."""
    diagram = Diagram(960, 698)
    diagram.box(180, 14, 600, 54, "a row", "lines of 32 logits; k, p, q", SPECIFICATION)
    columns = (
        (
            "A: top-k",
            (
                ("a threshold", "from maxima of groups, that at\nleast k logits reach", FOREIGN),
                ("candidates", "what is above it; ties at\nthe threshold by id", COMPILED),
                ("order", "value, then id: by digits of\nthe bits that differ", COMPILED),
                ("softmax, top-p, min-p, draw", "float64, at most 1024 values;\nq of the kept ranks only", COMPILED),
            ),
        ),
        (
            "B: top-p alone",
            (
                ("maxima and a cheap sum", "four operations an exponential,\nright within fixed factors", FOREIGN),
                (
                    "what weighs most, exactly",
                    "bounds of the sum leave two ends;\nthe same token? the result",
                    COMPILED,
                ),
                ("the exact sum", "in chunks, in a fixed order", FOREIGN),
                ("the nucleus' end", "the 48 or 1024 best, or a search:\nsample, bracket, what is inside", COMPILED),
                ("draw", "by rank: noise leaves few a chance;\nor by segment and place", COMPILED),
            ),
        ),
        (
            "C: no filter",
            (
                ("bound of each score", "x·log₂e − log₂(|q|+eps), from above,\nout of the bits of |q|+eps", FOREIGN),
                ("does it beat the best so far?", "no: done with.\nyes: evaluated in float64", COMPILED),
                ("others within 1e-6?", "none, mostly: the best\none is the result", COMPILED),
                ("the exact sum", "only then: scores rounded\nas the reference does", FOREIGN),
            ),
        ),
    )
    labels = {(1, 1): "no", (2, 2): "some"}
    width, height, step, top = 286, 76, 102, 122
    for column, (name, boxes) in enumerate(columns):
        left = 30 + 307 * column
        middle = left + width / 2
        diagram.arrow((min(max(middle, 300), 660), 68), (middle, 96))
        diagram.text(middle, 108, name, size=10.5, weight="bold")
        for index, (title, text, colours) in enumerate(boxes):
            y = top + step * index
            diagram.box(left, y, width, height, title, text, colours)
            if index:
                diagram.arrow(
                    (middle, y - step + height), (middle, y), labels.get((column, index - 1), ""), False, (8, 0)
                )
        end = top + step * (len(boxes) - 1) + height
        diagram.arrow((middle, end), (middle, 628))
    diagram.box(30, 628, 900, 34, "the id; the kept logits on request", colours=SPECIFICATION)
    x = 300.0
    for name, (fill, edge) in (("reads the whole row", FOREIGN), ("a few values, or parts of the row", COMPILED)):
        style = "round,pad=0,rounding_size=3"
        diagram.axes.add_patch(FancyBboxPatch((x, 674), 16, 12, boxstyle=style, fc=fill, ec=edge, lw=1.2))
        diagram.text(x + 24, 680, name, size=8.6, ha="left")
        x += 52 + 6.1 * len(name)
    return diagram.figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "acceptance.png": draw_acceptance,
    "beam_tree.png": draw_beam_tree,
    "cpu_kernel.png": draw_cpu_kernel,
    "flattening.png": draw_flattening,
    "layers.png": draw_layers,
    "overview.png": draw_overview,
    "second_softmax.png": draw_second_softmax,
    "walk.png": draw_walk,
    "step_walk.png": draw_step_walk,
}


def main(arguments: Sequence[str]) -> None:
    """Draws all pictures into the folder that the first argument names, by default this file's."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    for name, draw in PICTURES.items():
        draw().savefig(folder / name, dpi=DOTS_PER_INCH, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1:])
