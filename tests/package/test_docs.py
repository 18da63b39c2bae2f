"""The documentation says what is so: its code runs, and the files, commands and names that it mentions exist."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCUMENTS, FENCE, ROOT, TRANSLATED, code_blocks

import ascend_sample
from ascend_sample import cli, sampling
from ascend_sample.sampling.step.routes import RULES
from hostcann import __main__ as hostcann_cli
from tests.support.user_process import run_as_user, run_python_warm, skip_beside_a_real_cann

PACKAGE = Path(ascend_sample.__file__).parent
VARIABLE = re.compile(r"\b(?:HOSTCANN|ASCEND_SAMPLE)_[A-Z_]+\b")


def code(document: Path) -> list[str]:
    """The lines of console blocks and the spans of code inside the prose."""
    prose = FENCE.sub("", document.read_text())
    lines = [line for block in code_blocks(document, "console") for line in block.splitlines()]
    return lines + re.findall(r"`([^`]+)`", prose)


def scripts() -> Iterator[object]:
    for document in DOCUMENTS:
        if document in TRANSLATED:
            continue  # `TestTranslations` sees that its code is that of what it translates
        for number, block in enumerate(code_blocks(document, "python"), start=1):
            if not block.startswith(">>>"):
                yield pytest.param(block, id=f"{document.name}-{number}")


def session(document: Path) -> str:
    """All sessions of a document are one: a later block may use the names of an earlier one."""
    return "\n".join(block for block in code_blocks(document, "python") if block.startswith(">>>"))


class TestCode:
    @pytest.mark.long
    @pytest.mark.parametrize("block", list(scripts()))
    def test_scripts_run(self, block: str, request: pytest.FixtureRequest) -> None:
        if "torch_npu" in block:
            request.getfixturevalue("npu")
            skip_beside_a_real_cann()
        run_as_user("-c", block)

    @pytest.mark.parametrize(
        "document",
        [
            pytest.param(path, id=path.name, marks=[pytest.mark.long] if path.name == "onnx.md" else [])
            for path in DOCUMENTS
            if path not in TRANSLATED and session(path)
        ],
    )
    def test_sessions_show_what_is_printed(self, document: Path) -> None:
        test = doctest.DocTestParser().get_doctest(session(document), {}, document.name, str(document), 0)
        assert doctest.DocTestRunner().run(test).failed == 0

    def test_docstrings_show_what_is_printed(self) -> None:
        tried = 0
        for path in sorted(PACKAGE.rglob("*.py")):
            if ">>> " in path.read_text() and path.name not in ("__init__.py", "__main__.py"):
                name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                failed, attempted = doctest.testmod(importlib.import_module(name))
                assert failed == 0, name
                tried += attempted
        assert tried > 200


@pytest.mark.parametrize("document", TRANSLATED, ids=lambda path: path.name)
class TestTranslations:
    """A translation has the code and the links of what it translates."""

    def test_code(self, document: Path) -> None:
        blocks = [
            [block for block in FENCE.findall(path.read_text()) if not block[0].startswith("{")]
            for path in (document, TRANSLATED[document])
        ]
        assert blocks[0] == blocks[1]

    def test_links(self, document: Path) -> None:
        """The first leads to the other language; the others to what is in the document's own."""
        (here, *ours), (there, *theirs) = (
            re.findall(r"\]\(([^)\s]+)\)", path.read_text()) for path in (document, TRANSLATED[document])
        )
        assert (document.parent / here, document.parent / there) == (TRANSLATED[document], document)
        in_chinese = {path: translation for translation, path in TRANSLATED.items()}
        for target in theirs:
            wanted = in_chinese.get((document.parent / target).resolve())
            expected = target if wanted is None else target.removesuffix(".md") + ".zh-CN.md"
            assert ours.pop(0) == expected
        assert ours == []


class TestNames:
    def test_links(self) -> None:
        """Those inside the repository lead to a file, and to a heading of it."""
        broken = []
        for document in DOCUMENTS:
            for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
                path, _, anchor = target.partition("#")
                linked = (document.parent / path).resolve() if path else document
                if not target.startswith("https://") and not (
                    linked.is_file() and (not anchor or anchor in anchors(linked))
                ):
                    broken.append(f"{document.name}: {target}")
        assert broken == []

    def test_files(self) -> None:
        folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
        of_others = ("op_api/", "opp/", "include/")  # of CANN, of torch_npu
        assert [
            f"{document.name}: {name}"
            for document in DOCUMENTS
            for name in code(document)
            if re.fullmatch(r"[\w./-]+", name)
            and (name.split("/")[0] in folders or re.search(r"/.*\.\w+$", name))
            and not (name.startswith(of_others) or any((root / name).exists() for root in roots(document)))
        ] == []

    def test_make_targets(self) -> None:
        targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        texts = [text for document in DOCUMENTS for text in code(document)]
        assert {target for text in texts for target in re.findall(r"\bmake ([a-z0-9-]+)", text)} <= targets

    def test_options_of_commands(self, capsys: pytest.CaptureFixture[str]) -> None:
        ours = re.compile(r"-m ascend_sample|\bascend-sample |\bhostcann (run|profile) |^--")
        lines = [line.partition("#")[0] for path in DOCUMENTS for line in code(path) if ours.search(line)]
        lines = [line.partition(" -m torch.distributed.run ")[0] for line in lines]
        named = {option for line in lines for option in re.findall(r"(?<!\S)--[a-z0-9-]+", line)}
        for command in (["info"], ["verify"], ["bench"], ["report"]):
            with pytest.raises(SystemExit):
                cli.main([*command, "--help"])
        for action in ("run", "profile", "env", "info", "add-operators"):
            with pytest.raises(SystemExit):
                hostcann_cli.main([action, "--help"])
        assert named <= set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))

    def test_environment_variables(self) -> None:
        places = (ROOT / "ascend_sample", ROOT / "csrc", ROOT / "hostcann" / "src", ROOT / "hostcann" / "csrc")
        setups = [ROOT / "setup.py", ROOT / "hostcann" / "setup.py"]
        sources = setups + [path for place in places for kind in ("*.py", "*.cpp") for path in place.rglob(kind)]
        known, named = (
            {name for path in paths for name in VARIABLE.findall(path.read_text())} for paths in (sources, DOCUMENTS)
        )
        assert named <= known


def roots(document: Path) -> list[Path]:
    """The folders from which a document names files."""
    hostcann = ROOT / "hostcann"
    others = [hostcann, hostcann / "csrc", hostcann / "src/hostcann/include"]
    return [ROOT, *(others if hostcann in document.parents else ())]


def anchors(document: Path) -> set[str]:
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class TestHostcannIsDescribedInFull:
    """What hostcann's pages list in tables is the whole of it."""

    RUNTIME = ROOT / "hostcann" / "csrc" / "runtime"
    TEXT = "".join((ROOT / "hostcann" / "docs" / f"{name}.md").read_text() for name in ("testing", "profile"))

    def test_names(self) -> None:
        for file, array in (("counters.cpp", "kViolationNames"), ("faults.cpp", "kSites")):
            listed = re.search(rf"{array} = \{{(.*?)\}}", (self.RUNTIME / file).read_text(), re.DOTALL)
            assert listed
            assert [name for name in re.findall(r'"(\w+)"', listed[1]) if f"`{name}`" not in self.TEXT] == []

    @pytest.mark.long
    def test_profile(self, npu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The table is what the command prints."""
        skip_beside_a_real_cann()
        shown = re.search(r"\$ cat steps.py\n(.*?)\$ (hostcann .*?) python steps.py\n(.*?)```", self.TEXT, re.DOTALL)
        assert shown
        program, command, table = shown.groups()
        monkeypatch.chdir(tmp_path)
        Path("steps.py").write_text(program)
        finished = run_python_warm("-m", *command.split(), sys.executable, "steps.py", PYTHONPATH=str(PACKAGE.parent))
        assert finished.stderr.endswith(f"steps.py\n\n{table}")

    def test_variables(self) -> None:
        sources = "\n".join(path.read_text() for path in self.RUNTIME.glob("*.cpp"))
        names = set(re.findall(r'"(HOSTCANN_[A-Z_]+)"', sources))
        assert names
        assert {name for name in names if f"| `{name}` |" not in self.TEXT} == set()


def table_rows(document: str, first_column: str) -> list[list[str]]:
    """The cells of the table whose first heading is this one, without the backticks around whole cells."""
    text = (ROOT / "docs" / document).read_text()
    table = re.search(rf"^\| {first_column} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table, f"{document} has no table that begins with {first_column!r}"
    lines = table[1].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_operators_of_the_cpu_kernel() -> None:
    """docs/architecture.md has a row for each of the layer's own; a step is one call of `sample_rows`."""
    named = {name for row in table_rows("architecture.md", "operator") for name in re.findall(r"\w+", row[0])}
    names = re.findall(r'kName = "(\w+)"', (ROOT / "csrc" / "layer_operators.h").read_text())
    assert named == set(names) - {"sample_rows"}


class TestSamplingIsDescribedInFull:
    """What docs/sampling.md, docs/logprobs.md and docs/seeds.md list in tables is what the code says."""

    def test_routes(self) -> None:
        described = table_rows("sampling.md", "rule")
        assert described == [[str(number), rule.route.value, rule.reason] for number, rule in enumerate(RULES, start=1)]

    def test_parameters(self) -> None:
        shown = {name: default for name, default, *_ in table_rows("sampling.md", "parameter")}
        params = sampling.SamplingParams()
        assert list(shown) == [field.name for field in dataclasses.fields(params)]
        for name, default in shown.items():
            value = getattr(params, name)
            assert ast.literal_eval(default) == (dict(value) if name == "logit_bias" else value), name

    def test_names(self) -> None:
        for document, heading, names in (
            ("sampling.md", "`RowStatus`", [[status.name, str(status.value)] for status in sampling.RowStatus]),
            ("seeds.md", "`Purpose`", [[purpose.name, str(purpose.value)] for purpose in sampling.Purpose]),
            ("logprobs.md", "`logprobs_mode`", [[mode.value] for mode in sampling.LogprobsMode]),
        ):
            assert [row[: len(names[0])] for row in table_rows(document, heading)] == names
        calls = {name for row in table_rows("sampling.md", "call") for name in re.findall(r"\b[a-z]+\b", row[0])}
        assert calls - {"row", "ids", "token"} <= set(dir(sampling.SamplingBatch))

    def test_flattening(self) -> None:
        """The figures are those of the file that the picture is drawn from."""
        figures = json.loads((ROOT / "docs" / "flattening.json").read_text())
        expected = [
            [
                f"{row['temperature']:g}",
                f"{row['top_p']:g}",
                f"{row['kept']:.0f}",
                f"{row['distance']:.2f}",
                f"{row['distance_low']:.2f} to {row['distance_high']:.2f}",
                f"{100 * row['best_exact']:.1f} %",
                f"{100 * row['best_operator']:.1f} %",
            ]
            for row in figures["table"]
        ]
        assert table_rows("sampling.md", "temperature") == expected
        text = (ROOT / "docs" / "sampling.md").read_text()
        assert f"in {figures['contexts']} contexts" in text
        shown = figures["shown"]
        assert f"from {100 * shown['exact'][0]:.1f} % to {100 * shown['operator'][0]:.1f} %" in text
