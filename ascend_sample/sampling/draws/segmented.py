"""The draw of rows whose kept entries are not ranked: first a segment of the vocabulary, then a place in it.

With weights w and exponential noise, argmax w_i / q_i over a whole vocabulary is a draw that reads as many numbers of
noise as there are ids. Two races in a row draw the same distribution with few: the first among the sums W_s of the
weights of segments, the second among the weights of the segment that has won. An id comes out with probability
W_s / W * w_i / W_s = w_i / W, whatever the segments are.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

SEGMENT: Final = 256
"""How many ids a segment has: segment s begins at id 256 s, and the vocabulary's last one may be shorter."""


def segments_of(vocab_size: int) -> int:
    """Returns the number of segments.

    Example:
        >>> segments_of(32000), segments_of(151936)
        (125, 594)
    """
    return -(-vocab_size // SEGMENT)


def lanes_of(vocab_size: int) -> int:
    """Returns how many lanes of noise a draw reads: one for each place of a segment, then one for each segment.

    Example:
        >>> lanes_of(151936)
        850
    """
    return SEGMENT + segments_of(vocab_size)


def whole_columns(vocab_size: int) -> int:
    """Returns how many columns all segments have, were the last one full.

    Example:
        >>> whole_columns(32000), whole_columns(151936)
        (32000, 152064)
    """
    return segments_of(vocab_size) * SEGMENT


def segments_around(logits: Tensor) -> Tensor | None:
    """Returns the whole segments that float32 logits lie in, if their rows are so far apart."""
    columns = whole_columns(logits.shape[1])
    if logits.dtype != torch.float32 or logits.stride() != (columns, 1):
        return None
    return logits.as_strided((len(logits), columns), (columns, 1))


def whole_segments(rows: int, vocab_size: int, device: torch.device) -> Tensor:
    """Allocates room for weights: float32 [rows, 256 segments], of which the first vocab_size columns are ids.

    The last segment is full as well, so that one view cuts all rows into segments; `draw_from_segments` clears what is
    beyond the vocabulary.
    """
    return torch.empty(rows, whole_columns(vocab_size), dtype=torch.float32, device=device)


def draw_from_segments(weights: Tensor, vocab_size: int, noise: Tensor) -> Tensor:
    """Draws one id a row: seven launches, and one more where the last segment is not full.

    Each segment is summed by itself, so its sum does not depend on how many other segments and rows there are.

    Args:
        weights: float32 [rows, 256 segments], from `whole_segments`: the first vocab_size columns are ids, 0 for what
            must not be drawn.
        vocab_size: how many ids there are.
        noise: float32 [rows, lanes_of(vocab_size)] > 0: the places', then the segments'.

    Returns:
        int64 [rows]; 0 for a row without any weight.

    Example:
        >>> weights, noise = torch.zeros(1, whole_columns(600)), torch.ones(1, lanes_of(600))
        >>> weights[0, 7], weights[0, 300], weights[0, 301] = 2.0, 1.0, 1.5
        >>> draw_from_segments(weights, 600, noise)  # 1 + 1.5 is more than 2, and 1.5 more than 1
        tensor([301])
    """
    rows, columns = weights.shape
    if columns > vocab_size:
        weights[:, vocab_size:].zero_()
    segments = weights.view(rows, -1, SEGMENT)
    winner = (segments.sum(2) / noise[:, SEGMENT:]).argmax(1)
    inside = segments.gather(1, winner.view(rows, 1, 1).expand(-1, 1, SEGMENT)).squeeze(1)
    place = (inside / noise[:, :SEGMENT]).argmax(1)
    return torch.add(place, winner, alpha=SEGMENT)
