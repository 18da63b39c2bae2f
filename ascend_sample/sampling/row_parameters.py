"""What rows of logits are sampled with and what comes of it, as tensors on the device of the logits."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE, SKIP_TOP_K
from ascend_sample._errors import refuse
from ascend_sample.sampling._checks import LARGEST_FRACTION
from ascend_sample.sampling.routes import RowFacts


class RowStatus(enum.IntEnum):
    """What was wrong with a row's logits. Its id is valid in any case."""

    OK = 0
    ALL_MASKED = 1  # every logit is -inf: the id is 0
    NAN_SEEN = 2  # counts as -inf
    INF_SEEN = 3  # the entries of +inf share the whole mass equally


class RowsOutput(NamedTuple):
    """What `sample_rows` returns.

    Attributes:
        token_ids: int64 [rows].
        status: int8 [rows], a `RowStatus` each.
    """

    token_ids: Tensor
    status: Tensor


@dataclass(frozen=True)
class RowParameters:
    """Per-row tensors on the device of the logits.

    Attributes:
        temperature: float32 [rows], 0 for greedy rows.
        top_k: int32 [rows]; outside [1, vocab_size) means off.
        top_p: float32 [rows]; 1 means off.
        min_p: float32 [rows]; 0 means off.
        seed: int64 [rows], the bits of the request's 64-bit seed.
        position: int64 [rows], the number of tokens before the one that is drawn.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor

    def select(self, rows: Tensor | slice) -> RowParameters:
        """Returns the parameters of some rows, in their order."""
        return RowParameters(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def for_operators(self, vocab_size: int) -> RowParameters:
        """Returns the same requests in the operators' terms.

        Greedy rows get a top_k of 1. A top_k of the whole vocabulary is off. A min_p of 1 keeps every logit that is
        equal to the best: to the operators, a min_p just below 1 says that, and 1 keeps a single entry.
        """
        top_k = self.top_k.masked_fill(self.top_k >= vocab_size, SKIP_TOP_K)
        return replace(
            self,
            top_k=top_k.masked_fill(self.temperature == 0, 1),
            min_p=self.min_p.clamp(max=LARGEST_FRACTION),
        )

    def at(self, position: Tensor) -> RowParameters:
        """Returns the same parameters at another position."""
        # Once a step: dataclasses.replace takes longer than the rest of it.
        return RowParameters(self.temperature, self.top_k, self.top_p, self.min_p, self.seed, position)


def facts_of(parameters: RowParameters) -> RowFacts:
    """Returns the facts of parameters whose tensors are on the CPU."""
    return RowFacts(
        parameters.temperature.numpy(), parameters.top_k.numpy(), parameters.top_p.numpy(), parameters.min_p.numpy()
    )


PARAMETER_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seed": torch.int64,
    "position": torch.int64,
}


def check_logits(name: str, logits: object) -> None:
    """Raises unless logits are a [rows, vocab_size] tensor that can be sampled from.

    Args:
        name: of the function that messages begin with.
        logits: what was given.

    Raises:
        TypeError: it is no tensor, or of another dtype.
        ValueError: its shape is another.
    """
    if not isinstance(logits, Tensor):
        refuse(name, "logits", "be a torch.Tensor", type(logits).__name__, "Use torch.as_tensor.", TypeError)
    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        remedy = "Convert with logits.float()."
        refuse(name, "logits", "be float32, float16 or bfloat16", logits.dtype, remedy, TypeError)
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= MAX_VOCAB_SIZE:
        rule = f"have shape [rows, vocab_size] with vocab_size in [1, {MAX_VOCAB_SIZE}]"
        refuse(name, "logits", rule, list(logits.shape), "Take the last position of each sequence.")


def check_parameters(name: str, parameters: RowParameters, logits: Tensor) -> None:
    """Raises unless every per-row tensor fits the logits.

    Args:
        name: of the function that messages begin with.
        parameters: what was given.
        logits: valid.

    Raises:
        TypeError: one is no tensor, or of another dtype.
        ValueError: one has another shape or device.
    """
    for argument, dtype in PARAMETER_DTYPES.items():
        tensor = getattr(parameters, argument)
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            refuse(name, argument, f"be a tensor of {dtype}", got, f"Convert with .to({dtype}).", TypeError)
        if tensor.shape != logits.shape[:1]:
            rule = f"have one value for each of the {len(logits)} rows of logits"
            refuse(name, argument, rule, f"shape {list(tensor.shape)}", f"Expand it with .expand({len(logits)}).")
        if tensor.device != logits.device:
            rule = f"be on the device of logits, {logits.device}"
            refuse(name, argument, rule, tensor.device, f"Call {argument}.to(logits.device).")
