"""Arguments that the operators must refuse: one table for the public functions and for the dispatcher operators.

The second operator refuses everything that the first one does, in the same words, and what only it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ascend_sample.npu.operators import OPERATORS

SAMPLE, SAMPLE_V2, APPLY = OPERATORS
V, T = ValueError, TypeError


class BadInput(NamedTuple):
    """Good arguments with one of them replaced.

    Attributes:
        argument: the argument.
        what: what is wrong with it.
        error: the type of the error.
        rule: a regular expression that the error's text has after the argument's name.
        make: a function from its good value to the bad one.
        operator_message: what the dispatcher operator says, where its argument parser is the one to refuse or k and p
            are not converted for it; None where it says the same.
        operator_error: the type of that error; None where it is the same.
        others: what else is replaced.
        needs_float64: the case needs a dtype that torch_npu replaces by float32.
    """

    argument: str
    what: str
    error: type[Exception]
    rule: str
    make: Callable[[Any], Any]
    operator_message: str | None = None
    operator_error: type[Exception] | None = None
    others: dict[str, Callable[[Any], Any]] | None = None
    needs_float64: bool = False

    @property
    def message(self) -> str:
        return f"{self.argument} {self.rule}"

    def arguments(self, good: dict[str, Any]) -> dict[str, Any]:
        """Returns the bad arguments."""
        changes = (self.others or {}) | {self.argument: self.make}
        changes = {name: change for name, change in changes.items() if name in good}
        return good | {name: change(good[name]) for name, change in changes.items()}


class Foreign(Tensor):
    """A subclass that refuses every operator."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"no {func} of foreign tensors")


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
    if operator == APPLY:
        return {name: arguments[name] for name in ("logits", "k", "p")}
    return arguments | {
        "min_p": torch.full((4,), 0.1, dtype=torch.bfloat16, device=device),
        "ks_max": 1024,
        "input_is_logits": True,
        "is_need_sample_result": False,
    }


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _unparsed(argument: str, what: str, error: type[Exception], rule: str, make: Callable[[Any], Any]) -> BadInput:
    """A case that the dispatcher's own parser refuses before the operator's rules do."""
    return BadInput(argument, what, error, rule, make, f"value of type .* for argument '{argument}'", RuntimeError)


INTEGERS = "must be an integer tensor, an int or None, got"
FRACTIONS = "must be a floating-point tensor, a float or None, got"
OF_OPERATOR = {
    "logits": "must be float32, float16 or bfloat16, got",
    "k": "must be int32, got",
    "p": r"must have the dtype of logits \(BFloat16\), got",
    "min_p": r"must have the dtype of logits \(BFloat16\), got",
    "q": "must be float32, got",
}
OF_FUNCTION = OF_OPERATOR | {"k": INTEGERS, "p": FRACTIONS, "min_p": FRACTIONS}
HUGE, HUGE_SAID = 10**400, "must fit in a float, got an int of 1329 bits."


def _of_dtype(argument: str, dtype: torch.dtype, c10: str, make: Callable[[Any], Any] | None = None) -> BadInput:
    """A tensor of a dtype that neither an argument's rule nor a conversion knows."""
    operator = f"{OF_OPERATOR[argument]} {c10}"
    rule = f"{OF_FUNCTION[argument]} a tensor of {dtype}" if argument in ("k", "p", "min_p") else operator
    make = make or (lambda good: torch.empty(good.shape, dtype=dtype))
    return BadInput(argument, str(dtype), T, rule, make, f"{argument} {operator}", T)


def _bad_tensors(argument: str) -> list[BadInput]:
    """Kinds of tensors that are refused in the place of any tensor."""
    dense = "must be a dense strided tensor, got"
    foreign = "must be a plain tensor, got a Foreign, whose class does not take the operator. Give the val"

    def nested(layout: torch.layout) -> Callable[[Tensor], Tensor]:
        return lambda good: torch.nested.nested_tensor([row.reshape(-1) for row in good.cpu()], layout=layout)

    def quantized(good: Tensor) -> Tensor:
        return torch.quantize_per_tensor(good.cpu().float(), 0.1, 0, torch.quint8)

    cases = [
        BadInput(argument, "sparse", T, f"{dense} layout Sparse", lambda good: good.cpu().to_sparse()),
        BadInput(argument, "nested", T, f"{dense} a nested one. Pad its rows", nested(torch.strided)),
        BadInput(argument, "jagged", T, f"{dense} a nested one. Pad its rows", nested(torch.jagged)),
        BadInput(argument, "quantized", T, rf"{dense} a quantized one of QUInt8. Call .dequantize\(\)", quantized),
        BadInput(
            *(argument, "foreign", T, foreign, lambda good: good.cpu().as_subclass(Foreign)),
            *("no ascend_sample.* of foreign tensors", NotImplementedError),
        ),
        _of_dtype(argument, torch.float8_e4m3fn, "Float8_e4m3fn"),
        _of_dtype(argument, torch.complex64, "ComplexFloat"),
    ]
    if argument != "logits":
        rule = "must be on the device of logits .*, got meta"
        cases.append(BadInput(argument, "elsewhere", V, rule, lambda good: good.to("meta")))
    if argument in ("k", "p", "min_p"):
        converted, rows = (
            torch.int64 if argument == "k" else torch.float64,
            "must have one value for each row of logits",
        )
        vector, to_sparse = r"must have shape \[batch\], got 2 dim", lambda good: good.cpu().to(converted).to_sparse()
        cases += [
            BadInput(argument, "sparse and to be converted", T, f"{dense} layout Sparse", to_sparse),
            BadInput(argument, "too short", V, rf"{rows} \(4\), got 1", lambda good: good[:1]),
            BadInput(argument, "empty", V, rf"{rows} \(4\), got 0", lambda good: good[:0]),
            BadInput(argument, "a row", V, vector, lambda good: good[None]),
        ]
    return cases


def _bad_fractions(argument: str, skipped: str) -> list[BadInput]:
    """What is neither a tensor nor a number, in the place of p and of min_p."""
    skips = f"None skips {skipped}"
    huge = Fraction(HUGE)
    return [
        _unparsed(argument, "a string", T, f"{FRACTIONS} '0.9'", _always("0.9")),
        _unparsed(argument, "a bool", T, f"{FRACTIONS} True. {skips}", _always(True)),
        _unparsed(argument, "complex", T, f"{FRACTIONS} 1j", _always(1j)),
        _unparsed(argument, "a list", T, FRACTIONS, lambda p: p.tolist()),
        _unparsed(argument, "an int that no float holds", V, f"{HUGE_SAID} {skips}", _always(HUGE)),
        _unparsed(argument, "a fraction", V, f"must fit in a float, got a Fraction. {skips}", _always(huge)),
        _of_dtype(argument, torch.int32, "Int", lambda p: p.int()),
    ]


COLUMNS = r"must have shape \[batch, vocab_size\], got"
WIDE, TOO_WIDE = "must have at most 1048576 columns, got vocab_size 1048577", 2**20 + 1
SHAPE = r"must have the shape of logits \[4, 10\], got"
IS_BOOL, FITS = "must be True or False, got", "must fit in int64, got"
EPS, KS_MAX = "must be finite and >= 0, got", "must be between 1 and 1024, got"
BAD_INPUTS = [
    *(case for argument in ("logits", "k", "p", "q") for case in _bad_tensors(argument)),
    *_bad_fractions("p", "top-p"),
    # logits
    _unparsed("logits", "a list", T, "must be a torch.Tensor, got list", lambda x: x.tolist()),
    BadInput(
        *("logits", "None", T, "must be a torch.Tensor, got NoneType", _always(None)),
        "logits must be a torch.Tensor, got None",
    ),
    _of_dtype("logits", torch.float64, "Double", lambda x: x.double())._replace(needs_float64=True),
    _of_dtype("logits", torch.int64, "Long", lambda x: x.long()),
    BadInput("logits", "1-D", V, f"{COLUMNS} 1 dimensions", lambda x: x[0]),
    BadInput(
        *("logits", "empty", V, "must have at least one column, got vocab_size 0", lambda x: x[:, :0]),
        others={"q": lambda q: q[:, :0]},
    ),
    BadInput("logits", "wide", V, WIDE, lambda x: x[:, :1].expand(4, TOO_WIDE), others={"q": _always(None)}),
    # k
    _unparsed("k", "a float", T, f"{INTEGERS} 3.5", _always(3.5)),
    _unparsed("k", "a string", T, f"{INTEGERS} '3'", _always("3")),
    _unparsed("k", "a bool", T, f"{INTEGERS} True", _always(True)),
    _unparsed("k", "a list", T, rf"{INTEGERS} \[3, 3, 3, 3\]", lambda k: k.tolist()),
    _of_dtype("k", torch.float32, "Float", lambda k: k.float()),
    # q
    _unparsed("q", "a number", T, "must be a torch.Tensor, got float", _always(1.0)),
    _of_dtype("q", torch.bfloat16, "BFloat16", lambda q: q.to(torch.bfloat16)),
    _of_dtype("q", torch.float64, "Double", lambda q: q.double())._replace(needs_float64=True),
    BadInput("q", "too narrow", V, rf"{SHAPE} \[4, 9\]", lambda q: q[:, :9]),
    BadInput("q", "transposed", V, rf"{SHAPE} \[10, 4\]", lambda q: q.T),
    # options
    _unparsed("eps", "an int that no float holds", V, f"{HUGE_SAID} Use the default, 1e-8", _always(HUGE)),
    _unparsed("eps", "a string", T, "must be a float, got '1e-8'", _always("1e-8")),
    _unparsed("eps", "None", T, "must be a float, got None", _always(None)),
    BadInput("eps", "negative", V, f"{EPS} -1e-08", _always(-1e-8)),
    BadInput("eps", "infinite", V, f"{EPS} inf", _always(math.inf)),
    BadInput("eps", "NaN", V, f"{EPS} nan", _always(math.nan)),
    BadInput("top_k_guess", "0", V, "must be >= 1, got 0", _always(0)),
    _unparsed("top_k_guess", "beyond", V, f"{FITS} 9223372036854775808. Use the default, 32", _always(2**63)),
    _unparsed("top_k_guess", "a float", T, "must be an int, got 1.5", _always(1.5)),
    _unparsed("is_need_logits", "a string", T, f"{IS_BOOL} str 'yes'", _always("yes")),
    _unparsed("is_need_logits", "a tensor", T, f"{IS_BOOL} a tensor", _always(torch.tensor([True, False]))),
]
BAD_INPUTS_OF_V2 = [
    *_bad_tensors("min_p"),
    *_bad_fractions("min_p", "min-p"),
    _unparsed("ks_max", "beyond", V, f"{FITS} 1180591620717411303424. Use the default, 1024", _always(2**70)),
    _unparsed("ks_max", "below", V, f"{FITS} -9223372036854775809. Use the default, 1024", _always(-(2**63) - 1)),
    BadInput("ks_max", "0", V, f"{KS_MAX} 0", _always(0)),
    BadInput("ks_max", "1025", V, f"{KS_MAX} 1025", _always(1025)),
    _unparsed("ks_max", "a float", T, "must be an int, got 8.5", _always(8.5)),
    _unparsed("input_is_logits", "a string", T, f"{IS_BOOL} str 'no'", _always("no")),
    _unparsed("is_need_sample_result", "a string", T, f"{IS_BOOL} str 'no'", _always("no")),
    BadInput(
        *("q", "beside a sample result", V, "must be None when is_need_sample_result is True, got a tensor. Draw from"),
        make=lambda q: q,
        others={"is_need_sample_result": _always(True)},
    ),
]

BAD_INPUTS_OF_APPLY = [
    BadInput(
        "k", "None beside p", V, "must be given where p is None, got None", _always(None), others={"p": _always(None)}
    ),
]


def bad_inputs(device: str, operator: str = SAMPLE) -> list[BadInput]:
    """The cases of an operator that can be made on the device."""
    tables = {SAMPLE: [], SAMPLE_V2: BAD_INPUTS_OF_V2, APPLY: BAD_INPUTS_OF_APPLY}
    names = good_arguments("meta", operator).keys()
    table = [bad for bad in BAD_INPUTS if bad.argument in names] + tables[operator]
    return [bad for bad in table if device == "cpu" or not bad.needs_float64]
