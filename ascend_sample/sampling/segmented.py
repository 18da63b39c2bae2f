"""The draw of rows whose kept entries are not ranked: first a segment of the vocabulary, then a place in it.

With weights w and exponential noise, argmax w_i / q_i over a whole vocabulary is a draw that reads as many numbers of
noise as there are ids. Two races in a row draw the same distribution with few: the first among the sums W_s of the
weights of segments, the second among the weights of the segment that has won. An id comes out with probability
W_s / W * w_i / W_s = w_i / W, whatever the segments are.
"""

from __future__ import annotations

from typing import Final

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
