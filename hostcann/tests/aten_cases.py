"""What test_aten runs on the CPU and on npu:0: functions of tensors by family, with the types and shapes for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., object]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT = (torch.float32,)
SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
INTEGERS = (*SIGNED, torch.uint8)
PAIR = ((3, 5, 7), (5, 1))  # the second is broadcast


class Case(NamedTuple):
    """A function of tensors, and how to make them; `rtol` only where the two sides take different kernels."""

    name: str
    function: Function
    dtypes: tuple[torch.dtype, ...] = FLOATS
    shapes: tuple[tuple[int, ...], ...] = ((3, 5, 7),)
    rtol: float = 0.0


def each(
    names: str, function: Callable[[str], Function], dtypes: tuple[torch.dtype, ...] = FLOATS, shapes=((3, 5, 7),)
) -> Iterator[Case]:
    """One case for each name, with the function that is made of it."""
    for name in names.split():
        yield Case(name, function(name), dtypes, shapes)


def torch_function(name: str) -> Function:
    return getattr(torch, name)


def method(*arguments: object) -> Callable[[str], Function]:
    """Functions that call the named method on the first tensor, with the other tensors and then `arguments`."""
    return lambda name: lambda x, *others: getattr(x, name)(*others, *arguments)


def after(prepare: Callable[[Tensor], Tensor]) -> Callable[[str], Function]:
    """Functions that call the named method, and that which works in place, on the prepared tensor: in its domain."""
    return lambda name: lambda x: (getattr(prepare(x), name)(), getattr(prepare(x), f"{name}_")())


def functional_inplace(name: str) -> Function:
    return lambda x: getattr(F, name)(x, inplace=True)


def index(x: Tensor, *values: object) -> Tensor:
    return torch.tensor(values, device=x.device)


def order(x: Tensor) -> Tensor:
    """Valid indices for the last dimension, in the shape of x."""
    return x.argsort(dim=-1, stable=True)


def assign_columns(x: Tensor) -> Tensor:
    x[:, index(x, 0, 2)] = 1
    return x


def assign_nothing(x: Tensor) -> Tensor:
    x[torch.empty(0, dtype=torch.long, device=x.device)] = 1
    return x


def bounds(ordered: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return torch.searchsorted(ordered, x), torch.searchsorted(ordered, x, right=True, out_int32=True)


def histogram_of_integers(x: Tensor, bins: int) -> Tensor:
    """torch's CPU kernel takes floats alone."""
    return torch.histc(x.float() if x.device.type == "cpu" else x, bins, min=-50, max=50).long()


UNARY = [
    *each("sign isnan isinf isfinite square isneginf isposinf signbit", torch_function),
    *each(
        "abs neg ceil floor round trunc exp exp2 expm1 sin cos tan tanh sinh cosh atan asinh erf erfc sinc sigmoid relu"
        " logical_not reciprocal frac",
        after(torch.clone),
    ),
    *each("log log2 log10 log1p sqrt rsqrt", after(lambda x: x.abs() + 0.01)),
    *each("acos asin atanh erfinv", after(torch.tanh)),
    *each("acosh", after(lambda x: x.abs() + 1)),
    Case("zero_", lambda x: x.zero_()),
    *each(
        "gelu silu mish logsigmoid hardswish hardsigmoid elu leaky_relu softplus hardtanh relu6",
        lambda name: getattr(F, name),
    ),
    *each("mish hardswish hardsigmoid elu leaky_relu hardtanh", functional_inplace),
    Case("threshold", lambda x: (F.threshold(x, 0.25, -3.0), F.threshold(x, 0.0, 1.0, inplace=True))),
    Case("round_decimals", lambda x: (torch.round(x, decimals=1), x.round_(decimals=2)), FLOAT),
    Case("nan_to_num", lambda x: torch.nan_to_num(x / torch.relu(x), nan=1.0, posinf=2.0, neginf=3.0)),
    Case("nan_to_num_", lambda x: torch.nan_to_num_(x / torch.relu(x))),
    Case("isnan_of_nan", lambda x: torch.isnan(x / torch.relu(x))),
    Case("clamp", lambda x: (x.clamp(-0.5, 0.75), x.clamp(min=0.1), torch.clamp_min(x, 0.1), torch.clamp_max(x, 0.1))),
    Case("clamp_", lambda x: (x.clone().clamp_(max=0.1), x.clone().clamp_max_(0.1), x.clone().clamp_min_(0.2))),
    Case(
        "clamp_tensor",
        lambda x, low, high: (x.clamp(low, high), x.clamp_min(low), x.clamp_max(high), x.clamp_min_(low)),
        shapes=((3, 4), (4,), (4,)),
    ),
    Case("clamp_max_tensor_", lambda x, high: x.clamp_max_(high), shapes=((3, 4), (4,))),
    Case("of_integers", lambda x: (x.abs(), -x, x.sign(), ~x, x.clamp(-3, 9)), SIGNED),
    Case("of_bool", lambda x: (~x, x.logical_not()), (torch.bool,)),
]

BINARY = [
    *each(
        "add sub mul maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor",
        torch_function,
        (*FLOATS, *INTEGERS),
        PAIR,
    ),
    *each("div atan2 fmod remainder", torch_function, FLOATS, PAIR),
    *each("remainder fmod floor_divide", lambda name: lambda x, y: getattr(torch, name)(x, y * 2 + 1), SIGNED, PAIR),
    *each("bitwise_and bitwise_or bitwise_xor", torch_function, (*INTEGERS, torch.bool), PAIR),
    *each("bitwise_and_ bitwise_or_ bitwise_xor_", method(), INTEGERS, PAIR),
    *each("gcd", torch_function, SIGNED[:2], PAIR),
    *each("logaddexp", torch_function, FLOAT, PAIR),
    *each(
        "add_ sub_ mul_ div_ atan2_ fmod_ remainder_ floor_divide_ eq_ ne_ lt_ le_ gt_ ge_ logical_and_ logical_or_",
        method(),
        FLOATS,
        PAIR,
    ),
    *each(
        "add sub mul div eq ne lt le gt ge remainder fmod floor_divide"
        " add_ sub_ mul_ div_ eq_ ne_ lt_ le_ gt_ ge_ remainder_ fmod_ floor_divide_",
        method(1.5),
    ),
    *each(
        "add sub mul div eq lt ge add_ mul_ remainder floor_divide"
        " bitwise_and bitwise_or bitwise_xor bitwise_and_ bitwise_or_ bitwise_xor_",
        method(3),
        INTEGERS,
    ),
    Case("shifts", lambda x: (x << 3, x >> 2), SIGNED[:2]),
    Case("shifts_by_tensor", lambda x, y: (x << (y & 7), x >> (y & 7)), SIGNED[:2], PAIR),
    Case("reversed", lambda x, y: (2 - x, torch.rsub(x, y, alpha=2), torch.remainder(2.5, x)), shapes=PAIR),
    Case("add_alpha", lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, 3, alpha=2)), shapes=PAIR),
    Case("pow", lambda x, y: (x.abs().pow(y), x**2, 2.0**x, x.abs().pow(0.5)), FLOAT, PAIR),
    Case("pow_", lambda x, y: (x.abs().pow_(y), x.abs().pow_(1.5)), FLOAT, PAIR),
    *each("floor trunc", lambda mode: lambda x, y: x.div(y, rounding_mode=mode), FLOATS, PAIR),
    *each("floor trunc", lambda mode: lambda x, y: x.div_(y, rounding_mode=mode), FLOATS, PAIR),
    *each("floor trunc", lambda mode: lambda x: x.div(0.7, rounding_mode=mode)),
    *each("floor trunc", lambda mode: lambda x: x.div_(0.7, rounding_mode=mode)),
    Case("lerp", lambda x, y: (torch.lerp(x, y, 0.25), torch.lerp(x, y, y)), FLOAT, ((3, 4), (4,))),
    Case("lerp_", lambda x, y: (x.clone().lerp_(y, 0.25), x.clone().lerp_(y, y)), FLOAT, ((3, 4), (4,))),
    Case("addcmul", lambda x, y: (torch.addcmul(x, y, y, value=0.5), x.clone().addcmul_(y, y)), shapes=PAIR),
    Case("addcdiv", lambda x, y: (torch.addcdiv(x, y, y + 9), x.clone().addcdiv_(y, y + 9, value=2)), shapes=PAIR),
    Case("xlogy", lambda x, y: torch.xlogy(x.abs(), y.abs() + 1), FLOAT, PAIR),
    Case("xlogy_of_numbers", lambda x: (torch.xlogy(x, 2.0), torch.xlogy(2.0, x.abs()))),
    Case(
        "mse_loss",
        lambda x, y: [F.mse_loss(x, y.expand_as(x), reduction=r) for r in ("none", "mean", "sum")],
        FLOAT,
        PAIR,
    ),
    Case("isclose", lambda x, y: (torch.isclose(x, x + y * 1e-6), torch.isclose(x, x)), FLOAT, PAIR),
    Case("isin", lambda x: (torch.isin(x, 7), torch.isin(7, x), torch.isin(x, x[0])), (torch.int64,)),
    Case("cpu_scalar_tensors", lambda x: (torch.tensor(2.0) + x, x * torch.tensor(0.5))),
    Case("type_promotion", lambda x: (x + 1.5, x * True, x / 2, x + torch.tensor(2.5)), INTEGERS),
    Case("mixed_types", lambda x: (x.float() + x, x.half() * x, x.bool() & (x > 0)), SIGNED[:2]),
    Case("where", lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, x, 0.0)), shapes=PAIR),
    Case("where_of_numbers", lambda x: torch.where(x > 0, 1, 0)),
]

REDUCTIONS = [
    *each(
        "sum mean amax amin any all argmax argmin",
        lambda name: lambda x: (getattr(x, name)(), getattr(x, name)(1), getattr(x, name)(-1, keepdim=True)),
    ),
    Case("sum_of_integers", lambda x: (x.sum(), x.sum(0), x.sum((0, 2)), x.sum(dtype=torch.float32)), INTEGERS),
    Case("of_bool", lambda x: (x.any(), x.all(), x.any(1), x.all(-1, keepdim=True), x.sum()), (torch.bool,)),
    Case("max_min", lambda x: (x.max(), x.min(), *x.max(1), *x.min(-1, keepdim=True)), (*FLOATS, torch.int64)),
    Case("aminmax", lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1)), FLOAT),
    Case("nansum", lambda x: (x / torch.relu(x)).nansum(1), FLOAT),
    Case("prod", lambda x: (x.prod(), x.prod(1)), (torch.float32, torch.int64)),
    Case("norm", lambda x: (x.norm(), x.norm(p=1, dim=1), torch.ops.aten.norm(x, 2)), FLOAT),
    Case("vector_norm", lambda x: torch.linalg.vector_norm(x, dim=-1), FLOAT),
    Case("var_std", lambda x: (x.var(), x.var(1, keepdim=True), x.std(-1, unbiased=False)), FLOAT),
    Case("var_mean", lambda x: (*torch.var_mean(x, -1), *torch.std_mean(x, 1)), FLOAT),
    Case("logsumexp", lambda x: torch.logsumexp(x, -1), FLOAT),
    Case("cumsum", lambda x: (x.cumsum(-1), x.cumsum(0)), (*FLOATS, torch.int64)),
    Case("cumsum_dtype", lambda x: x.cumsum(1, dtype=torch.float32)),
    Case("cumprod_cummax", lambda x: (x.cumprod(-1), *x.cummax(1), *x.cummin(1)), FLOAT),
    Case("softmax", lambda x: (x.softmax(-1), x.log_softmax(1), F.softmax(x, 0, dtype=torch.float32))),
    Case("layer_norm", lambda x, w, b: F.layer_norm(x, (7,), w, b), shapes=((3, 5, 7), (7,), (7,))),
    Case(
        "layer_norm_plain", lambda x, w: (F.layer_norm(x, (5, 7)), F.layer_norm(x, (7,), w)), shapes=((3, 5, 7), (7,))
    ),
    Case("layer_norm_of_nothing", lambda x, w: (F.layer_norm(x[:, :0], (7,), w, w), x + 1), shapes=((3, 5, 7), (7,))),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (7,), w, 1e-6), FLOAT, ((3, 5, 7), (7,)), rtol=1e-6),
]

SHAPES = [
    Case("creation", lambda x: (x.new_zeros(3), x.new_ones(2, 3, dtype=torch.int32), x.new_full((3,), 2.5)), FLOAT),
    Case("arange", lambda x: (torch.arange(7, device=x.device), torch.arange(1, 4, 0.5, device=x.device)), FLOAT),
    Case("linspace", lambda x: (torch.linspace(0, 1, 5, device=x.device), torch.eye(3, 4, device=x.device)), FLOAT),
    Case("casts", lambda x: [x.to(dtype) for dtype in (*FLOATS, *SIGNED, torch.bool)], (*FLOATS, *SIGNED, torch.bool)),
    *(
        Case(name, function, (torch.float32, torch.bfloat16, torch.int64, torch.bool))
        for name, function in {
            "cat": lambda x: torch.cat((x, x[:1], x[1:]), 0),
            "stack": lambda x: torch.stack((x, x.flip(0)), 1),
            "flip_roll": lambda x: (x.flip(0, 2), x.roll(2, 1)),
            "repeat": lambda x: (x.repeat(2, 1, 3), x.expand(2, 3, 5, 7).contiguous()),
            "repeat_interleave": lambda x: (x.repeat_interleave(3, dim=1), x.repeat_interleave(2)),
            "repeat_interleave_tensor": lambda x: x.repeat_interleave(index(x, 1, 0, 2), dim=0),
            "repeat_interleave_flat": lambda x: x[0, 0].repeat_interleave(torch.arange(7, device=x.device)),
            "repeat_interleave_count": lambda x: torch.repeat_interleave(torch.arange(4, device=x.device)),
            "triangles": lambda x: (x.tril(), x.triu(1), x.clone().tril_(-1), x.clone().triu_()),
            "slices": lambda x: (x[1:, ::2].clone(), x.transpose(0, 2).contiguous(), x[..., 3:].flatten()),
            "write_to_slice": lambda x: x[1:].copy_(x[:2].clone()),
            "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
            "split_chunk": lambda x: (*x.split(2, 1), *x.chunk(2, -1)),
            "full_like": lambda x: (torch.full_like(x, 3), torch.ones_like(x), torch.zeros_like(x)),
            "fill": lambda x: (x.clone().fill_(1), x.clone().fill_(x[0, 0, 0]), x[0].clone().fill_diagonal_(1)),
        }.items()
    ),
]

INDEXING = [
    *(
        Case(name, function, (torch.float32, torch.float16, torch.int64))
        for name, function in {
            "index": lambda x: (x[index(x, 2, 0)], x[:, index(x, [1], [4])], x[index(x, 2, 0), index(x, 1, 4)]),
            "index_put": lambda x: x.index_put((index(x, 0, 2),), x[1]),
            "index_put_columns": assign_columns,
            "index_put_nothing": assign_nothing,
            "index_put_accumulate": lambda x: x.index_put((index(x, 1, 1),), x[:2], accumulate=True),
            "index_select": lambda x: x.index_select(1, index(x, 4, 4, 0)),
            "index_add": lambda x: x.index_add(0, index(x, 0, 2), x[:2], alpha=2),
            "index_copy": lambda x: x.index_copy(0, index(x, 0, 2), x[:2]),
            "index_copy_": lambda x: x.index_copy_(0, index(x, 0, 2), x[1:].clone()),
            "index_fill": lambda x: x.index_fill(1, index(x, 0, 3), 1),
            "index_fill_": lambda x: x.index_fill_(1, index(x, 0, 3), 1),
            "gather": lambda x: x.gather(2, order(x)),
            "scatter": lambda x: (x.scatter(2, order(x), x), x.scatter(1, (x > 0).long(), 5)),
            "scatter_": lambda x: torch.zeros_like(x).scatter_(2, order(x), x),
            "scatter_value_": lambda x: torch.zeros_like(x).scatter_(2, order(x)[..., :3], 1),
            "scatter_add": lambda x: x.scatter_add(2, order(x), x),
            "masked_fill": lambda x: (x.masked_fill(x > 0, 9), x.clone().masked_fill_(x[0] > 0, x[0, 0, 0])),
            "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)),
            "take": lambda x: x.take(index(x, 0, 33)),
            "sort": lambda x: (*x.sort(dim=-1, stable=True), *x.sort(dim=1, descending=True, stable=True)),
            "topk": lambda x: (*x.topk(0), x.topk(3, -1).values, x.topk(2, 1, largest=False).values),
            "argsort": lambda x: x.argsort(dim=1, stable=True),
            "kthvalue_median": lambda x: (x.kthvalue(2, -1).values, x.median(), x.median(-1).values),
        }.items()
    ),
    Case("embedding", lambda w: F.embedding(index(w, [1, 4], [0, 2]), w), shapes=((5, 8),)),
    Case("one_hot", lambda x: F.one_hot(x.remainder(9), 9), (torch.int64,)),
    Case("searchsorted", lambda x, y: bounds(x.sort().values, y), FLOAT, ((9,), (4,))),
    Case("histc", lambda x: (torch.histc(x, bins=6, min=-2, max=2), torch.histc(x, bins=5)), FLOAT),
    Case("histc_of_integers", lambda x: histogram_of_integers(x, 10), SIGNED),
    Case("bincount", lambda x: torch.bincount(x.abs(), minlength=60), (torch.int64,), ((40,),)),
]

DATA_DEPENDENT = [
    *(
        Case(name, function, (torch.float32, torch.float16, torch.int64))
        for name, function in {
            "mask": lambda x: (x[x > 0], x.masked_select(x > 0), x[x > 100]),
            "nonzero": lambda x: (x.nonzero(), *torch.where(x > 0.5)),
            "unique": lambda x: torch.unique((x * 2).round()),
            "unique_all": lambda x: torch.unique((x * 2).round(), return_inverse=True, return_counts=True),
            "unique_inverse": lambda x: torch._unique((x * 2).round(), return_inverse=True),
            "unique_consecutive": lambda x: torch.unique_consecutive((x > 0).long(), return_counts=True),
            "unique_consecutive_dim": lambda x: torch.unique_consecutive(x.repeat_interleave(2, 0), dim=0),
        }.items()
    )
]

PRODUCTS = [
    Case("matmul", lambda a, b: (a @ b, a[0] @ b, a @ b[:, 0]), shapes=((3, 5, 7), (7, 4))),
    Case("mm_transposed", lambda a, b: (a.t().mm(b.t()), torch.mv(a.t(), b[0, :3])), shapes=((3, 5), (4, 3))),
    Case("bmm", lambda a, b: torch.bmm(a, b.transpose(1, 2)), shapes=((3, 5, 7), (3, 4, 7))),
    Case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), shapes=((4,), (3, 5), (5, 4))),
    Case("addmm_", lambda c, a, b: c.addmm_(a, b, beta=0.5, alpha=2), shapes=((3, 4), (3, 5), (5, 4))),
    Case("addmv", lambda c, a, b: torch.addmv(c, a, b, beta=0.5, alpha=2), shapes=((3,), (3, 5), (5,))),
    Case("addr", lambda c, a, b: torch.addr(c, a, b, beta=0.5, alpha=2), shapes=((3, 5), (3,), (5,))),
    Case("baddbmm", lambda c, a, b: c.baddbmm(a, b, beta=0.5, alpha=2), shapes=((3, 2, 4), (3, 2, 5), (3, 5, 4))),
    Case("addbmm", lambda c, a, b: c.addbmm(a, b, beta=0.5), FLOAT, ((2, 4), (3, 2, 5), (3, 5, 4)), rtol=1e-6),
    Case("linear", lambda x, w, b: (F.linear(x, w, b), F.linear(x, w)), shapes=((3, 5, 7), (4, 7), (4,))),
    Case("dot_outer", lambda x, y: (torch.dot(x, y), torch.outer(x, y)), shapes=((9,), (9,))),
    Case("einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b), FLOAT, ((2, 3, 4), (2, 5, 4))),
    Case(
        "conv1d",
        lambda x, w, b: (F.conv1d(x, w[:, :1], b, padding=2, groups=4), F.conv1d(x, w, stride=2, dilation=2)),
        shapes=((2, 4, 9), (4, 4, 3), (4,)),
    ),
    Case(
        "conv2d",
        lambda x, w, b: (F.conv2d(x, w, b, stride=(2, 1), padding=(0, 1)), F.conv_transpose2d(x, w, b, 2, 1, 1)),
        shapes=((2, 4, 6, 5), (4, 4, 3, 2), (4,)),
    ),
    Case(
        "solve_triangular",
        lambda a, b: (
            torch.linalg.solve_triangular(a.tril() + 9 * torch.eye(4, device=a.device), b, upper=False),
            torch.linalg.solve_triangular(a, b.mT, upper=True, left=False, unitriangular=True),
            torch.triangular_solve(b, a + 9 * torch.eye(4, device=a.device), upper=True, transpose=True)[0],
        ),
        FLOAT,
        ((3, 4, 4), (4, 2)),
        rtol=1e-5,
    ),
]
