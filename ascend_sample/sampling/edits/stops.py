"""Which requests have ended, and by which of their stop ids or sequences: looked for in the tokens that rows take in.

A row with any has a matcher on the host, which looks at each token once, in a time that does not depend on the text.
docs/sampling.md has the meaning, section "What ends a text".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ascend_sample.sampling.edits.text_indexes import Tokens, by_last
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.arguments import TokenIds, to_token_ids


class Ended(NamedTuple):
    """How a request has ended.

    Attributes:
        row: its place in the batch.
        stop: which of its `stop_sequences` was drawn, or one of its `stop_token_ids` as a sequence of one.
        length: how many tokens the output has with the last one of the sequence. Drafts may have brought more.
    """

    row: int
    stop: Tokens
    length: int


class StopMatcher:
    """Looks for the first place where the output of a request has one of its stop ids or sequences.

    One that ends before `min_tokens` is none, as in vLLM: a single id counts from token `min_tokens` on, the end of a
    longer one from the token behind it; it may begin before. Of those that end together an id counts first, then
    the first sequence.

    Args:
        params: the request; it has some.
        output_ids: the tokens that it has generated already. They are not looked at but as beginnings of sequences.
        vocab_size: of the batch.

    Attributes:
        end: the stop that has come, and how long the output was then; None: it goes on.
        is_reported: `SamplingBatch.ended` has returned it.

    Example:
        >>> matcher = StopMatcher(SamplingParams(stop_sequences=[[5, 6]]), [5], vocab_size=9)
        >>> matcher.extend([6, 5, 6])
        >>> matcher.end
        ((5, 6), 2)
    """

    def __init__(self, params: SamplingParams, output_ids: TokenIds, vocab_size: int) -> None:
        stops = [*((token_id,) for token_id in params.stop_token_ids), *map(tuple, params.stop_sequences)]
        longest = max(map(len, stops))
        before = to_token_ids("output_ids", output_ids[max(0, len(output_ids) - longest) :], vocab_size)
        self._last = deque(before.tolist(), longest)
        self._length, self._min_tokens = len(output_ids), params.min_tokens
        self._stops = by_last((stop, None) for stop in stops)
        self.end: tuple[Tokens, int] | None = None
        self.is_reported = False

    def extend(self, tokens: Iterable[int]) -> None:
        """Takes in tokens of the output; those behind its end change nothing."""
        for token in tokens:
            if self.end is not None:
                return
            self._length += 1
            self._last.append(token)
            for stop, _ in self._stops.get(token, ()):
                least = self._min_tokens + (len(stop) > 1)
                if self._length >= least and self._ends_with(stop):
                    self.end = (stop, self._length)
                    break

    def _ends_with(self, stop: Tokens) -> bool:
        return len(stop) == 1 or tuple(self._last)[-len(stop) :] == stop
