"""What examples/speculation_changes_nothing.py says, and that it notices a text that differs."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch

from ascend_sample.decoding import speculative_sample

pytest.importorskip("tokenizers", reason="the language model's subword vocabulary needs the tokenizers package")

import speculation_changes_nothing as example
from language_model import LanguageModel, ModelConfig
from language_model.tokenizer import train_tokenizer

TINY = ModelConfig(vocab_size=300, context_size=64, width=32, layers=3, heads=2, feed_forward_width=64)
DOCUMENTS = [f"The value of item {index} is returned. Raise an error if the method was called." for index in range(99)]
TOKENS = 8
ROW = re.compile(r"^  (\S.*?) {3,}(\d+) +(\d+) +(\d+) +(\d+)   (.*)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    model, tokenizer = LanguageModel(TINY).eval(), train_tokenizer(DOCUMENTS, TINY.vocab_size)
    monkeypatch.setattr(example, "load_or_train", lambda: (model, tokenizer))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["speculation_changes_nothing.py", "--tokens", str(TOKENS), *arguments])
    return example.main()


def test_texts_are_equal_and_passes_are_not(
    npu: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--device", "cpu", npu) == 0
    output = capsys.readouterr().out
    rows = ROW.findall(output)
    assert [row[0] for row in rows] == 2 * list(example.PARAMS)
    assert {row[5] for row in rows} == {"the same"}
    passes = [[int(count) for count in row[1:5]] for row in rows]
    assert all(plain == nonsense == TOKENS for plain, _, _, nonsense in passes)
    assert min(by_n_grams for _, by_n_grams, _, _ in passes) < TOKENS
    assert min(by_layers for _, _, by_layers, _ in passes) < TOKENS
    assert passes[: len(example.PARAMS)] == passes[len(example.PARAMS) :]
    assert "The texts are THE SAME, whatever is proposed." in output


def test_another_text_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def by_another_rule(*given: Any, rule: str, **options: Any) -> Any:
        return speculative_sample(*given, rule="standard", **options)

    class OfTheVocabulary(example.Nonsense):
        def draft(self, state: Any, texts: Any) -> Any:
            drafted, state = super().draft(state, texts)
            return drafted._replace(tokens=drafted.tokens % self.vocab_size), state

    monkeypatch.setattr(example, "speculative_sample", by_another_rule)
    monkeypatch.setattr(example, "Nonsense", OfTheVocabulary)
    assert run(monkeypatch, "--device", "cpu") == 1
    output = capsys.readouterr().out
    assert "DIFFERS: " in output
    assert "The texts DIFFER." in output
