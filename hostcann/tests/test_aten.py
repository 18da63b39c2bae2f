"""Ordinary torch code on npu:0: each operator that hostcann serves with an ATen CPU kernel gives what the CPU gives.

The same kernels run on both sides, so results are compared bit for bit. Where torch_npu composes an operator of others
than the CPU does, the case carries a tolerance.
"""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from aten_cases import BINARY, DATA_DEPENDENT, FLOATS, INDEXING, PRODUCTS, REDUCTIONS, SHAPES, UNARY
from torch import Tensor

from tests.support.isolation import run_isolated

torch_npu = pytest.importorskip("torch_npu", reason="needs torch_npu and a CANN", exc_type=ImportError)


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    low = 0 if dtype == torch.uint8 else -50
    return torch.randint(low, 50, shape, generator=generator).to(dtype)


def tensors_of(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)  # type: ignore[call-overload]


def assert_same(function: Callable[..., object], inputs: list[Tensor], rtol: float = 0.0) -> None:
    """Runs `function` on copies of the inputs on the CPU and on npu:0; strides survive the way there."""
    expected = tensors_of(function(*(x.clone() for x in inputs)))
    actual = tensors_of(function(*(x.npu() for x in inputs)))
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.device.type == "npu"
        torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=rtol, equal_nan=True)


FAMILIES = {
    "unary": UNARY,
    "binary": BINARY,
    "reductions": REDUCTIONS,
    "shapes": SHAPES,
    "indexing": INDEXING,
    "products": PRODUCTS,
    "data-dependent": DATA_DEPENDENT,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_what_the_cpu_gives(family: str) -> None:
    for case in FAMILIES[family]:
        for dtype in case.dtypes:
            inputs = [make(shape, dtype, seed) for seed, shape in enumerate(case.shapes)]
            try:
                assert_same(case.function, inputs, case.rtol)
            except Exception as error:
                raise AssertionError(f"{case.name} of {dtype}: {error}") from error


def test_npu_rms_norm() -> None:
    for dtype in FLOATS:
        x, weight = make((3, 8), dtype, 0), make((8,), dtype, 1)
        actual, _ = torch_npu.npu_rms_norm(x.npu(), weight.npu(), 1e-6)
        tolerance = 1e-6 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(actual.cpu(), F.rms_norm(x, (8,), weight, 1e-6), rtol=tolerance, atol=tolerance)


GATED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # torch_npu's, and its formula
    "npu_fast_gelu": (lambda x: torch_npu.npu_fast_gelu(x), lambda x: x * torch.sigmoid(1.702 * x)),
    "npu_swiglu": (lambda x: torch_npu.npu_swiglu(x), lambda x: F.silu(x[:, :4]) * x[:, 4:]),
    "npu_swiglu of rows": (lambda x: torch_npu.npu_swiglu(x, dim=0), lambda x: F.silu(x[:3]) * x[3:]),
}


@pytest.mark.parametrize("name", GATED)
def test_activations_of_torch_npu_alone(name: str) -> None:
    """Values and derivatives; vllm_ascend's layers call them."""
    function, formula = GATED[name]
    for dtype in FLOATS:
        values = make((6, 8), dtype, 0)
        x, on_npu = values.clone().requires_grad_(), values.npu().requires_grad_()
        expected, actual = formula(x), function(on_npu)
        expected.sum().backward()
        actual.sum().backward()
        assert x.grad is not None
        assert on_npu.grad is not None
        for got, want in ((actual, expected), (on_npu.grad, x.grad)):
            tolerance = 1e-6 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=tolerance, atol=tolerance)


def test_strided_views_are_read_and_written_in_place() -> None:
    x = make((6, 8), torch.float32, 1)
    y = x.npu()
    for t in (x, y):
        t[::2, 1::3].add_(t[1::2, 0:7:3])
        t.t()[3].mul_(2)
        t[1:, :].copy_(t[:-1, :].clone())
    torch.testing.assert_close(y.cpu(), x, rtol=0, atol=0)


def test_empty_tensors() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        nothing = torch.empty(0, dtype=torch.long, device=x.device)
        return x + 1, x.sum(), x.sum(1), torch.cat((x, x)), x[:, nothing]

    assert_same(function, [torch.empty(0, 5)])


DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {  # with the mean and the standard deviation
    "uniform_": (lambda x: x.uniform_(-1, 3), 1.0, 4 / math.sqrt(12)),
    "normal_": (lambda x: x.normal_(1, 2), 1.0, 2.0),
    "exponential_": (lambda x: x.exponential_(2.0), 0.5, 0.5),
    "bernoulli_": (lambda x: x.bernoulli_(0.25), 0.25, math.sqrt(0.25 * 0.75)),
    "bernoulli_tensor_": (lambda x: x.bernoulli_(torch.full_like(x, 0.5)), 0.5, 0.5),
    "rand_like": (torch.rand_like, 0.5, 1 / math.sqrt(12)),
    "randn_like": (torch.randn_like, 0.0, 1.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_draws(name: str) -> None:
    """Reproducible from the seed, different from draw to draw, with the distribution's mean and deviation."""
    function, mean, deviation = DRAWS[name]
    for dtype in FLOATS:
        zeros = torch.zeros(40_000, dtype=dtype, device="npu")
        torch.npu.manual_seed(7)
        first, second = function(zeros.clone()).cpu(), function(zeros.clone()).cpu()
        torch.npu.manual_seed(7)
        assert torch.equal(first, function(zeros).cpu())
        assert not torch.equal(first, second)
        assert first.double().mean().item() == pytest.approx(mean, abs=4 * deviation / math.sqrt(first.numel()) + 0.01)
        assert first.double().std().item() == pytest.approx(deviation, rel=0.05)


def test_generators_on_the_npu_are_independent() -> None:
    first, second = (torch.Generator(device="npu").manual_seed(seed) for seed in (11, 12))
    state = first.get_state()
    a = torch.rand(64, device="npu", generator=first).cpu()
    b = torch.rand(64, device="npu", generator=second).cpu()
    first.set_state(state)
    assert torch.equal(a, torch.rand(64, device="npu", generator=first).cpu())
    assert not torch.equal(a, b)


def test_a_captured_graph_draws_anew_at_each_replay() -> None:
    """While a stream is captured, torch_npu passes seed and offset in device memory: the *Tensor forms."""

    def replay() -> list[Tensor]:
        graph.replay()
        torch.npu.synchronize()
        return [x.cpu() for x in drawn]

    drawn = [torch.zeros(64, device="npu") for _ in range(3)]
    graph = torch.npu.NPUGraph()
    torch.npu.synchronize()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        drawn[0].uniform_()
        drawn[1].normal_()
        drawn[2].random_(0, 1000)
        drawn.append(torch.multinomial(torch.ones(1, 1000, device="npu"), 64))
        graph.capture_end()
    for first, second in zip(replay(), replay(), strict=True):
        assert not torch.equal(first, second)
        assert first.unique().numel() > 32


def test_integer_draws() -> None:
    torch.npu.manual_seed(0)
    values = torch.randint(-3, 5, (5000,), device="npu").cpu()
    assert values.dtype == torch.int64
    assert sorted(values.unique().tolist()) == list(range(-3, 5))
    assert sorted(torch.randperm(100, device="npu").cpu().tolist()) == list(range(100))
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0]], device="npu")
    drawn = torch.multinomial(weights, 4000, replacement=True).cpu()
    assert set(drawn.unique().tolist()) == {1, 2}
    assert (drawn == 2).double().mean().item() == pytest.approx(0.75, abs=0.03)


ATTENTION_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}


def test_scaled_dot_product_attention() -> None:
    for causal, dtype in itertools.product((False, True), FLOATS):
        q, k, v = (make((2, 4, 8, 16), dtype, seed) for seed in range(3))
        mask = None if causal else make((8, 8), torch.bool, 3) | torch.eye(8, dtype=torch.bool)
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        actual = F.scaled_dot_product_attention(
            q.npu(), k.npu(), v.npu(), attn_mask=None if mask is None else mask.npu(), is_causal=causal
        )
        tolerance = ATTENTION_TOLERANCE[dtype]
        torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
}


def test_fusion_attention_layouts() -> None:
    """Six query heads share two key heads; the mask is causal from the lower right corner (sparse_mode 3)."""
    for (layout, laid_out), dtype in itertools.product(LAYOUTS.items(), FLOATS):
        q, k, v = make((2, 6, 4, 16), dtype, 0), make((2, 2, 7, 16), dtype, 1), make((2, 2, 7, 16), dtype, 2)
        keep = torch.ones(4, 7, dtype=torch.bool).tril(3)
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
        actual = torch_npu.npu_fusion_attention(
            *(laid_out(x).contiguous().npu() for x in (q, k, v)),
            6,
            layout,
            atten_mask=torch.ones(2048, 2048, dtype=torch.bool).triu(1).npu(),
            scale=0.25,
            sparse_mode=3,
        )[0]
        tolerance = ATTENTION_TOLERANCE[dtype]
        torch.testing.assert_close(actual.cpu(), laid_out(expected), rtol=tolerance, atol=tolerance)


def error_of_a_bad_index() -> str:
    torch.ones(3, device="npu").index_select(0, torch.tensor([7], device="npu"))
    with pytest.raises(RuntimeError) as caught:
        torch.npu.synchronize()
    return str(caught.value)


def test_a_failing_kernel_names_its_operator() -> None:
    """In a process of its own: the error comes with the next synchronisation, and the device stays failed after it."""
    assert "aclnnIndexSelect: index out of range in self" in run_isolated(error_of_a_bad_index).result


def error_of_an_unknown_type() -> list[object]:
    x = torch.ones(2, device="npu")
    with pytest.raises(RuntimeError) as caught:
        x.to(torch.float8_e4m3fn)
    return [str(caught.value), (x + 1).tolist()]


def test_a_type_without_a_kernel_is_refused_and_the_device_goes_on() -> None:
    """In a process of its own: torch_npu destroys no aclTensor of a call whose phase 1 fails."""
    error, result = run_isolated(error_of_an_unknown_type).result
    assert "must be of a type that ATen has a CPU kernel for, got float8_e4m3fn" in error
    assert result == [2.0, 2.0]


def gelu_is_that_of_the_cpu() -> list[bool]:
    x = torch.linspace(-4, 4, 100)
    forms = ("none", "tanh")
    return [torch.equal(F.gelu(x.npu(), approximate=form).cpu(), F.gelu(x, approximate=form)) for form in forms]


@pytest.mark.long
def test_gelu_has_its_tanh_form_where_torch_npu_is_asked_for_it() -> None:
    """By itself torch_npu 2.13 calls aclnnGelu for both forms; its switch is read once in a process."""
    assert run_isolated(gelu_is_that_of_the_cpu, TORCH_NPU_USE_COMPATIBLE_IMPL="1").result == [True, True]


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_range_and_fast_gelu() -> None:
    assert torch.range(-1, 3, 0.5, device="npu").cpu().tolist() == torch.range(-1, 3, 0.5).tolist()
    x = torch.linspace(-4, 4, 100)
    assert torch.equal(torch_npu.npu_fast_gelu(x.npu()).cpu(), x * torch.sigmoid(x * 1.702))


def elements_in_other_formats() -> list[bool]:
    torch_npu.npu.config.allow_internal_format = True
    x = torch.arange(35.0).reshape(5, 7)
    blocked = torch_npu.npu_format_cast(x.npu(), 29)
    back = torch_npu.npu_format_cast(blocked, 2)
    empty = torch_npu.npu_format_cast(x[:0].npu(), 29)
    kept = (torch.equal(blocked.cpu(), x), torch.equal(back.cpu(), x), empty.cpu().shape == (0, 7))
    return [torch_npu.get_npu_format(blocked) == 29, *kept]


def test_a_tensor_keeps_its_elements_in_a_blocked_format_and_back() -> None:
    finished = run_isolated(elements_in_other_formats)
    finished.check_clean()
    assert finished.result == [True, True, True, True]


def mean_of_exponential() -> list[float]:
    x = torch.zeros(10_000, device="npu").exponential_(2.0).cpu()
    return [round(x.mean().item(), 1), x.min().item()]


@pytest.mark.long
def test_exponential_is_one_operator_on_ascend_950() -> None:
    mean, least = run_isolated(
        mean_of_exponential, HOSTCANN_SOC="Ascend950PR_9599", HOSTCANN_CANN_VERSION="9.1.0"
    ).result
    assert (mean, least >= 0) == (0.5, True)
