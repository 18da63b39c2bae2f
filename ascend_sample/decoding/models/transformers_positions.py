"""Models of transformers differ in where they have positions from; each row is given its own ones here."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final

from torch import Tensor, nn

POSITION_TABLES: Final = ("wpe", "embed_positions", "position_embeddings", "positions_embed", "pos_emb")
"""The names that modules of transformers give to a table with a row for each position."""


class PositionSource(Enum):
    """Tells where a model has the positions of a row's tokens from."""

    ARGUMENT = "it takes position_ids"
    EMBEDDING = "its decoder.embed_positions takes position_ids, which the decoder counts from the cache's width"
    RELATIVE = "only distances count"
    WIDTH = "it counts columns of the cache, so all rows must have one length"


RELATIVE_CAUSAL_MODELS: Final = ("bloom", "mpt")
"""Causal models without position_ids that are right all the same: they have ALiBi, which knows distances alone."""


def most_positions(model: Any) -> int | None:
    """Returns how many tokens a row may have, where a table of positions sets such a limit; None where none does.

    Args:
        model: a model of transformers; of an encoder-decoder, the decoder counts.
    """
    decoder = model.get_decoder()
    sizes = [len(table) for name, table in decoder.named_buffers() if name.rpartition(".")[2] in POSITION_TABLES]
    for name, table in decoder.named_modules():
        is_table = name.rpartition(".")[2] in POSITION_TABLES and isinstance(table, nn.Embedding)
        if is_table and not hasattr(table, "make_weight"):  # FSMT's table grows
            sizes.append(table.num_embeddings - getattr(table, "offset", 0))
    if model.config.model_type == "mpt":
        sizes.append(model.config.max_seq_len)  # it has ALiBi, but reads it from a table
    return min(sizes, default=None)


def takes_positions(embedding: object) -> bool:
    """Tells whether it is a position embedding that can be told what to look up."""
    return isinstance(embedding, nn.Embedding) and "position_ids" in inspect.signature(embedding.forward).parameters


@contextmanager
def positions_of_rows(embedding: nn.Module, positions: Tensor) -> Iterator[None]:
    """Makes a position embedding that the model asks for one row's positions return those of each row, while it lasts.

    The module may be shared: by threads, by other adapters, by somebody who calls it without any. So its hooks stay
    where they are, once for all, and what a call wants is known in that call's context alone.

    Args:
        embedding: a module that `takes_positions`. The model gives it int64 [new], and gets what it returns for
            positions.
        positions: int64 [batch, new], those of each row.
    """
    with _INSTALLING:
        if _give_positions not in embedding._forward_pre_hooks.values():
            embedding.register_forward_pre_hook(_give_positions, with_kwargs=True)
            embedding.register_forward_hook(_shape_rows)
    token = _WANTED.set((embedding, positions))
    try:
        yield
    finally:
        _WANTED.reset(token)


_WANTED: Final[ContextVar[tuple[nn.Module, Tensor] | None]] = ContextVar("_WANTED", default=None)
_INSTALLING: Final = threading.Lock()


def _wanted_of(embedding: nn.Module) -> Tensor | None:
    wanted = _WANTED.get()
    return wanted[1] if wanted is not None and wanted[0] is embedding else None


def _give_positions(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    positions = _wanted_of(module)
    return None if positions is None else (inputs, {**named, "position_ids": positions.flatten()})


def _shape_rows(module: nn.Module, inputs: tuple[Any, ...], embedded: Tensor) -> Tensor | None:
    positions = _wanted_of(module)
    return None if positions is None else embedded.reshape(*positions.shape, -1)
