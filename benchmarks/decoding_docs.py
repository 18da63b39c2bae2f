"""Takes the last runs of the decoding benchmarks into docs/decoding.md, and their numbers into the pictures' source.

python -m benchmarks.decoding_docs    # after python -m benchmarks.speculative and python -m benchmarks.beam_search
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN
from benchmarks import assisted, beam_search, environment, speculative, speculative_requests
from benchmarks.command import fill_between, parser_of
from benchmarks.native import ROOT
from benchmarks.report import format_ratio, format_seconds

DOCUMENT = ROOT / "docs" / "decoding.md"
PUBLISHED = ROOT / "docs" / "decoding_speed.json"
MARKS = "decoding speed"


def speculative_tables(found: dict[str, Any]) -> list[str]:
    """The speculative benchmark in Markdown."""
    part = found["speed"]
    lines = [
        f"`python -m benchmarks.speculative` on {found['environment']['processor']}: a network of "
        f"{part['parameters'] / 1e6:.0f} M parameters whose first layers are the draft, trained by the benchmark in "
        f"{part['training_seconds']:.0f} s; {speculative.NEW_TOKENS} tokens, medians of {speculative.REPEATS} texts, "
        "all ways in turns.",
        "",
    ]
    lines += [
        f"- Batch {batch_size}: a plain step takes {format_seconds(costs['seconds'])}; a draft step c = "
        f"{costs['draft']:.2f} of it, the pass over {speculative.GAMMA + 1} tokens v = {costs['verification']:.2f}."
        for batch_size, costs in part["costs"].items()
    ]
    lines += [
        "",
        f"| texts | batch | acceptance | gamma = {speculative.GAMMA} beside plain | (accepted + 1) / (gamma c + 1) "
        f"| (accepted + 1) / (gamma c + v) | gamma = {speculative.LONG_GAMMA} beside plain |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in part["records"]:
        case = record["case"]
        names = ("speed", "model", "model_with_verification", "speed_long")
        ratios = (record.get(name) for name in names)
        values = " | ".join("not measured" if ratio is None else f"{format_ratio(ratio)}x" for ratio in ratios)
        lines.append(f"| {case['name']} | {case['batch_size']} | {record['acceptance']:.3f} | {values} |")
    lines += ["", "| positions | normalised one by one | at once | |", "|---|---|---|---|"]
    for positions, times in found["normalisation"].items():
        slow, fast = times["one by one"], times["at once"]
        lines.append(
            f"| {positions} | {format_seconds(slow)} | {format_seconds(fast)} | {format_ratio(slow / fast)}x |"
        )
    identity = found["identity"]
    differing = ", ".join(f"{count} with {name}" for name, count in identity["differing"].items())
    lines += [
        "",
        f"Greedy texts of the demo's language model that differ from its own greedy ones, of {identity['prompts']} "
        f"prompts and {identity['tokens']} tokens: {differing}.",
        "",
    ]
    lines += [*assisted.table(found["assisted"]), "", *speculative_requests.table(found["requests"]), ""]
    lines += ["| promise | limit | measured | |", "|---|---|---|---|"]
    for gate in speculative.judge(found):
        value = "" if gate.value is None else f"{format_ratio(gate.value)} {gate.worst}".strip()
        lines.append(f"| {gate.name} | {gate.bound} {gate.limit:g} | {value} | {gate.verdict} |")
    return [*lines, "", speculative.beyond_one_row(part["records"])]


def beam_tables(found: dict[str, Any]) -> list[str]:
    """The beam search's benchmark in Markdown."""
    options = found["options"]
    lines = [
        f"`python -m benchmarks.beam_search`: a step of {options['batch']} prompts x {options['beams']} beams at a "
        f"vocabulary of {options['vocab_size']}, {options['threads']} threads; medians of the steps.",
        "",
        "| decoder | finished | model | cache moves | search | search alone | all but the model | at most | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in found["records"]:
        times = " | ".join(format_seconds(record["medians"][name]) for name in ("model", "cache", "search"))
        lines.append(
            f"| {record['size']} | {record['finished']} | {times} | {record['search_share']:.1%} "
            f"| {record['share']:.1%} | {beam_search.LIMIT:.0%} | {beam_search.verdict(record)} |"
        )
    return lines


def publish(
    speculative_run: dict[str, Any], beam_run: dict[str, Any], document: Path = DOCUMENT, data: Path = PUBLISHED
) -> None:
    """Write the tables between their marks, and the numbers that pictures are drawn from."""
    fill_between(document, MARKS, "\n".join([*speculative_tables(speculative_run), "", *beam_tables(beam_run)]))
    environment.keep(data, {"speculative": speculative_run, "beam_search": beam_run})


def main() -> int:
    """Publish; returns the exit status."""
    parser_of("decoding_docs", __doc__).parse_args()
    runs = [
        environment.kept(module.OUTPUT, f"python -m benchmarks.{name}")
        for name, module in (("speculative", speculative), ("beam_search", beam_search))
    ]
    if missing := [part for part in speculative.PARTS if part not in runs[0]]:
        raise SystemExit(
            f"decoding_docs: the last run of benchmarks.speculative must have all parts, got {speculative.OUTPUT} "
            f"without {', '.join(missing)}. Measure without --part."
        )
    publish(*runs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
