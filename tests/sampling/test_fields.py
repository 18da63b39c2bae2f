"""What follows from the declaration of a field: whoever adds one is told here what has to know of it by name."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ascend_sample
from ascend_sample.sampling import SamplingBatch, SamplingParams, filter_logits, sample_rows
from ascend_sample.sampling.requests.params import DEFAULTS, DISTRIBUTION, FIELDS
from ascend_sample.sampling.rows.parameters import TENSORS, RowParameters
from ascend_sample.sampling.rows.table import TABLE, DeviceColumn

PACKAGE = str(Path(ascend_sample.__file__).parent)


def test_rows_are_sampled_with_all_that_shapes_a_draw() -> None:
    names = [field.name for field in dataclasses.fields(RowParameters)]
    assert names == [*TENSORS, "facts"]
    assert {name for name in inspect.signature(sample_rows).parameters if name in FIELDS} == {*DISTRIBUTION, "seed"}
    assert {name for name in inspect.signature(filter_logits).parameters if name in FIELDS} == set(DISTRIBUTION)


def test_a_batch_shows_what_the_device_has() -> None:
    shown = {name for name, value in vars(SamplingBatch).items() if isinstance(value, DeviceColumn)}
    assert shown == {name for name, column in TABLE.items() if column.is_on_device}
    batch = SamplingBatch(9)
    batch.add(SamplingParams(top_k=3, top_p=0.5, frequency_penalty=1.0, seed=2**64 - 1, logprobs=2))
    for name in shown:
        assert getattr(batch, name).tolist() == getattr(batch.host, name).tolist(), name
    with pytest.raises(AttributeError, match="'HostMirrors' object has no attribute 'top_q'"):
        batch.host.top_q  # noqa: B018


def test_defaults_are_off() -> None:
    """They are not checked again in each request, and no row has to be processed for them."""
    for name, declaration in FIELDS.items():
        if DEFAULTS[name] is not None and DEFAULTS[name] is not dataclasses.MISSING:
            assert declaration.check(DEFAULTS[name], name, None) == DEFAULTS[name]
    batch = SamplingBatch(9)
    batch.add(SamplingParams(seed=1))
    assert not batch.row_parameters().filters()
    assert not batch.host.is_processed.any()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"temperature": np.ones(2, np.float32)}, "facts must name temperature, top_k, and no other than"),
        ({}, r"got nothing\. Give an array for each"),
        ({"temperature": np.ones(2), "top_k": np.ones(2), "top_q": np.ones(2)}, "got temperature, top_k, top_q"),
    ],
)
def test_facts_name_what_is_given(facts: dict[str, Any], message: str) -> None:
    numbers = torch.zeros(2, dtype=torch.int64)
    given = {"temperature": torch.ones(2), "top_k": numbers.int() + 1, "seed": numbers, "position": numbers}
    with pytest.raises(TypeError, match=f"^sample_rows: .*{message}"):
        sample_rows(torch.zeros(2, 4), **given, facts=facts)  # type: ignore[arg-type]
