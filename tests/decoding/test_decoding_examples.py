"""The examples of the decoding layer, as a user runs them, and what their training data says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import number_speller
import pytest

from tests.decoding.every_strategy import FUNCTIONS
from tests.support.user_process import EXAMPLES, TRAINING_LIMIT_SECONDS, run_as_user


@pytest.mark.long
@pytest.mark.timeout(TRAINING_LIMIT_SECONDS + 60)
def test_faster_transformer() -> None:
    output = run_as_user(str(EXAMPLES / "faster_transformer.py"), "405", "--beams", "8", seconds=TRAINING_LIMIT_SECONDS)
    steps, gathered = output.split("\n\n")
    lines = steps.splitlines()[1:]
    cells = [re.findall(r"(\d+): (\S+)", line) for line in lines]
    assert [len(line) for line in cells] == [8] * len(lines)
    assert {parent for parent, _ in cells[0]} == {"0"}  # all beams continue the one that there is
    hypotheses = re.findall(r"^ +(-\d+\.\d+)  (.*)$", gathered, re.MULTILINE)
    assert len(hypotheses) == 8
    assert {words for _, words in hypotheses[:3]} == set(number_speller.spellings(405))
    scores = [float(score) for score, _ in hypotheses]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.long
@pytest.mark.timeout(TRAINING_LIMIT_SECONDS + 60)
def test_translate_onnx(tmp_path: Path) -> None:
    output = run_as_user(
        str(EXAMPLES / "translate_onnx.py"), "405", "12", "--compare", "40", "--directory", str(tmp_path),
        seconds=TRAINING_LIMIT_SECONDS,
    )  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"encoder.onnx", "decoder.onnx"}
    rows = re.findall(r"^  (\S.*?) +(-\d+\.\d+) +(-\d+\.\d+) +(\d\.\d+)  (\S+)$", output, re.MULTILINE)
    assert len(rows) == 2 * 3
    assert {words for words, *_ in rows[:3]} == set(number_speller.spellings(405))
    assert rows[3][0] == "twelve"
    for words, by_torch, by_onnx, _, share in rows:
        assert float(by_torch) == pytest.approx(float(by_onnx), abs=2e-4)
        number = 405 if words in number_speller.spellings(405) else 12
        assert share == str(number_speller.spellings(number).get(words, "-"))
    assert re.search(r"by torch and by onnxruntime: 40$", output, re.MULTILINE)
    right = int(re.search(r"the best one is right: (\d+)", output)[1])
    assert right >= 36


def assert_beams_of_one_search(tree: dict[str, Any], steps: int, beams: int) -> None:
    """Every beam continues one of the step before and is less probable, and the best ones come first."""
    assert len(tree["steps"]) == steps - 1
    before = [0.0]
    for step in [*tree["steps"], tree["ends"]]:
        assert len(step["tokens"]) == len(step["parents"]) == len(step["scores"]) == beams
        assert step["scores"] == sorted(step["scores"], reverse=True)
        assert all(score < before[parent] for score, parent in zip(step["scores"], step["parents"], strict=True))
        before = step["scores"]
    assert set(tree["steps"][0]["parents"]) == {0}


@pytest.mark.long
@pytest.mark.timeout(TRAINING_LIMIT_SECONDS + 60)
def test_strategies(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    prompts = ["The iterator", "Return a list of"]
    output = run_as_user(
        str(EXAMPLES / "strategies.py"), "--prompts", *prompts, "--tokens", "5", "--json", str(file),
        seconds=TRAINING_LIMIT_SECONDS,
    )  # fmt: skip
    for prompt, part in zip(prompts, output.split("\n\n"), strict=False):
        lines = part.strip("\n").splitlines()
        assert lines[0] == f"{prompt} ..."
        texts = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[1:]}
        assert set(texts) == set(FUNCTIONS)
        assert all(float(score) < 0 and len(text) == 1 for score, *text in texts.values())
        assert texts["speculative_sample"] == texts["greedy_search"]
    said = r"(\d+) tokens in (\d+) passes of the model, which looked at (\d+) drafts .* and accepted (\d+)$"
    tokens, passes, drafts, accepted = map(int, re.search(said, output, re.MULTILINE).groups())
    assert passes < tokens
    assert accepted <= drafts
    assert_beams_of_one_search(json.loads(file.read_text()), steps=7, beams=4)


def test_the_published_beams_are_of_one_search() -> None:
    assert_beams_of_one_search(json.loads((EXAMPLES.parent / "docs" / "beam_tree.json").read_text()), steps=7, beams=4)
