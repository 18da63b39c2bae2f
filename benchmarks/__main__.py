"""Measures, prints the tables, and writes JSON, tables and pictures: `make bench`, or `python -m benchmarks`.

python -m benchmarks --quick                   # a minute or two: the usual shape alone
python -m benchmarks --only "k=1024"           # the cells whose line of progress holds this text
python -m benchmarks publish                   # takes the last full run into docs/performance.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

from rich.console import Console  # isort: skip

from benchmarks import cases, distributions, environment, gates, native, pictures, report
from benchmarks.measuring import Runner
from benchmarks.native import ROOT

OUTPUT = ROOT / "build" / "performance"
DOCUMENT = ROOT / "docs" / "performance.md"
PUBLISHED = ROOT / "docs" / "performance.json"
PICTURES = ROOT / "docs" / "pictures" / "performance"
_WIDTH = 180


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", choices=("prepare", "measure", "publish"), default="measure")
    parser.add_argument("--quick", action="store_true", help="a small part of the plan")
    parser.add_argument("--only", metavar="TEXT", help="cells whose description holds TEXT")
    parser.add_argument("--effort", type=float, default=1.0, help="multiplies the time that is measured for; default 1")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the results are written or published from")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a promise is not kept, or disturbed")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> report.Run:
    """Runs the plan and judges it."""
    plan = cases.quick_plan() if options.quick else cases.plan()
    plan = [cell for cell in plan if options.only is None or options.only in cell.describe()]
    if not plan:
        raise SystemExit(
            f"benchmarks: --only must be part of a cell's description, got {options.only!r}. Leave it out."
        )
    found = environment.describe()
    records = Runner(plan, options.effort).run()
    return {"environment": found, "records": records, "gates": [gate.to_json() for gate in gates.judge(records)]}


def publish(run: report.Run, document: Path = DOCUMENT, data: Path = PUBLISHED, folder: Path = PICTURES) -> None:
    """Takes a run into the documentation: its JSON, the tables and the pictures."""
    environment.keep(data, run)
    drawn = pictures.draw(run, folder)
    links = pictures.links(drawn, folder.relative_to(document.parent).as_posix())
    document.write_text(report.fill(document.read_text(encoding="utf-8"), run, links), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Prepares, measures or publishes; returns the exit status."""
    options = parse_arguments(arguments)
    if options.action == "prepare":
        native.library()
        distributions.language_model_rows()
        return 0
    path = options.output / "performance.json"
    if options.action == "publish":
        found = environment.kept(path, "python -m benchmarks")
        if len(found["records"]) < len(cases.plan()):
            raise SystemExit(
                f"benchmarks: publish takes a full run, got {len(found['records'])} of {len(cases.plan())} cells in "
                f"{path}. Measure without --quick and --only."
            )
        publish(found)
        print(f"{DOCUMENT.relative_to(ROOT)}, its pictures and {PUBLISHED.relative_to(ROOT)} now show {path}")
        return 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # now: to measure takes minutes
    except OSError as error:
        raise SystemExit(f"benchmarks: --output must be a folder, or be made one, got {error}. Name another.") from None
    run = measure(options)
    environment.keep(path, run)
    pictures.draw(run, options.output)
    report.show(run, Console(width=None if sys.stdout.isatty() else _WIDTH))
    verdicts = [gate["verdict"] for gate in run["gates"]]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in gates.VERDICTS)
    disturbed = report.count_disturbed(run)
    if disturbed:
        print(f"{disturbed} of {len(run['records'])} cells were disturbed by other processes: repeat in a quiet hour")
    print(f"promises: {counts}\nfigures: {path}; pictures beside it")
    return 1 if options.check and {"FAIL", "disturbed"} & set(verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
