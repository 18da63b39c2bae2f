"""Each torch operator by one table: schema, fake kernel, strides, threads, empty batches, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import ascend_sample.sampling.step.kept  # noqa: F401  registers the fake kernel of sample_rows
from ascend_sample.npu.operators import OPERATORS
from ascend_sample.sampling.edits.value_ranges import NUMBERS

BATCH_SIZE, VOCAB_SIZE, RANGES = 12, 300, len(NUMBERS)
NAMESPACE = torch.ops.ascend_sample
Arguments = dict[str, Any]


def _rows() -> Arguments:
    """A request a row, of three kinds in turn; the last is greedy."""
    return {
        "temperature": torch.tensor([1.0, 0.7, 0.0] * (BATCH_SIZE // 3)),
        "k": torch.tensor([5, 0, 7] * (BATCH_SIZE // 3), dtype=torch.int32),
        "p": torch.tensor([0.9, 1.0, 0.5] * (BATCH_SIZE // 3)),
        "min_p": torch.tensor([0.0, 0.1, 0.0] * (BATCH_SIZE // 3)),
        "seed": torch.arange(BATCH_SIZE),
        "position": torch.arange(BATCH_SIZE) + 4,
    }


def _only(*names: str) -> Arguments:
    return {name: value for name, value in _rows().items() if name in names}


def _sampled(dtype: torch.dtype, **more: Any) -> Arguments:
    numbers = _rows()
    logits = _logits().to(dtype)
    return {"logits": logits, "k": numbers["k"], "p": numbers["p"].to(dtype), "is_need_logits": True, **more}


def _logits() -> Tensor:
    return 3 * torch.randn(BATCH_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def _q() -> Tensor:
    return torch.rand(BATCH_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))


HALF, IDS = torch.float16, torch.arange(BATCH_SIZE)
WANTED = IDS % 3 != 1
FIRST: list[Arguments] = [_sampled(torch.float32), _sampled(HALF, q=_q()), _sampled(torch.bfloat16, q=_q())]
SECOND: list[Arguments] = [
    *(arguments | {"min_p": torch.full((BATCH_SIZE,), 0.1).to(arguments["logits"].dtype)} for arguments in FIRST),
    _sampled(HALF, is_need_sample_result=True, ks_max=9),
]
THIRD: list[Arguments] = [
    {name: arguments[name] for name in names}
    for arguments, names in zip(FIRST, (("logits", "p", "k"), ("logits", "p"), ("logits", "k")), strict=True)
]
ONES = torch.ones(BATCH_SIZE)
EACH: dict[str, list[Arguments]] = {
    "exponential_noise": [{**_only("seed", "position"), "lanes": 7, "purpose": 1, "first_lane": 4}],
    "filter_logits": [
        {"logits": _logits(), **_only("temperature", "k", "p", "min_p"), "form": form, "keep_ties": form > 0}
        for form in range(4)
    ],
    "row_logprobs": [
        {"logits": _logits(), "rows": None, "token_ids": IDS, "count": 3, "entropy": True, "named": IDS[:, None] + 5},
        {"logits": _logits(), "rows": IDS[:1] + 1, "token_ids": IDS[:1], "count": 0, "is_normalised": False},
        {"logits": _logits(), "rows": None, "token_ids": None, "count": 3, "temperature": 0.7 * ONES},
        *(
            {"logits": _logits(), "rows": rows, "token_ids": None, "count": 3, "is_normalised": False, "largest": True}
            for rows in (None, IDS[:2])
        ),
    ],
    "sample_rows": [
        *({"logits": _logits().to(HALF), "rows": rows, **_rows()} for rows in (None, IDS.flip(0))),
        {"logits": _logits(), "rows": None, **_rows(), "is_kept_wanted": WANTED},
        *(
            {
                "logits": _logits(),
                "rows": None,
                **_rows(),
                "logprobs": 2,
                "logprob_rows": rows,
                "logprob_token_ids": ids,
            }
            for rows, ids in ((None, None), (IDS[:2], IDS[:2, None] + 5))
        ),
    ],
    "segment_winners": [
        {"logits": _logits(), "first_id": 512, "maximum": 20 * ONES, "temperature": ONES}
        | _only("min_p", "seed", "position")
    ],
    **{
        name + suffix: arguments
        for name, arguments in zip(OPERATORS, (FIRST, SECOND, THIRD), strict=True)
        for suffix in ("", "_composite", "_reference")
    },
    "value_ranges": [{"logits": _logits(), "temperature": ONES, "ranges": torch.full((RANGES, BATCH_SIZE), 0.5)}],
    "verify_drafts": [{"logits": _logits(), "draft_ids": IDS[::2], "ends": IDS[1::2] + 1, **_rows()}],
}
ON_NPU = {name + suffix: EACH[name] for name in OPERATORS for suffix in ("", "_cffi")}
LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
    lambda tensor: tensor.T.contiguous().T if tensor.dim() == 2 else tensor.repeat_interleave(3)[1::3],
)
EACH_NAME = pytest.mark.parametrize("name", EACH)


def _all_equal(left: Any, right: Any) -> bool:
    if isinstance(left, tuple | list):
        return all(_all_equal(*each) for each in zip(left, right, strict=True))
    return bool(left.shape == right.shape and torch.equal(left.nan_to_num(), right.nan_to_num()))


def _first(results: Any) -> Tensor:
    first: Tensor = results if isinstance(results, Tensor) else results[0]
    return first


def _changed(arguments: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    return {name: change(value) if isinstance(value, Tensor) else value for name, value in arguments.items()}


def test_the_table_has_every_operator() -> None:
    names = {
        schema.name.removeprefix("ascend_sample::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("ascend_sample::") and any("Tensor" in str(value.type) for value in schema.returns)
    }
    assert names == EACH.keys() | ON_NPU.keys()


@EACH_NAME
def test_schema_and_fake_kernel(name: str) -> None:
    for arguments in EACH[name]:
        assert set(opcheck(getattr(NAMESPACE, name).default, (), arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ON_NPU)
def test_schema_and_fake_kernel_on_the_npu(name: str, npu: str) -> None:
    """With a sample result where there is one, whose ids are defined behind the kept ones as well."""
    for arguments in ON_NPU[name][1:]:
        on_npu = _changed(arguments, lambda tensor: tensor.to(npu))
        assert set(opcheck(getattr(NAMESPACE, name).default, (), on_npu).values()) == {"SUCCESS"}


@EACH_NAME
def test_strides_and_threads_change_nothing_and_nothing_is_written(name: str) -> None:
    operator = getattr(NAMESPACE, name)
    threads = torch.get_num_threads()
    for arguments in EACH[name]:
        before, expected = _changed(arguments, torch.clone), operator(**arguments)
        for layout in LAYOUTS:
            assert _all_equal(operator(**_changed(arguments, layout)), expected)
        try:
            torch.set_num_threads(3)
            assert _all_equal(operator(**arguments), expected)
        finally:
            torch.set_num_threads(threads)
        assert all(_all_equal(arguments[key], value) for key, value in before.items() if isinstance(value, Tensor))


@pytest.mark.parametrize("name", [name + suffix for name in OPERATORS for suffix in ("", "_composite", "_reference")])
def test_strides_empty_batches_and_rows_alone_on_each_device(name: str, device: str) -> None:
    operator = getattr(NAMESPACE, name)
    for arguments in EACH[name]:
        moved = _changed(arguments, lambda tensor: tensor.to(device))
        for layout in (*LAYOUTS, lambda tensor: tensor[:1].expand(tensor.shape)):
            strided = _changed(moved, layout)
            plain = _changed(strided, lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
            assert _all_equal(operator(**strided), operator(**plain))
        assert len(_first(operator(**_changed(moved, lambda tensor: tensor[:0])))) == 0
        alone = [_first(operator(**_changed(moved, lambda tensor, b=b: tensor[b : b + 1]))) for b in range(3)]
        assert torch.equal(torch.cat(alone), _first(operator(**moved))[:3])


@EACH_NAME
def test_empty_batches(name: str) -> None:
    for arguments in EACH[name]:
        results = getattr(NAMESPACE, name)(**_changed(arguments, lambda t: t[:, :0] if len(t) == RANGES else t[:0]))
        assert len(_first(results)) == 0


@EACH_NAME
def test_tensors_of_other_dtypes_and_dimensions_are_refused_by_name(name: str, subtests: pytest.Subtests) -> None:
    owner = name.removesuffix("_composite").removesuffix("_reference")
    for arguments in EACH[name]:
        for argument, good in arguments.items():
            if isinstance(good, Tensor):
                for error, bad in (
                    (TypeError, torch.empty(good.shape, dtype=torch.bits8)),
                    (ValueError, good[None, None]),
                ):
                    says = f"^{owner}: {argument} must "
                    with subtests.test(f"{argument} {error.__name__}"), pytest.raises(error, match=says):
                        getattr(NAMESPACE, name)(**arguments | {argument: bad})
