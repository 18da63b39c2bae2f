"""Arguments that the operators must refuse: one table for the public functions and for the dispatcher operators.

The second operator refuses everything that the first one does, in the same words, and what only it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from ascend_sample.npu.operators import OPERATORS
from tests.operators.unusual_tensors import unusual_tensors

SAMPLE, SAMPLE_V2 = OPERATORS


@dataclass(frozen=True)
class BadInput:
    """Good arguments with something replaced.

    Attributes:
        name: what is wrong.
        message: a regular expression that the error's text matches.
        error: its type.
        replace: for each argument, a function from its good value to the bad one.
        operator_message: what the dispatcher operator says, where its argument parser is the one to refuse or k and p
            are not converted for it; None where it says the same.
        operator_error: the type of that error.
        needs_float64: the case needs a dtype that torch_npu replaces by float32.
    """

    name: str
    error: type[Exception]
    message: str
    replace: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    operator_message: str | None = None
    operator_error: type[Exception] | None = None
    needs_float64: bool = False


def good_arguments(device: str, operator: str = SAMPLE) -> dict[str, Any]:
    """Arguments of a batch of 4 rows and a vocabulary of 10 that an operator takes."""
    generator = torch.Generator().manual_seed(0)
    arguments: dict[str, Any] = {
        "logits": torch.randn(4, 10, generator=generator).to(torch.bfloat16).to(device),
        "k": torch.full((4,), 3, dtype=torch.int32, device=device),
        "p": torch.full((4,), 0.9, dtype=torch.bfloat16, device=device),
        "q": torch.rand(4, 10, generator=generator).to(device),
        "eps": 1e-8,
        "is_need_logits": False,
        "top_k_guess": 32,
    }
    if operator == SAMPLE:
        return arguments
    return arguments | {
        "min_p": torch.full((4,), 0.1, dtype=torch.bfloat16, device=device),
        "ks_max": 1024,
        "input_is_logits": True,
        "is_need_sample_result": False,
    }


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _parser(argument: str) -> str:
    """How the dispatcher's own argument parser names an argument of a wrong type."""
    return f"value of type .* for argument '{argument}'"


V, T = ValueError, TypeError


def _unparsed(error: type[Exception], argument: str, what: str, rule: str, bad: Callable[[Any], Any]) -> BadInput:
    """A case that the dispatcher's parser refuses before the operator's rules do."""
    return BadInput(f"{argument} {what}", error, f"{argument} {rule}", {argument: bad}, _parser(argument), RuntimeError)


def _bad_fractions(argument: str, skipped: str) -> list[BadInput]:
    """The cases of p and of min_p."""
    kind = "must be a floating-point tensor, a float or None, got"
    large = "must fit in a float, got"

    def case(error: type[Exception], what: str, rule: str, make: Callable[[Any], Any], *of_operator: Any) -> BadInput:
        return BadInput(f"{argument} {what}", error, f"{argument} {rule}", {argument: make}, *of_operator)

    return [
        _unparsed(T, argument, "a string", f"{kind} '0.9'", _always("0.9")),
        _unparsed(T, argument, "a bool", f"{kind} True. None skips {skipped}", _always(True)),
        _unparsed(T, argument, "complex", f"{kind} 1j", _always(1j)),
        _unparsed(T, argument, "a list", kind, lambda p: p.tolist()),
        _unparsed(
            V,
            argument,
            "an int that no float holds",
            f"{large} an int of 1329 bits. None skips {skipped}",
            _always(10**400),
        ),
        _unparsed(
            V,
            argument,
            "a fraction that no float holds",
            f"{large} a Fraction. None skips {skipped}",
            _always(Fraction(10**400)),
        ),
        case(
            T,
            "int32",
            f"{kind} a tensor of torch.int32",
            lambda p: p.int(),
            rf"{argument} must have the dtype of logits \(BFloat16\), got Int",
            T,
        ),
        case(V, "too short", r"must have one value for each row of logits \(4\), got 1", lambda p: p[:1]),
        case(V, "a row", r"must have shape \[batch\], got 2 dimensions", lambda p: p[None]),
        case(V, "a column", r"must have shape \[batch\], got 2 dimensions", lambda p: p[:, None]),
        case(V, "elsewhere", "must be on the device of logits .*, got meta", lambda p: p.to("meta")),
        case(T, "sparse", "must be a dense strided tensor, got layout Sparse", lambda p: p.cpu().to_sparse()),
    ]


BAD_INPUTS = [
    # logits
    _unparsed(T, "logits", "a list", "must be a torch.Tensor, got list", lambda x: x.tolist()),
    BadInput(
        "logits None",
        T,
        "logits must be a torch.Tensor, got NoneType",
        {"logits": _always(None)},
        "logits must be a torch.Tensor, got None",
    ),
    BadInput(
        "logits float64",
        T,
        "logits must be float32, float16 or bfloat16, got Double",
        {"logits": lambda x: x.double()},
        needs_float64=True,
    ),
    BadInput(
        "logits int64", T, "logits must be float32, float16 or bfloat16, got Long", {"logits": lambda x: x.long()}
    ),
    BadInput("logits bool", T, "logits must be float32, float16 or bfloat16, got Bool", {"logits": lambda x: x > 0}),
    BadInput(
        "logits 1-D", V, r"logits must have shape \[batch, vocab_size\], got 1 dimensions", {"logits": lambda x: x[0]}
    ),
    BadInput(
        "logits 3-D",
        V,
        r"logits must have shape \[batch, vocab_size\], got 3 dimensions",
        {"logits": lambda x: x[None]},
    ),
    BadInput(
        "logits 0-D",
        V,
        r"logits must have shape \[batch, vocab_size\], got 0 dimensions",
        {"logits": lambda x: x[0, 0]},
    ),
    BadInput(
        "no vocabulary",
        V,
        "logits must have at least one column, got vocab_size 0",
        {"logits": lambda x: x[:, :0], "q": lambda q: q[:, :0]},
    ),
    BadInput(
        "vocabulary too large",
        V,
        "logits must have at most 1048576 columns, got vocab_size 1048577",
        {"logits": lambda x: x[:, :1].expand(4, 2**20 + 1), "q": _always(None)},
    ),
    BadInput(
        "logits sparse",
        T,
        "logits must be a dense strided tensor, got layout Sparse",
        {"logits": lambda x: x.cpu().float().to_sparse()},
    ),
    # k
    _unparsed(T, "k", "a float", "must be an integer tensor, an int or None, got 3.5", _always(3.5)),
    _unparsed(T, "k", "a string", "must be an integer tensor, an int or None, got '3'", _always("3")),
    _unparsed(T, "k", "a bool", "must be an integer tensor, an int or None, got True", _always(True)),
    _unparsed(T, "k", "a list", r"must be an integer tensor, an int or None, got \[3, 3, 3, 3\]", lambda k: k.tolist()),
    BadInput(
        "k float32",
        T,
        "k must be an integer tensor, an int or None, got a tensor of torch.float32",
        {"k": lambda k: k.float()},
        "k must be int32, got Float",
        T,
    ),
    BadInput(
        "k bool tensor",
        T,
        "k must be an integer tensor, an int or None, got a tensor of torch.bool",
        {"k": lambda k: k > 0},
        "k must be int32, got Bool",
        T,
    ),
    BadInput(
        "k complex",
        T,
        "k must be an integer tensor, an int or None, got a tensor of torch.complex64",
        {"k": lambda k: k.cpu().to(torch.complex64)},
        "k must be int32, got ComplexFloat",
        T,
    ),
    BadInput("k too short", V, r"k must have one value for each row of logits \(4\), got 3", {"k": lambda k: k[:3]}),
    BadInput(
        "k too long",
        V,
        r"k must have one value for each row of logits \(4\), got 8",
        {"k": lambda k: torch.cat([k, k])},
    ),
    BadInput("k a column", V, r"k must have shape \[batch\], got 2 dimensions", {"k": lambda k: k[:, None]}),
    BadInput("k empty", V, r"k must have one value for each row of logits \(4\), got 0", {"k": lambda k: k[:0]}),
    BadInput("k elsewhere", V, "k must be on the device of logits .*, got meta", {"k": lambda k: k.to("meta")}),
    BadInput(
        "k sparse", T, "k must be a dense strided tensor, got layout Sparse", {"k": lambda k: k.cpu().to_sparse()}
    ),
    *_bad_fractions("p", "top-p"),
    # q
    _unparsed(T, "q", "a number", "must be a torch.Tensor, got float", _always(1.0)),
    BadInput("q bfloat16", T, "q must be float32, got BFloat16", {"q": lambda q: q.to(torch.bfloat16)}),
    BadInput("q float64", T, "q must be float32, got Double", {"q": lambda q: q.double()}, needs_float64=True),
    BadInput("q int64", T, "q must be float32, got Long", {"q": lambda q: q.long()}),
    BadInput("q 1-D", V, r"q must have shape \[batch, vocab_size\], got 1 dimensions", {"q": lambda q: q[0]}),
    BadInput("q too narrow", V, r"q must have the shape of logits \[4, 10\], got \[4, 9\]", {"q": lambda q: q[:, :9]}),
    BadInput("q too few rows", V, r"q must have the shape of logits \[4, 10\], got \[3, 10\]", {"q": lambda q: q[:3]}),
    BadInput("q transposed", V, r"q must have the shape of logits \[4, 10\], got \[10, 4\]", {"q": lambda q: q.T}),
    BadInput("q elsewhere", V, "q must be on the device of logits .*, got meta", {"q": lambda q: q.to("meta")}),
    BadInput(
        "q sparse", T, "q must be a dense strided tensor, got layout Sparse", {"q": lambda q: q.cpu().to_sparse()}
    ),
    # options
    _unparsed(
        V,
        "eps",
        "an int that no float holds",
        "must fit in a float, got an int of 1329 bits. Use the default, 1e-8",
        _always(10**400),
    ),
    BadInput("eps negative", V, "eps must be finite and >= 0, got -1e-08", {"eps": _always(-1e-8)}),
    BadInput("eps infinite", V, "eps must be finite and >= 0, got inf", {"eps": _always(math.inf)}),
    BadInput("eps NaN", V, "eps must be finite and >= 0, got nan", {"eps": _always(math.nan)}),
    _unparsed(T, "eps", "a string", "must be a float, got '1e-8'", _always("1e-8")),
    _unparsed(T, "eps", "None", "must be a float, got None", _always(None)),
    BadInput("top_k_guess 0", V, "top_k_guess must be >= 1, got 0", {"top_k_guess": _always(0)}),
    BadInput("top_k_guess negative", V, "top_k_guess must be >= 1, got -5", {"top_k_guess": _always(-5)}),
    _unparsed(
        V,
        "top_k_guess",
        "beyond int64",
        "must fit in int64, got 9223372036854775808. Use the default, 32",
        _always(2**63),
    ),
    _unparsed(T, "top_k_guess", "a float", "must be an int, got 1.5", _always(1.5)),
    _unparsed(T, "is_need_logits", "a string", "must be True or False, got str 'yes'", _always("yes")),
    _unparsed(
        T, "is_need_logits", "a tensor", "must be True or False, got a tensor", _always(torch.tensor([True, False]))
    ),
]


BAD_INPUTS_OF_V2 = [
    *_bad_fractions("min_p", "min-p"),
    # options
    _unparsed(
        V,
        "ks_max",
        "beyond int64",
        "must fit in int64, got 1180591620717411303424. Use the default, 1024",
        _always(2**70),
    ),
    _unparsed(
        V,
        "ks_max",
        "below int64",
        "must fit in int64, got -9223372036854775809. Use the default, 1024",
        _always(-(2**63) - 1),
    ),
    BadInput("ks_max 0", V, "ks_max must be between 1 and 1024, got 0", {"ks_max": _always(0)}),
    BadInput("ks_max 1025", V, "ks_max must be between 1 and 1024, got 1025", {"ks_max": _always(1025)}),
    _unparsed(T, "ks_max", "a float", "must be an int, got 8.5", _always(8.5)),
    _unparsed(T, "input_is_logits", "a string", "must be True or False, got str 'no'", _always("no")),
    _unparsed(T, "is_need_sample_result", "a string", "must be True or False, got str 'no'", _always("no")),
    BadInput(
        "q beside a sample result",
        V,
        "q must be None when is_need_sample_result is True, got a tensor. Draw from logits_sort_masked yourself",
        {"is_need_sample_result": _always(True)},
    ),
]


def _unusual(*arguments: str) -> list[BadInput]:
    return [
        BadInput(
            f"{argument} {name}", T, message, {argument: make}, operator_message=operator_message, operator_error=error
        )
        for name, argument, message, make, operator_message, error in unusual_tensors(arguments)
    ]


UNUSUAL = _unusual("logits", "k", "p", "q")
UNUSUAL_OF_V2 = _unusual("min_p")


def bad_inputs(device: str, operator: str = SAMPLE) -> list[BadInput]:
    """The cases of an operator that can be made on the device."""
    table = BAD_INPUTS + UNUSUAL if operator == SAMPLE else BAD_INPUTS + UNUSUAL + BAD_INPUTS_OF_V2 + UNUSUAL_OF_V2
    return [bad for bad in table if device == "cpu" or not bad.needs_float64]
