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

import numpy as np
import pytest
from documents import DOCUMENTS, FENCE, ROOT, TRANSLATED, code_blocks
from matplotlib.image import imread

import ascend_sample
from ascend_sample import cli, sampling
from ascend_sample.hostcann import __main__ as hostcann_cli
from ascend_sample.sampling.step.routes import RULES
from tests.support.user_process import run_as_user, run_python_warm, skip_beside_a_real_cann

PACKAGE = Path(ascend_sample.__file__).parent
PICTURES = ROOT / "docs" / "pictures"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)
LARGEST_PICTURE = 150_000  # bytes
NOUNS = {
    *("Answers", "Bytes", "Floats", "Ids", "Lengths", "Lines", "Logits", "Places", "Rows", "Scores", "Seeds", "This"),
    *("Contiguous", "Hypotheses", "Inputs", "Keys", "Process", "Tokens", "Vectors", "Weights"),
}
"""Words that a docstring could begin with and that only look like verbs."""


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


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


class TestCode:
    @pytest.mark.parametrize("block", list(scripts()))
    def test_scripts_run(self, block: str, request: pytest.FixtureRequest) -> None:
        if "torch_npu" in block:
            request.getfixturevalue("npu")
            skip_beside_a_real_cann()
        run_as_user("-c", block)

    def test_sessions_show_what_is_printed(self, document: Path) -> None:
        """All sessions of a document are one: a later block may use the names of an earlier one."""
        session = "\n".join(block for block in code_blocks(document, "python") if block.startswith(">>>"))
        test = doctest.DocTestParser().get_doctest(session, {}, document.name, str(document), 0)
        assert doctest.DocTestRunner().run(test).failed == 0

    def test_ascend_sample_is_imported_first(self, document: Path) -> None:
        """Where torch_npu is installed and CANN is not, torch and transformers can be imported behind it alone."""
        line = re.compile(r"^(?:>>> )?(?:import|from) (torch\b|transformers|ascend_sample)", re.MULTILINE)
        for block in code_blocks(document, "python"):
            imported = line.findall(block)
            assert "ascend_sample" not in imported or imported[0] == "ascend_sample", f"{document.name}: {block}"

    @pytest.mark.parametrize("name", MODULES)
    def test_docstrings_show_what_is_printed(self, name: str) -> None:
        module = importlib.import_module(name)
        assert doctest.testmod(module).failed == 0

    @pytest.mark.parametrize("module", ["ascend_sample.ops", "ascend_sample.reference", "ascend_sample.backend"])
    def test_public_docstrings_have_examples(self, module: str) -> None:
        assert doctest.testmod(importlib.import_module(module)).attempted > 0


@pytest.mark.parametrize("document", TRANSLATED, ids=lambda path: path.name)
class TestTranslations:
    """A translation has the sections, the code, the tables and the links of what it translates."""

    def test_code(self, document: Path) -> None:
        blocks = [
            [block for block in FENCE.findall(path.read_text()) if not block[0].startswith("{")]
            for path in (document, TRANSLATED[document])
        ]
        assert blocks[0] == blocks[1]

    def test_sections(self, document: Path) -> None:
        shapes = []
        for path in (document, TRANSLATED[document]):
            text = FENCE.sub("", path.read_text())
            sections = re.split(r"^(#+) .*$", text, flags=re.MULTILINE)[1:]
            shapes.append(
                [
                    (level, len(re.findall(r"^\|", body, re.MULTILINE)), len(re.findall(r"^- ", body, re.MULTILINE)))
                    for level, body in zip(sections[::2], sections[1::2], strict=True)
                ]
            )
        assert shapes[0] == shapes[1]

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

    def test_punctuation(self, document: Path) -> None:
        """Chinese has its own; what stands in code is not Chinese."""
        prose = re.sub(r"`[^`]*`", "`", FENCE.sub("", document.read_text()))
        assert re.findall(r"[\u4e00-\u9fff`][,:;?!(]|[,:;?!)][\u4e00-\u9fff]", re.sub(r"\]\([^)]*\)", "]", prose)) == []


class TestNames:
    def test_links(self, document: Path) -> None:
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            linked = (document.parent / path).resolve() if path else document
            assert linked.is_file(), f"{document.name} links to {target}, which is no file"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
                assert anchor in slugs, f"{document.name} links to {target}, but there is no such heading"

    def test_files(self, document: Path) -> None:
        folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
        for name in code(document):
            if re.fullmatch(r"[\w./-]+", name) and (name.split("/")[0] in folders or re.search(r"/.*\.\w+$", name)):
                if name.startswith("op_api/") or name.startswith("include/"):
                    continue  # of CANN, of torch_npu
                assert (ROOT / name).exists(), f"{document.name} names {name}, which does not exist"

    def test_make_targets(self, document: Path) -> None:
        targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        named = {target for text in code(document) for target in re.findall(r"\bmake ([a-z0-9-]+)", text)}
        assert named <= targets

    def test_options_of_commands(self, document: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ours = re.compile(r"-m ascend_sample|\bascend-sample |\bhostcann (run|profile) |^--")
        lines = [line.partition("#")[0] for line in code(document) if ours.search(line)]
        lines = [line.partition(" -m torch.distributed.run ")[0] for line in lines]
        named = {option for line in lines for option in re.findall(r"(?<!\S)--[a-z0-9-]+", line)}
        for command in (["info"], ["verify"], ["bench"], ["report"]):
            with pytest.raises(SystemExit):
                cli.main([*command, "--help"])
        for action in ("run", "profile", "env", "info"):
            with pytest.raises(SystemExit):
                hostcann_cli.main([action, "--help"])
        assert named <= set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))

    def test_environment_variables(self, document: Path) -> None:
        sources = [ROOT / "setup.py", *(ROOT / "ascend_sample").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp")]
        text = "\n".join(source.read_text() for source in sources)
        known = set(re.findall(r"\b(?:HOSTCANN|ASCEND_SAMPLE)_[A-Z_]+\b", text))
        assert set(re.findall(r"\b(?:HOSTCANN|ASCEND_SAMPLE)_[A-Z_]+\b", document.read_text())) <= known

    def test_who_has_counted_launches(self, document: Path) -> None:
        """No device has: who reads that page alone must not take the counts for a device's."""
        text = document.read_text()
        assert "launches" not in text or "hostcann" in FENCE.sub("", text)

    def test_sections_that_the_sources_cite(self) -> None:
        headings = re.findall(r"^## (\d)\. ", (ROOT / "docs" / "semantics.md").read_text(), re.MULTILINE)
        assert headings == list("1234567")


class TestHostcannIsDescribedInFull:
    """What docs/hostcann.md lists in tables is the whole of it."""

    RUNTIME = ROOT / "csrc" / "hostcann" / "runtime"
    TEXT = (ROOT / "docs" / "hostcann.md").read_text()

    def listed(self, file: str, array: str) -> list[str]:
        source = (self.RUNTIME / file).read_text()
        names: str = re.search(rf"{array} = \{{(.*?)\}}", source, re.DOTALL)[1]
        return re.findall(r'"(\w+)"', names)

    def test_violations(self) -> None:
        names = self.listed("counters.cpp", "kViolationNames")
        assert names
        assert [name for name in names if f"`{name}`" not in self.TEXT] == []

    def test_fault_sites(self) -> None:
        names = self.listed("faults.cpp", "kSites")
        assert names
        assert [name for name in names if f"`{name}`" not in self.TEXT] == []

    def test_profile(self, npu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The table is what the command prints."""
        skip_beside_a_real_cann()
        shown = re.search(r"\$ cat steps.py\n(.*?)\$ python (.*?) python steps.py\n(.*?)```", self.TEXT, re.DOTALL)
        assert shown
        program, command, table = shown.groups()
        monkeypatch.chdir(tmp_path)
        Path("steps.py").write_text(program)
        finished = run_python_warm(*command.split(), sys.executable, "steps.py", PYTHONPATH=str(PACKAGE.parent))
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
        expected = [[str(number), rule.route.value, rule.reason] for number, rule in enumerate(RULES, start=1)]
        assert described == expected

    def test_parameters(self) -> None:
        shown = {name: default for name, default, *_ in table_rows("sampling.md", "parameter")}
        params = sampling.SamplingParams()
        assert list(shown) == [field.name for field in dataclasses.fields(params)]
        for name, default in shown.items():
            value = getattr(params, name)
            assert ast.literal_eval(default) == (dict(value) if name == "logit_bias" else value), name

    def test_statuses(self) -> None:
        shown = [row[:2] for row in table_rows("sampling.md", "`RowStatus`")]
        assert shown == [[status.name, str(status.value)] for status in sampling.RowStatus]

    def test_logprobs_modes(self) -> None:
        shown = [row[0] for row in table_rows("logprobs.md", "`logprobs_mode`")]
        assert shown == [mode.value for mode in sampling.LogprobsMode]

    def test_purposes(self) -> None:
        shown = [row[:2] for row in table_rows("seeds.md", "`Purpose`")]
        assert shown == [[purpose.name, str(purpose.value)] for purpose in sampling.Purpose]

    def test_methods_of_the_batch(self) -> None:
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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures, drawn again."""
    folder = tmp_path_factory.mktemp("pictures")
    run_as_user(str(PICTURES / "make.py"), str(folder))
    return folder


class TestPictures:
    def test_are_those_that_the_script_draws(self, drawn: Path) -> None:
        names = {path.name for path in PICTURES.glob("*.png")}
        assert names == {path.name for path in drawn.iterdir()}
        for name in names:
            kept, again = imread(PICTURES / name), imread(drawn / name)
            assert kept.shape == again.shape, name
            # Not bit for bit: fonts are rendered by whatever FreeType matplotlib was built with.
            assert float(np.abs(kept - again).mean()) < 0.01, f"{name} is out of date: run `make pictures`"

    def test_are_small_and_used(self) -> None:
        text = "\n".join(document.read_text() for document in DOCUMENTS)
        for path in PICTURES.glob("*.png"):
            assert path.stat().st_size < LARGEST_PICTURE, path.name
            assert f"pictures/{path.name})" in text, f"{path.name} is in no document"


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_functions_begin_with_a_verb(name: str) -> None:
    """In the third person: "Returns", "Raises", "Draws"; "See" where another one says it."""
    path = PACKAGE.parent / Path(*name.split(".")).with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            first = text.split()[0].rstrip(",")
            assert first == "See" or re.fullmatch(r"[A-Z][a-z]+s", first), f"{name}.{node.name}: {text.splitlines()[0]}"
            assert first not in NOUNS, f"{name}.{node.name}: {text.splitlines()[0]}"
