"""The chunks that a row's sum of exponentials is made of, where ranks have parts of them.

The CPU kernel adds a row up by chunks of 1024 ids, and a chunk in one order, so that a sum has the same bits always. A
rank tells the sums of the chunks that it has as a whole, and the logits of the pieces before and behind them: what all
make of that has the bits of a row that is not split.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.vocabulary_parallel.shard import Borders

CHUNK: Final = 1024
"""How many ids are added up together: chunk c begins at id 1024 c, and the vocabulary's last one may be shorter."""


class Piece(NamedTuple):
    """Ids of a rank that lie in a chunk which it does not have as a whole.

    Attributes:
        ids: which.
        column: where they lie among the pieces that the rank tells.
    """

    ids: range
    column: int


class Chunks:
    """Which rank has what of the chunks.

    Args:
        borders: of the ranks.
        size: how many ids a chunk has.

    Attributes:
        whole: the chunks that each rank has as a whole.
        pieces: what each has beside them.
        shared: the chunks of which some rank has a piece, ascending.
        most_whole: how many whole chunks any rank has at most.
        most_in_pieces: how many ids of pieces any rank tells at most.

    Example:
        >>> chunks = Chunks(Borders((0, 3000), (3000, 5000)))
        >>> chunks.whole, [piece.ids for piece in chunks.pieces[0]]
        ([range(0, 2), range(3, 5)], [range(2048, 3000)])
    """

    def __init__(self, borders: Borders, size: int = CHUNK) -> None:
        vocab_size = borders.ends[-1]
        self._size, self._count = size, -(-vocab_size // size)
        self.whole: list[range] = []
        self.pieces: list[list[Piece]] = []
        for first, end in zip(borders.firsts, borders.ends, strict=True):
            first_whole = -(-first // size)
            whole = range(first_whole, max(first_whole, -(-end // size) if end == vocab_size else end // size))
            head = range(first, min(end, first_whole * size))
            tail = range(max(head.stop, whole.stop * size), end)
            self.whole.append(whole)
            pieces = (Piece(head, 0), Piece(tail, len(head)))
            self.pieces.append([piece for piece in pieces if len(piece.ids)])
        covered = {chunk for whole in self.whole for chunk in whole}
        self.shared = [chunk for chunk in range(self._count) if chunk not in covered]
        self.most_whole = max(map(len, self.whole))
        self.most_in_pieces = max(sum(len(piece.ids) for piece in pieces) for pieces in self.pieces)

    def put_together(self, pieces: Tensor) -> Tensor:
        """Returns the shared chunks of rows: floats [rows, shared, size], with -inf beyond the vocabulary.

        Args:
            pieces: floats [ranks, rows, most_in_pieces], as the ranks tell them.
        """
        shared = pieces.new_full((pieces.shape[1], len(self.shared), self._size), -torch.inf)
        for rank, of_rank in enumerate(self.pieces):
            for piece in of_rank:
                place, start = self.shared.index(piece.ids.start // self._size), piece.ids.start % self._size
                told = pieces[rank, :, piece.column : piece.column + len(piece.ids)]
                shared[:, place, start : start + len(piece.ids)] = told
        return shared

    def log_sums(
        self, maxima: Tensor, sums: Tensor, pieces: Tensor, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what sums of whole rows are: `log_of_sums` has it.

        Args:
            maxima: float32 [ranks, rows, most_whole], of whole chunks; more of them mean nothing.
            sums: float64, likewise.
            pieces: floats [ranks, rows, most_in_pieces].
            distances: float32 like the maxima, where entropies are wanted.

        Returns:
            The maxima of the rows, float32 [rows], the logarithms of their sums, float64 [rows], and their entropies,
            float32 [rows], or [0] where they are not wanted.
        """
        rows = maxima.shape[1]
        told = [maxima, sums, *(() if distances is None else (distances,))]
        of_rows = [numbers.new_empty(rows, self._count) for numbers in told]
        for rank, whole in enumerate(self.whole):
            for numbers, of_ranks in zip(of_rows, told, strict=True):
                numbers[:, whole.start : whole.stop] = of_ranks[rank, :, : len(whole)]
        if self.shared:
            shared = self.put_together(pieces).flatten(1)
            found = torch.ops.ascend_sample.chunk_sums(shared, None, entropy=distances is not None)
            for numbers, of_shared in zip(of_rows, found[: len(told)], strict=True):
                numbers[:, self.shared] = of_shared
        whole_maxima, log_sums, entropies = torch.ops.ascend_sample.log_of_sums(*of_rows)
        return whole_maxima, log_sums, entropies
