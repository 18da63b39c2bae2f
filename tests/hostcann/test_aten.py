"""Ordinary torch code on npu:0: each operator that hostcann serves with an ATen CPU kernel gives what the CPU gives.

The same kernels run on both sides, so results are compared bit for bit. Where torch_npu composes an operator of others
than the CPU does, the case carries a tolerance.
"""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

torch_npu = pytest.importorskip("torch_npu", reason="needs torch_npu and a CANN: real, or hostcann", exc_type=ImportError)

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Case(NamedTuple):
    """A function of tensors, and how to make them; `rtol` only where torch_npu composes the operator differently."""

    name: str
    function: Callable[..., object]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    shapes: tuple[tuple[int, ...], ...] = ((3, 5, 7),)
    rtol: float = 0.0


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


def run(case: Case, dtype: torch.dtype) -> None:
    inputs = [make(shape, dtype, seed) for seed, shape in enumerate(case.shapes)]
    assert_same(case.function, inputs, case.rtol)


def parametrize(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("case", "dtype"),
        [
            pytest.param(case, dtype, id=f"{case.name}-{str(dtype).removeprefix('torch.')}")
            for case in cases
            for dtype in case.dtypes
        ],
    )


def inplace(method: str, *arguments: object) -> Callable[..., Tensor]:
    def call(x: Tensor, *others: Tensor) -> Tensor:
        return getattr(x, method)(*others, *arguments)

    return call


PAIR = ((3, 5, 7), (5, 1))  # the second is broadcast

UNARY = [
    *(Case(name, getattr(torch, name)) for name in (
        "abs", "neg", "ceil", "floor", "round", "trunc", "sign", "exp", "exp2", "expm1", "sin", "cos", "tan", "tanh",
        "sinh", "cosh", "atan", "asinh", "erf", "sigmoid", "relu", "isnan", "isinf", "isfinite", "logical_not",
        "reciprocal", "square", "isneginf", "isposinf", "frac", "signbit",
    )),
    *(Case(name, lambda x, f=getattr(torch, name): f(x.abs() + 0.01)) for name in (
        "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
    )),
    *(Case(name, lambda x, f=getattr(torch, name): f(torch.tanh(x))) for name in ("acos", "asin", "atanh", "erfinv")),
    *(Case(name, lambda x, f=inplace(name): f(torch.tanh(x))) for name in ("acos_", "asin_", "atanh_", "erfinv_")),
    *(Case(name, lambda x, f=inplace(name): f(x.abs() + 1)) for name in (
        "log_", "log2_", "log10_", "log1p_", "sqrt_", "rsqrt_", "acosh_", "logical_not_",
    )),
    Case("acosh", lambda x: torch.acosh(x.abs() + 1)),
    Case("sinc_erfc", lambda x: (torch.sinc(x), torch.erfc(x), x.sinc_(),)),
    *(Case(name, inplace(name)) for name in (
        "abs_", "neg_", "exp_", "expm1_", "sin_", "cos_", "tanh_", "sigmoid_", "relu_", "floor_", "ceil_", "round_",
        "trunc_", "erf_", "zero_", "reciprocal_", "tan_", "atan_", "sinh_", "cosh_", "asinh_", "erfc_", "exp2_", "frac_",
    )),
    *(Case(name, getattr(F, name)) for name in (
        "gelu", "silu", "mish", "logsigmoid", "hardswish", "hardsigmoid", "elu", "leaky_relu", "softplus", "hardtanh",
        "relu6",
    )),
    *(Case(f"{name}_inplace", lambda x, f=getattr(F, name): f(x, inplace=True)) for name in (
        "mish", "hardswish", "hardsigmoid", "elu", "leaky_relu", "hardtanh",
    )),
    Case("threshold", lambda x: (F.threshold(x, 0.25, -3.0), F.threshold(x, 0.0, 1.0, inplace=True))),
    Case("round_decimals", lambda x: (torch.round(x, decimals=1), x.round_(decimals=2)), (torch.float32,)),
    Case("nan_to_num", lambda x: (torch.nan_to_num(x / torch.relu(x), nan=1.0, posinf=2.0, neginf=3.0),
                                  torch.nan_to_num_(x / torch.relu(x)))),
    Case("isnan_of_nan", lambda x: torch.isnan(x / torch.relu(x))),
    Case("clamp", lambda x: x.clamp(-0.5, 0.75)),
    Case("clamp_one_side", lambda x: (x.clamp(min=0.1), torch.clamp_min(x, 0.1), torch.clamp_max(x, 0.1))),
    Case("clamp_", lambda x: (x.clone().clamp_(max=0.1), x.clone().clamp_max_(0.1), x.clone().clamp_min_(0.2))),
    Case("clamp_tensor", lambda x, low, high: (
        torch.clamp(x, low, high), torch.clamp_min(x, low), torch.clamp_max(x, high),
        x.clone().clamp_min_(low), x.clone().clamp_max_(high),
    ), shapes=((3, 4), (4,), (4,))),
    Case("integers", lambda x: (x.abs(), -x, x.sign(), ~x, x.clamp(-3, 9)), INTEGERS[:4]),
    Case("bool", lambda x: (~x, x.logical_not()), (torch.bool,)),
]

BINARY = [
    *(Case(name, getattr(torch, name), (*FLOATS, *INTEGERS), PAIR) for name in (
        "add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
        "logical_xor",
    )),
    *(Case(name, getattr(torch, name), shapes=PAIR) for name in ("div", "atan2", "fmod", "remainder")),
    *(Case(name, lambda x, y, f=getattr(torch, name): f(x, y * 2 + 1), INTEGERS[:4], PAIR) for name in (
        "remainder", "fmod", "floor_divide",
    )),
    *(Case(name, getattr(torch, name), (*INTEGERS, torch.bool), PAIR) for name in (
        "bitwise_and", "bitwise_or", "bitwise_xor",
    )),
    *(Case(name, inplace(name), shapes=PAIR) for name in (
        "add_", "sub_", "mul_", "div_", "atan2_", "fmod_", "remainder_", "floor_divide_", "eq_", "ne_", "lt_", "le_",
        "gt_", "ge_", "logical_and_", "logical_or_",
    )),
    *(Case(f"{name}_number", inplace(name, 1.5)) for name in (
        "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "add_", "sub_", "mul_", "div_", "remainder",
        "fmod", "floor_divide", "remainder_", "fmod_", "floor_divide_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_",
    )),
    *(Case(f"{name}_integer", inplace(name, 3), INTEGERS) for name in (
        "add", "sub", "mul", "div", "eq", "lt", "ge", "add_", "mul_", "remainder", "floor_divide", "bitwise_and",
        "bitwise_or", "bitwise_xor", "bitwise_and_", "bitwise_or_", "bitwise_xor_",
    )),
    *(Case(name, inplace(name), INTEGERS, PAIR) for name in ("bitwise_and_", "bitwise_or_", "bitwise_xor_")),
    Case("gcd", torch.gcd, (torch.int64, torch.int32), PAIR),
    Case("shifts", lambda x: (x << 3, x >> 2), (torch.int64, torch.int32)),
    Case("shifts_by_tensor", lambda x, y: (x << (y & 7), x >> (y & 7)), (torch.int64, torch.int32), PAIR),
    Case("reversed", lambda x, y: (2 - x, torch.rsub(x, y, alpha=2), torch.remainder(2.5, x)), shapes=PAIR),
    Case("logaddexp", torch.logaddexp, (torch.float32,), PAIR),
    Case("add_alpha", lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, 3, alpha=2)), shapes=PAIR),
    Case("pow", lambda x, y: (x.abs().pow(y), x**2, 2.0**x, x.abs().pow(0.5)), (torch.float32,), PAIR),
    Case("pow_", lambda x, y: (x.abs().pow_(y), x.abs().pow_(1.5)), (torch.float32,), PAIR),
    Case("div_modes", lambda x, y: (
        torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"), x.div(0.7, rounding_mode="floor"),
        x.clone().div_(y, rounding_mode="floor"), x.clone().div_(0.7, rounding_mode="trunc"),
    ), shapes=PAIR),
    Case("xlogy", lambda x, y: torch.xlogy(x.abs(), y.abs() + 1), (torch.float32,), PAIR),
    Case("lerp", lambda x, y: (
        torch.lerp(x, y, 0.25), torch.lerp(x, y, y), x.clone().lerp_(y, 0.25), x.clone().lerp_(y, y),
    ), (torch.float32,), ((3, 4), (4,))),
    Case("addcmul", lambda x, y: (torch.addcmul(x, y, y, value=0.5), torch.addcdiv(x, y, y.abs() + 1),
                                  x.clone().addcmul_(y, y), x.clone().addcdiv_(y, y.abs() + 1, value=2)), shapes=PAIR),
    Case("isclose", lambda x, y: torch.isclose(x, x + y * 1e-6), (torch.float32,), PAIR),
    Case("isin", lambda x: torch.isin(x, 7), (torch.int64,)),
    Case("cpu_scalar_tensors", lambda x: (torch.tensor(2.0) + x, x * torch.tensor(0.5), torch.isin(7, x.long()))),
    Case("type_promotion", lambda x: (x + 1.5, x * True, x / 2, x + torch.tensor(2.5)), INTEGERS),
    Case("mixed_types", lambda x: (x.float() + x, x.half() * x, x.bool() & (x > 0)), (torch.int64, torch.int32)),
    Case("where", lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, x, 0.0), torch.where(x > 0, 1, 0)), shapes=PAIR),
]

REDUCTIONS = [
    *(Case(name, lambda x, f=getattr(torch, name): (f(x), f(x, 1), f(x, -1, keepdim=True)), FLOATS) for name in (
        "sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin",
    )),
    Case("sum_of_integers", lambda x: (x.sum(), x.sum(0), x.sum((0, 2)), x.sum(dtype=torch.float32)), INTEGERS),
    Case("bool", lambda x: (x.any(), x.all(), x.any(1), x.all(-1, keepdim=True), x.sum()), (torch.bool,)),
    Case("max_min", lambda x: (x.max(), x.min(), *x.max(1), *x.min(-1, keepdim=True)), (*FLOATS, torch.int64)),
    Case("nansum_aminmax", lambda x: ((x / torch.relu(x)).nansum(1), *torch.aminmax(x), *torch.aminmax(x, dim=1)),
         (torch.float32,)),
    Case("prod", lambda x: (x.prod(), x.prod(1)), (torch.float32, torch.int64)),
    Case("norm", lambda x: (x.norm(), torch.linalg.vector_norm(x, dim=-1), x.norm(p=1, dim=1), torch.ops.aten.norm(x, 2)),
         (torch.float32,)),
    Case("var_std", lambda x: (x.var(), x.var(1, keepdim=True), x.std(-1, unbiased=False), *torch.var_mean(x, -1),
                               *torch.std_mean(x, 1)),
         (torch.float32,)),
    Case("logsumexp", lambda x: torch.logsumexp(x, -1), (torch.float32,)),
    Case("cumsum", lambda x: (x.cumsum(-1), x.cumsum(0)), (*FLOATS, torch.int64)),
    Case("cumsum_dtype", lambda x: x.cumsum(1, dtype=torch.float32), FLOATS),
    Case("cumprod_cummax", lambda x: (x.cumprod(-1), *x.cummax(1), *x.cummin(1)), (torch.float32,)),
    Case("softmax", lambda x: (x.softmax(-1), x.log_softmax(1), F.softmax(x, 0, dtype=torch.float32))),
    Case("layer_norm", lambda x, w, b: (F.layer_norm(x, (7,), w, b), F.layer_norm(x, (5, 7)), F.layer_norm(x, (7,), w)),
         shapes=((3, 5, 7), (7,), (7,))),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (7,), w, 1e-6), (torch.float32,), ((3, 5, 7), (7,)), rtol=1e-6),
]

SHAPES = [
    *(Case(name, function, (torch.float32, torch.bfloat16, torch.int64, torch.bool)) for name, function in {
        "cat": lambda x: torch.cat((x, x[:1], x[1:]), 0),
        "stack": lambda x: torch.stack((x, x.flip(0)), 1),
        "flip_roll": lambda x: (x.flip(0, 2), x.roll(2, 1)),
        "repeat": lambda x: (x.repeat(2, 1, 3), x.expand(2, 3, 5, 7).contiguous()),
        "repeat_interleave": lambda x: (x.repeat_interleave(3, dim=1), x.repeat_interleave(2)),
        "repeat_interleave_tensor": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2], device=x.device), dim=0),
        "repeat_interleave_flat": lambda x: x[0, 0].repeat_interleave(torch.arange(7, device=x.device)),
        "triangles": lambda x: (x.tril(), x.triu(1), x.clone().tril_(-1), x.clone().triu_()),
        "slices": lambda x: (x[1:, ::2].clone(), x.transpose(0, 2).contiguous(), x[..., 3:].flatten()),
        "write_to_slice": lambda x: x.clone()[1:].copy_(x[:2]),
        "index_fill": lambda x: (x.index_fill(1, torch.tensor([0, 3], device=x.device), 1),
                                 x.clone().index_fill_(1, torch.tensor([0, 3], device=x.device), 1)),
        "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
        "split_chunk": lambda x: (*x.split(2, 1), *x.chunk(2, -1)),
        "full_like": lambda x: (torch.full_like(x, 3), torch.ones_like(x), torch.zeros_like(x)),
        "fill": lambda x: (x.clone().fill_(1), x.clone().fill_(x[0, 0, 0]), x[0].clone().fill_diagonal_(1)),
    }.items()),
    Case("creation", lambda x: (
        torch.arange(7, device=x.device), torch.arange(1, 4, 0.5, device=x.device), torch.zeros(3, device=x.device),
        torch.ones(2, 3, device=x.device, dtype=torch.int32), torch.full((3,), 2.5, device=x.device),
        torch.eye(3, 4, device=x.device), torch.repeat_interleave(torch.arange(4, device=x.device)), torch.linspace(0, 1, 5, device=x.device), torch.tensor([1, 2], device=x.device),
    ), (torch.float32,)),
    Case("casts", lambda x: tuple(x.to(dtype) for dtype in (*FLOATS, *INTEGERS[:4], torch.bool)),
         (*FLOATS, *INTEGERS[:4], torch.bool)),
]

INDEXING = [
    *(Case(name, function, (torch.float32, torch.float16, torch.int64)) for name, function in {
        "index": lambda x: (x[torch.tensor([2, 0], device=x.device)], x[:, torch.tensor([[1], [4]], device=x.device)]),
        "index_two": lambda x: x[torch.tensor([2, 0], device=x.device), torch.tensor([1, 4], device=x.device)],
        "index_put": lambda x: x.index_put((torch.tensor([0, 2], device=x.device),), x[1]),
        "index_put_colon": lambda x: x.clone().__setitem__((slice(None), torch.tensor([0, 2], device=x.device)), 1) or x,
        "index_put_accumulate": lambda x: x.index_put((torch.tensor([1, 1], device=x.device),), x[:2], accumulate=True),
        "index_select": lambda x: x.index_select(1, torch.tensor([4, 4, 0], device=x.device)),
        "index_add": lambda x: x.index_add(0, torch.tensor([0, 2], device=x.device), x[:2], alpha=2),
        "index_copy": lambda x: (x.index_copy(0, torch.tensor([0, 2], device=x.device), x[:2]),
                                 x.clone().index_copy_(0, torch.tensor([0, 2], device=x.device), x[:2])),
        "gather": lambda x: x.gather(2, x.argsort(dim=-1, stable=True)),
        "scatter": lambda x: (x.scatter(2, x.argsort(dim=-1, stable=True), x), x.scatter(1, (x > 0).long(), 5),
                              torch.zeros_like(x).scatter_(2, x.argsort(dim=-1, stable=True), x)),
        "scatter_": lambda x: torch.zeros_like(x).scatter_(2, x.argsort(dim=-1, stable=True)[..., :3], 1),
        "scatter_add": lambda x: x.scatter_add(2, x.argsort(dim=-1, stable=True), x),
        "masked_fill": lambda x: (x.masked_fill(x > 0, 9), x.clone().masked_fill_(x[0] > 0, x[0, 0, 0])),
        "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)),
        "take": lambda x: x.take(torch.tensor([0, 33], device=x.device)),
        "sort": lambda x: (*x.sort(dim=-1, stable=True), *x.sort(dim=1, descending=True, stable=True)),
        "topk": lambda x: (*x.topk(0), x.topk(3, -1).values, x.topk(2, 1, largest=False).values),
        "argsort": lambda x: x.argsort(dim=1, stable=True),
        "kthvalue_median": lambda x: (x.kthvalue(2, -1).values, x.median(), x.median(-1).values),
    }.items()),
    Case("embedding", lambda w: F.embedding(torch.tensor([[1, 4], [0, 2]], device=w.device), w), shapes=((5, 8),)),
    Case("one_hot", lambda x: F.one_hot(x.remainder(9), 9), (torch.int64,)),
    Case("searchsorted", lambda x, y: (
        torch.searchsorted(x.sort().values, y), torch.searchsorted(x.sort().values, y, right=True, out_int32=True),
    ), (torch.float32,), ((9,), (4,))),
    Case("bincount", lambda x: torch.bincount(x.abs(), minlength=60), (torch.int64,), ((40,),)),
]

PRODUCTS = [
    Case("matmul", lambda a, b: (a @ b, a[0] @ b, a @ b[:, 0]), shapes=((3, 5, 7), (7, 4))),
    Case("mm_transposed", lambda a, b: (a.t().mm(b.t()), torch.mv(a.t(), b[0, :3])), shapes=((3, 5), (4, 3))),
    Case("addmv_addr", lambda x, a, y: (torch.addmv(x, a, y, beta=0.5, alpha=2), torch.addr(a, x, y, beta=0.5, alpha=2)),
         shapes=((3,), (3, 5), (5,))),
    Case("addmm_", lambda c, a, b: c.addmm_(a, b, beta=0.5, alpha=2), shapes=((3, 4), (3, 5), (5, 4))),
    Case("addbmm", lambda c, a, b: torch.addbmm(c, a, b, beta=0.5, alpha=2), (torch.float32,), ((2, 4), (3, 2, 5), (3, 5, 4)), 1e-6),
    Case("bmm", lambda a, b: torch.bmm(a, b.transpose(1, 2)), shapes=((3, 5, 7), (3, 4, 7))),
    Case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), shapes=((4,), (3, 5), (5, 4))),
    Case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), shapes=((3, 1, 4), (3, 2, 5), (3, 5, 4))),
    Case("linear", lambda x, w, b: (F.linear(x, w, b), F.linear(x, w)), shapes=((3, 5, 7), (4, 7), (4,))),
    Case("dot_outer", lambda x, y: (torch.dot(x, y), torch.outer(x, y)), shapes=((9,), (9,))),
    Case("einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b), (torch.float32,), ((2, 3, 4), (2, 5, 4))),
]


@parametrize([*UNARY, *BINARY])
def test_elementwise(case: Case, dtype: torch.dtype) -> None:
    run(case, dtype)


@parametrize(REDUCTIONS)
def test_reductions_and_norms(case: Case, dtype: torch.dtype) -> None:
    run(case, dtype)


@parametrize([*SHAPES, *INDEXING])
def test_shape_and_indexing(case: Case, dtype: torch.dtype) -> None:
    run(case, dtype)


@parametrize(PRODUCTS)
def test_products(case: Case, dtype: torch.dtype) -> None:
    run(case, dtype)


def test_results_of_data_dependent_size() -> None:
    x = make((4, 6), torch.float32, 0)
    for function in (
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0.5),
        lambda x: x[x > 100],
        lambda x: torch.unique((x * 2).round()),
        lambda x: torch.unique((x * 2).round(), return_inverse=True, return_counts=True),
        lambda x: torch._unique((x * 2).round())[0],
        lambda x: torch.unique_consecutive((x * 2).round(), return_inverse=True),
    ):
        assert_same(function, [x])


def test_gelu_keeps_its_tanh_form_where_torch_npu_is_asked_to() -> None:
    """By itself torch_npu 2.13 calls aclnnGelu for both forms, which has one formula."""
    torch.npu.use_compatible_impl(True)
    try:
        assert_same(lambda x: (F.gelu(x, approximate="tanh"), F.gelu(x)), [make((5, 7), torch.float32, 0)])
    finally:
        torch.npu.use_compatible_impl(False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_npu_rms_norm(dtype: torch.dtype) -> None:
    x, weight = make((3, 8), dtype, 0), make((8,), dtype, 1)
    actual, _ = torch_npu.npu_rms_norm(x.npu(), weight.npu(), 1e-6)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual.cpu(), F.rms_norm(x, (8,), weight, 1e-6), rtol=tolerance, atol=tolerance)


def test_strided_views_are_read_and_written_in_place() -> None:
    x = make((6, 8), torch.float32, 1)
    y = x.npu()
    for t in (x, y):
        t[::2, 1::3].add_(t[1::2, 0:7:3])
        t.t()[3].mul_(2)
        t[1:, :].copy_(t[:-1, :].clone())
    torch.testing.assert_close(y.cpu(), x, rtol=0, atol=0)


def test_empty_tensors() -> None:
    assert_same(lambda x: (x + 1, x.sum(), x.sum(1), torch.cat((x, x)), x[:, torch.empty(0, dtype=torch.long, device=x.device)]),
                [torch.empty(0, 5)])


def test_integer_wraparound_as_philox_needs_it() -> None:
    """One round of Philox 4x32 in torch's int64 arithmetic: products of 32-bit words that overflow into the sign."""

    def philox_round(counter: Tensor) -> Tensor:
        product = counter * 0xD2511F53
        high = (product >> 32) & 0xFFFFFFFF
        low = product & 0xFFFFFFFF
        wrapped = counter * 0x5851F42D4C957F2D + 1442695040888963407
        return torch.stack((high ^ low, low, wrapped, wrapped ^ -1, ~counter))

    generator = torch.Generator().manual_seed(3)
    assert_same(philox_round, [torch.randint(0, 2**32, (1000,), generator=generator)])
    assert_same(philox_round, [torch.randint(-(2**62), 2**62, (1000,), generator=generator)])


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform_": lambda x: x.uniform_(-1, 3),
    "normal_": lambda x: x.normal_(1, 2),
    "exponential_": lambda x: x.exponential_(2.0),
    "bernoulli_": lambda x: x.bernoulli_(0.25),
    "bernoulli_tensor_": lambda x: x.bernoulli_(torch.full_like(x, 0.25)),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
}
MOMENTS = {
    "uniform_": (1.0, 4 / math.sqrt(12)), "normal_": (1.0, 2.0), "exponential_": (0.5, 0.5),
    "bernoulli_": (0.25, math.sqrt(0.25 * 0.75)), "bernoulli_tensor_": (0.25, math.sqrt(0.25 * 0.75)), "rand_like": (0.5, 1 / math.sqrt(12)), "randn_like": (0.0, 1.0),
}


@pytest.mark.parametrize("name", list(DRAWS))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_draws(name: str, dtype: torch.dtype) -> None:
    """Reproducible from the seed, different from draw to draw, with the distribution's mean and deviation."""

    def draw() -> Tensor:
        return DRAWS[name](torch.zeros(40_000, dtype=dtype, device="npu")).cpu()

    torch.npu.manual_seed(7)
    first, second = draw(), draw()
    torch.npu.manual_seed(7)
    assert torch.equal(first, draw())
    assert not torch.equal(first, second)
    mean, deviation = MOMENTS[name]
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


def test_comparisons_and_printing() -> None:
    x = make((3, 4), torch.float32, 0).npu()
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert torch.allclose(x, x + 1e-9)
    torch.testing.assert_close(x, x.clone())
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(x, x + 1)
    assert "device='npu:0'" in repr(x)
    assert x[1, 2].item() == x.cpu()[1, 2].item()


class Block(torch.nn.Module):
    """A decoder block as small language models have it: attention with a causal mask, then a gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = torch.nn.LayerNorm(width)
        self.norm_2 = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(mask, -math.inf)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class LanguageModel(torch.nn.Module):
    def __init__(self, vocab_size: int = 97, width: int = 32) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(vocab_size, width)
        self.positions = torch.nn.Embedding(64, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads=4) for _ in range(2)))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.tokens(ids) + self.positions(positions))
        return F.linear(self.norm(x), self.tokens.weight)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_language_model_gives_the_logits_of_the_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = LanguageModel().to(dtype).eval()
    ids = torch.randint(0, 97, (2, 24))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    with torch.inference_mode():
        expected = model(ids)
        actual = model.npu()(ids.npu())
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scaled_dot_product_attention(causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (make((2, 4, 8, 16), dtype, seed) for seed in range(3))
    mask = None if causal else make((8, 8), torch.bool, 3) | torch.eye(8, dtype=torch.bool)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    actual = F.scaled_dot_product_attention(
        q.npu(), k.npu(), v.npu(), attn_mask=None if mask is None else mask.npu(), is_causal=causal
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


BAD_INDEX = """
import torch, torch_npu
x = torch.ones(3, device="npu").index_select(0, torch.tensor([7], device="npu"))
try:
    torch.npu.synchronize()
except RuntimeError as error:
    print(error)
"""


def test_a_failing_kernel_names_its_operator() -> None:
    """In a process of its own: the error comes with the next synchronisation, and the device stays failed after it."""
    result = subprocess.run([sys.executable, "-c", BAD_INDEX], capture_output=True, text=True, timeout=300, check=False)
    assert "aclnnIndexSelect: index out of range in self" in result.stdout, result.stdout + result.stderr
