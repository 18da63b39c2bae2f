"""The message of refused arguments: one form, made in one place, for any value."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import ascend_sample
from ascend_sample import _errors, decoding
from ascend_sample.sampling import SamplingBatch

PACKAGE = Path(ascend_sample.__file__).parent
HUGE = -(10**5000)
OTHER_SENTENCES = {  # no refused arguments: an environment, a package, a program's own state
    "_environment.py": 1,
    "decoding/onnx/interface.py": 1,
    "npu/aclnn_call.py": 1,
}


def test_values_are_shown_in_one_short_line() -> None:
    for value, shown in (
        ("5", "'5'"),
        (numpy.float32(0.5), "np.float32(0.5)"),
        (HUGE, "an int of 16610 bits"),
        (2**127, str(2**127)),
        (torch.ones(2, 3), "a tensor of torch.float32 [2, 3]"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, ...]"),
        ("a" * 100, f"'{'a' * 27}...{'a' * 28}'"),
        (pytest, "<module 'pytest' from"),
    ):
        text = _errors.show(value)
        assert text.startswith(shown)
        assert "\n" not in text
        assert len(text) <= 80


def test_integers_that_python_does_not_print_or_no_tensor_holds_are_refused_as_others_are() -> None:
    for call, message in (
        (lambda: SamplingBatch(vocab_size=HUGE), r"SamplingBatch: vocab_size must be in \[1"),
        (lambda: beams(num_beams=HUGE), "beam_search: num_beams must be "),
        (lambda: beams(length_penalty=HUGE), "beam_search: length_penalty must be "),
        (lambda: _errors.check_number("f", "x", -HUGE, low=0.0), "f: x must be a finite number "),
        (lambda: decoding.AdaptiveGamma(HUGE), "AdaptiveGamma: max_gamma must be "),
    ):
        with pytest.raises(ValueError, match=f"^{message}.*, got an int of 16610 bits"):
            call()
    for name in ("num_beams", "max_new_tokens", "eos_token_id", "pad_token_id"):
        low = 0 if name.endswith("_id") else 1
        message = rf"^beam_search: {name} must be in \[{low}, 9223372036854775807\], got 9223372036854775808\. "
        with pytest.raises(ValueError, match=message):
            beams(**{name: 2**63})


def beams(**options: Any) -> object:
    model = decoding.ModuleModel(lambda ids: torch.nn.functional.one_hot(ids, 5) * 1.0)
    return decoding.beam_search(model, torch.tensor([[1]]), **{"num_beams": 2, "max_new_tokens": 2, **options})


def test_no_other_module_writes_the_sentence() -> None:
    """An argument, "must", a rule, "got", a value, a remedy: whoever raises it calls `refuse`."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        raised = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
        count = sum(" must " in (text := ast.unparse(node)) and " got" in text for node in raised)
        if count and path.name != "_errors.py":
            found[path.relative_to(PACKAGE).as_posix()] = count
    assert found == OTHER_SENTENCES
