"""The dispatcher operator: schema, fake kernel, autograd, torch.compile."""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.autograd import forward_ad

import ascend_sample
from ascend_sample import _extension
from ascend_sample.decoding.model import StepOutput
from ascend_sample.npu.operators import OPERATORS
from tests.operators.bad_inputs import good_arguments

SAMPLE, SAMPLE_V2, APPLY = OPERATORS
EACH_OPERATOR = pytest.mark.parametrize("operator", OPERATORS)


def test_schema() -> None:
    assert str(torch.ops.ascend_sample.top_k_top_p_sample.default._schema) == (
        "ascend_sample::top_k_top_p_sample(Tensor logits, Tensor k, Tensor p, Tensor? q=None, float eps=1e-08, "
        "bool is_need_logits=False, int top_k_guess=32) -> (Tensor logits_select_idx, Tensor logits_top_kp_select)"
    )
    assert str(torch.ops.ascend_sample.top_k_top_p_sample_v2.default._schema) == (
        "ascend_sample::top_k_top_p_sample_v2(Tensor logits, Tensor k, Tensor p, Tensor? q=None, Tensor? min_p=None, "
        "float eps=1e-08, bool is_need_logits=False, int top_k_guess=32, int ks_max=1024, bool input_is_logits=True, "
        "bool is_need_sample_result=False) -> (Tensor logits_select_idx, Tensor logits_top_kp_select, "
        "Tensor logits_idx, Tensor logits_sort_masked)"
    )
    assert str(torch.ops.ascend_sample.apply_top_k_top_p.default._schema) == (
        "ascend_sample::apply_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor filtered"
    )


class Kept(NamedTuple):
    """A way to get the kept logits of logits on a device."""

    device: str

    def of(self, operator: str) -> Callable[[torch.Tensor], torch.Tensor]:
        function = getattr(ascend_sample, operator)
        if operator == APPLY:
            return functools.partial(function, k=3)
        return lambda logits: function(logits, k=3, is_need_logits=True).logits_top_kp_select

    def logits(self) -> torch.Tensor:
        return torch.randn(2, 9).half().to(self.device)


BY_ROUTE = [*itertools.product(("cpu", "npu"), (None, "composite", "reference")), ("npu", "cffi")]


@pytest.fixture(params=BY_ROUTE, ids=str)
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    """By each backend of each device."""
    device, backend = request.param
    if device == "npu":
        request.getfixturevalue("npu")
    with ascend_sample.use_backend(backend):
        yield Kept(device)


def no_derivative(operator: str, of: str) -> str:
    rule = "the derivative is not implemented"
    return rf"^{operator}: {rule}\. Sample under torch.no_grad\(\), or detach\(\) {of}\.$"


@EACH_OPERATOR
def test_backward_is_not_implemented(kept: Kept, operator: str) -> None:
    result = kept.of(operator)(kept.logits().requires_grad_())
    assert result.requires_grad
    name = "filtered" if operator == APPLY else "logits_top_kp_select"
    with pytest.raises(NotImplementedError, match=no_derivative(operator, name)):
        result.masked_fill(result == -torch.inf, 0.0).sum().backward()


@EACH_OPERATOR
def test_derivatives_of_functions_are_not_implemented(kept: Kept, operator: str) -> None:
    """Forward mode gave zeros."""
    sample, logits = kept.of(operator), kept.logits()
    with pytest.raises(NotImplementedError, match=no_derivative(operator, "the arguments")):
        torch.func.jvp(sample, (logits,), (torch.ones_like(logits),))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=no_derivative(operator, "the arguments")):
        sample(forward_ad.make_dual(logits, torch.ones_like(logits)))
    with pytest.raises(NotImplementedError, match=no_derivative(operator, "the logits")):
        torch.func.grad(lambda x: sample(x).clamp(-9, 9).sum())(logits)


@EACH_OPERATOR
def test_vmap_and_compile(kept: Kept, operator: str) -> None:
    torch._dynamo.reset()
    sample, logits = kept.of(operator), kept.logits()
    expected = sample(logits)
    assert torch.equal(torch.func.vmap(lambda row: sample(row[None])[0])(logits), expected)
    assert torch.equal(torch.compile(sample, backend="aot_eager", fullgraph=True)(logits), expected)


@EACH_OPERATOR
def test_compiling_what_needs_a_derivative_says_what_to_do(kept: Kept, operator: str) -> None:
    torch._dynamo.reset()
    logits = kept.logits().requires_grad_()
    with pytest.raises(BackendCompilerFailed, match=r"the derivative is not implemented\. Sample under torch.no_grad"):
        torch.compile(kept.of(operator), backend="aot_eager")(logits)


@pytest.mark.parametrize(
    ("is_need_logits", "names"), [(False, "logits_sort_masked"), (True, "logits_top_kp_select and logits_sort_masked")]
)
def test_weights_have_no_derivative(is_need_logits: bool, names: str) -> None:
    logits = torch.randn(3, 50, requires_grad=True)
    result = ascend_sample.top_k_top_p_sample_v2(
        logits, 3, 0.9, is_need_logits=is_need_logits, is_need_sample_result=True
    )
    assert not result.logits_idx.requires_grad
    loss = result.logits_sort_masked.sum()
    if is_need_logits:
        loss = loss + result.logits_top_kp_select.exp().sum()
    with pytest.raises(
        NotImplementedError, match=rf"top_k_top_p_sample_v2: the derivative is .* or detach\(\) {names}\.$"
    ):
        loss.backward()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("operator", "options"),
    [(SAMPLE, {}), (SAMPLE_V2, {}), (SAMPLE_V2, {"min_p": 0.2, "ks_max": 40, "is_need_sample_result": True})],
)
def test_compile_with_dynamic_shapes(backend: str, operator: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()  # its limit on recompilations counts those of earlier parameters
    sample = getattr(ascend_sample, operator)

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def step(logits, k, p, q):  # type: ignore[no-untyped-def]
        return sample(logits * 2, k, p, q, is_need_logits=True, **options)

    for batch_size, vocab_size in ((4, 50), (7, 60), (2, 9000)):
        logits = torch.randn(batch_size, vocab_size)
        q = None if options else torch.rand(batch_size, vocab_size)
        numbers = ((3, 0.9), (5, 0.8))
        tensors = ((torch.arange(batch_size), None), (None, torch.linspace(0.1, 1.1, batch_size)))
        for k, p in numbers + tensors:
            expected = sample(logits * 2, k, p, q, is_need_logits=True, **options)
            actual = step(logits, k, p, q)
            assert type(actual) is type(expected)
            for left, right in zip(actual, expected, strict=True):
                assert left is None if right is None else torch.equal(left, right)


@pytest.mark.parametrize("p", [np.float32(0.5), np.float64(0.9), np.int64(1)], ids=lambda p: str(p.dtype))
def test_compiled_with_numbers_of_numpy(p: Any) -> None:
    """Dynamo makes arrays of them."""
    torch._dynamo.reset()

    def sample(logits: torch.Tensor, p: Any) -> ascend_sample.TopKTopPSample:
        return ascend_sample.top_k_top_p_sample(logits, p=p, is_need_logits=True)

    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    actual = torch.compile(sample, backend="aot_eager")(logits, p)
    assert all(map(torch.equal, actual, sample(logits, p)))


def test_a_compiled_call_may_be_the_first_on_an_npu(npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _extension.load_npu_if_imported()
    monkeypatch.setattr(_extension, "_is_settled", False)
    monkeypatch.setattr(_extension, "_load_npu", lambda: loaded)
    torch.compiler.reset()
    logits = torch.randn(3, 50, dtype=torch.bfloat16).to(npu)
    compiled = torch.compile(
        lambda given: ascend_sample.top_k_top_p_sample(given, k=3)[0], backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(logits), logits.float().argmax(1))


@EACH_OPERATOR
def test_export_and_save(device: str, operator: str) -> None:
    class Sampler(torch.nn.Module):
        def forward(self, logits: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            if operator == APPLY:
                return (ascend_sample.apply_top_k_top_p(logits, 3, 0.9),)
            return getattr(ascend_sample, operator)(logits, 3, 0.9, q, is_need_logits=True)

    inputs = (torch.randn(4, 50).to(device), torch.rand(4, 50).to(device))
    exported = torch.export.export(Sampler(), inputs)
    assert f"ascend_sample.{operator}.default" in str(exported.graph)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    expected = Sampler()(*inputs)
    for program in (exported, torch.export.load(file)):
        result = program.module()(*inputs)
        assert type(result) is type(expected)
        for left, right in zip(result, expected, strict=True):
            assert left is None if right is None else torch.equal(left, right)


def test_export_and_save_a_step_of_a_model() -> None:
    class Step(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> StepOutput:
            return StepOutput(torch.nn.functional.one_hot(input_ids, 5).float(), cache=(input_ids,))

    file = io.BytesIO()
    torch.export.save(torch.export.export(Step(), (torch.tensor([[1, 2]]),)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()(torch.tensor([[3, 4]]))
    assert type(loaded) is StepOutput
    assert loaded.logits.argmax(dim=-1).tolist() == loaded.cache[0].tolist() == [[3, 4]]


@EACH_OPERATOR
def test_subclasses_that_leave_operators_to_torch(device: str, operator: str) -> None:
    class Named(torch.Tensor):
        """Only a name."""

    tensors = good_arguments(device, operator)

    def sample(**arguments: Any) -> torch.Tensor:
        result = getattr(ascend_sample, operator)(**arguments)
        return result if operator == APPLY else result.logits_select_idx

    expected = sample(**tensors)
    named = {name: each.as_subclass(Named) for name, each in tensors.items() if isinstance(each, torch.Tensor)}
    for result in (sample(**tensors | named), sample(**tensors | {"logits": torch.nn.Parameter(tensors["logits"])})):
        assert torch.equal(result.as_subclass(torch.Tensor), expected)
