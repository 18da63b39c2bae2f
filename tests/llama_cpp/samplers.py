"""llama.cpp's samplers over rows of logits, by its C interface, without a model; and the chain of its server."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from tests.llama_cpp.vocabulary import Vocabulary

CANDIDATE: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""A `llama_token_data`."""
SERVER: Final[dict[str, Any]] = {
    **{"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "top_n_sigma": -1.0},
    **{"xtc_probability": 0.0, "xtc_threshold": 0.1, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
    **{"repeat_last_n": 64, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    **{"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64},
    **{"adaptive_target": -1.0, "adaptive_decay": 0.9, "seed": 1},
}
"""What a request leaves out, but for the seed (common/common.h; the names are those of tools/server)."""
OFF: Final = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""A request whose chain does nothing but draw."""
MIN_KEEP: Final = 0


class Left(NamedTuple):
    """What a chain leaves of a row.

    Attributes:
        ids: int64 [left], ascending: those whose logit is above -inf.
        logits: float32 [left], as the chain has left them.
        probabilities: float32 [left].
        drawn: the token that the chain's last sampler draws.
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float32]
    drawn: int


def candidates_of(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.void]:
    """The candidates of a row, as llama.cpp's `set_logits` makes them in each step."""
    candidates = np.empty(len(logits), CANDIDATE)
    candidates["id"] = np.arange(len(logits))
    candidates["logit"] = logits
    candidates["p"] = 0
    return candidates


class Chain:
    """Samplers one after the other, which it owns."""

    def __init__(self, *samplers: Any) -> None:
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self.samplers = samplers
        for sampler in samplers:
            llama_cpp.llama_sampler_chain_add(self._chain, sampler)

    def __enter__(self) -> Chain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    def free(self) -> None:
        """Frees the samplers."""
        llama_cpp.llama_sampler_free(self._chain)

    def accept(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        for token in tokens:
            llama_cpp.llama_sampler_accept(self._chain, token)

    def apply(self, candidates: npt.NDArray[np.void]) -> llama_cpp.llama_token_data_array:
        """Applies all samplers to candidates in place; what is left is a part of them."""
        first = candidates.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data=first, size=len(candidates), selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        return array

    def logits(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What samplers that change logits make of a row: float32 [vocab_size]."""
        candidates = candidates_of(logits)
        self.apply(candidates)
        return np.ascontiguousarray(candidates["logit"])

    def __call__(self, logits: npt.NDArray[np.float32]) -> Left:
        """Applies all samplers to a row: float32 [vocab_size]."""
        candidates = candidates_of(logits)
        array = self.apply(candidates)
        start = (ctypes.cast(array.data, ctypes.c_void_p).value - candidates.ctypes.data) // CANDIDATE.itemsize
        left = candidates[start : start + array.size]
        drawn = int(left["id"][array.selected]) if array.selected >= 0 else -1
        left = np.sort(left[left["logit"] > -np.inf], order="id")
        return Left(left["id"].astype(np.int64), left["logit"], left["p"], drawn)


def dry(asked: Mapping[str, Any], vocabulary: Vocabulary | None = None, breakers: Sequence[Sequence[int]] = ()) -> Any:
    """DRY's sampler. Without breakers it needs no vocabulary."""
    texts = [vocabulary.text(breaker) for breaker in breakers] if vocabulary is not None else []
    return llama_cpp.llama_sampler_init_dry(
        vocabulary.pointer if vocabulary is not None else None,
        *(asked[f"dry_{name}"] for name in ("multiplier", "base", "allowed_length", "penalty_last_n")),
        (ctypes.c_char_p * len(texts))(*texts),
        len(texts),
    )


def penalties(asked: Mapping[str, Any], vocab_size: int) -> Any:
    """The sampler of the penalties."""
    numbers = (asked["repeat_penalty"], asked["frequency_penalty"], asked["presence_penalty"])
    return llama_cpp.llama_sampler_init_penalties(vocab_size, asked["repeat_last_n"], *numbers)


def server_chain(request: Mapping[str, Any], vocab_size: int) -> Chain:
    """The chain that llama.cpp's server makes of a request without breakers (common/sampling.cpp)."""
    asked = SERVER | dict(request)
    if asked["mirostat"] == 2:
        return Chain(
            llama_cpp.llama_sampler_init_temp(asked["temperature"]),
            llama_cpp.llama_sampler_init_mirostat_v2(asked["seed"], asked["mirostat_tau"], asked["mirostat_eta"]),
        )
    xtc = (asked["xtc_probability"], asked["xtc_threshold"], MIN_KEEP, asked["seed"])
    adaptive = (asked["adaptive_target"], asked["adaptive_decay"], asked["seed"])
    return Chain(
        penalties(asked, vocab_size),
        dry(asked),
        llama_cpp.llama_sampler_init_top_n_sigma(asked["top_n_sigma"]),
        llama_cpp.llama_sampler_init_top_k(asked["top_k"]),
        llama_cpp.llama_sampler_init_typical(asked["typical_p"], MIN_KEEP),
        llama_cpp.llama_sampler_init_top_p(asked["top_p"], MIN_KEEP),
        llama_cpp.llama_sampler_init_min_p(asked["min_p"], MIN_KEEP),
        llama_cpp.llama_sampler_init_xtc(*xtc),
        llama_cpp.llama_sampler_init_temp(asked["temperature"]),
        llama_cpp.llama_sampler_init_dist(asked["seed"])
        if asked["adaptive_target"] < 0
        else llama_cpp.llama_sampler_init_adaptive_p(*adaptive),
    )
