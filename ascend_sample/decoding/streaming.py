"""Tokens are told, as they come, to whoever listens: to a function, or to one streamer of transformers a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from ascend_sample._errors import refuse, refuse_type, show_with_type
from ascend_sample.decoding.checks import has_methods, is_list

STREAMER_METHODS: Final = ("put", "end")
"""The methods of `Streamer`."""
STREAMING: Final = "greedy_search, sample, contrastive_search or speculative_sample"
"""The strategies that tell tokens as they come."""

OnTokens = Callable[[Tensor, Tensor], None]
"""(tokens int64 [rows, n], counts int64 [rows]): called after each step with what it appended.

Of row r the first counts[r] tokens are new; 0 for a row that is done."""


class Streamer(Protocol):
    """Takes the tokens of one text while it grows; `BaseStreamer` of transformers and its heirs are such.

    Source: docs/decoding.md, section "Streaming".
    """

    def put(self, value: Tensor) -> Any:
        """Takes tokens, int64 on the CPU: first the prompt without its padding, [1, n], then what is new, [n]."""
        ...

    def end(self) -> Any:
        """Takes note that the text is done."""
        ...


Listener = OnTokens | Streamer | Sequence[Streamer]
"""Who is told of tokens: a function, or one streamer for each text."""


def checked_listener(strategy: str, listener: Listener | None) -> OnTokens | tuple[Streamer, ...] | None:
    """Returns a function, or streamers in a tuple, also one alone; `Listening` checks how many there are."""
    if listener is None:
        return None
    streamers: Sequence[Any] = listener if is_list(listener) else [listener]
    if streamers and all(has_methods(one, STREAMER_METHODS) for one in streamers):
        if len(set(map(id, streamers))) < len(streamers):
            rule, remedy = "be a streamer of its own for each row", "Make as many as there are rows."
            refuse(strategy, "on_tokens", rule, f"{show_with_type(streamers[0])} more than once", remedy)
        return tuple(streamers)
    if not callable(listener) or isinstance(listener, type):
        rule = "be a function of tokens and counts, a streamer with put and end, or a list of streamers"
        refuse_type(strategy, "on_tokens", rule, listener, "Make a function for all rows, or a streamer for each.")
    return listener


def refuse_listener(strategy: str, listener: OnTokens | tuple[Streamer, ...] | None) -> None:
    """Raises if someone listens to a strategy that knows its texts only at its end."""
    if listener is not None:
        remedy = f"No token is sure to be returned before the end: use what is returned, or stream with {STREAMING}."
        refuse(strategy, "on_tokens", "be None", show_with_type(listener), remedy)


class Listening:
    """Tells a listener what rows get. Streamers first get the prompts.

    Without a listener nothing is done; a function is given what is on the device; for streamers each step is read.

    Args:
        strategy: the name of the function, for messages.
        listener: what `checked_listener` has returned.
        prompts: int64 [rows, length], the prompt of each row.
        mask: bool [rows, length], False at padding.

    Raises:
        ValueError: there are more or fewer streamers than rows.
    """

    def __init__(
        self, strategy: str, listener: OnTokens | tuple[Streamer, ...] | None, prompts: Tensor, mask: Tensor
    ) -> None:
        self.has_streamers = isinstance(listener, tuple)
        self._function = None if isinstance(listener, tuple) else listener
        self._streamers: dict[int, Streamer] = {}  # those of the rows that are not done
        if isinstance(listener, tuple):
            if len(listener) != len(prompts):
                rule, remedy = f"be one streamer for each of {len(prompts)} rows", "Give a list with one for each."
                refuse(strategy, "on_tokens", rule, len(listener), remedy)
            self._streamers = dict(enumerate(listener))
            for streamer, prompt, is_token in zip(listener, prompts.cpu(), mask.cpu(), strict=True):
                streamer.put(prompt[is_token][None])

    def tell(self, tokens: Tensor, counts: Tensor, is_done: Tensor) -> None:
        """Passes on what a step appended, from whatever device it is on.

        Args:
            tokens: int64 [rows, n].
            counts: int64 [rows], how many of them are new.
            is_done: bool [rows], which rows get no more.
        """
        if self._function is not None:
            self._function(tokens, counts)
        if self._streamers:
            facts = torch.cat((tokens, counts[:, None], is_done[:, None]), dim=1).cpu()  # one read for all rows
            for row, streamer in list(self._streamers.items()):
                *_, count, is_last = facts[row].tolist()
                if count:
                    streamer.put(facts[row, :count])
                if is_last:
                    streamer.end()
                    del self._streamers[row]
