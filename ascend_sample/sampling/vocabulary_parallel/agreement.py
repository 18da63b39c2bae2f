"""What the ranks have to agree on: their requests, which they compare in each step, and seeds that nobody gave."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Hashable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import NO_TOKEN
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.table import NO_SLOT

COMPARED: Final = (
    *DISTRIBUTION,
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "min_tokens_left",
    "position",
)
"""The numbers of a row that have to be the same on all ranks, beside its seed."""
DIGEST_BYTES: Final = 4


def digest_of_requests(batch: SamplingBatch, edits: Mapping[str, Tensor]) -> bytes:
    """Returns a digest of what a batch's requests ask for, beside their seeds, and of the ids of their texts so far.

    Args:
        batch: the requests.
        edits: arguments of `sample_rows`; the ids are of rows with penalties, in whatever slots a rank has these.
    """
    asked = [{**params.to_mapping(), "seed": None} for params in batch.params]
    digest = hashlib.blake2b(repr(asked).encode(), digest_size=DIGEST_BYTES)
    if "penalty_ids" in edits:
        slots = edits["penalty_slot"][edits["penalty_slot"] != NO_SLOT]
        lengths = edits["penalty_lengths"][slots].unsqueeze(1)
        ids = edits["penalty_ids"][slots, : int(lengths.max())]
        is_there = torch.arange(ids.shape[1], device="cpu") < lengths
        digest.update(ids.masked_fill(~is_there, NO_TOKEN).sort(1).values.numpy().tobytes())
    return digest.digest()


def digests_of(
    batch: SamplingBatch,
    options: str,
    is_seeded: npt.NDArray[np.bool_],
    requests: bytes,
    edits: Mapping[str, Tensor],
    proposed: bytes | None = None,
) -> Tensor:
    """Returns a digest of each of the numbers that have to be the same on all ranks: uint8 [names of `NAMES` * 4].

    Args:
        batch: the requests.
        options: what else has to be the same, as text.
        is_seeded: of each row, whether its seed is the same on all ranks, or should be.
        requests: from `digest_of_requests`.
        edits: arguments of `sample_rows`, of which the bitmask and its rows are looked at.
        proposed: the drafts; None where there are none, and none are compared.
    """
    arrays = [getattr(batch.host, name).tobytes() for name in COMPARED]
    arrays.append(np.where(is_seeded, batch.host.seed, 0).tobytes())
    masks = b""
    if "bitmask" in edits:  # a megabyte and more, in each step: a checksum is enough
        words, rows = edits["bitmask"].numpy(), edits["bitmask_rows"].numpy()
        masks = zlib.crc32(words.data).to_bytes(4, "little") + rows.tobytes()
    arrays += [options.encode(), requests, masks]
    if proposed is not None:
        arrays.append(proposed)
    digests = b"".join(hashlib.blake2b(array, digest_size=DIGEST_BYTES).digest() for array in arrays)
    return torch.frombuffer(bytearray(digests), dtype=torch.uint8)


NAMES: Final = (*COMPARED, "seed", "options", "request", "bitmask", "drafts")


def check_digests(told: Tensor, rank: int) -> None:
    """Raises unless all ranks have told the same.

    Args:
        told: uint8 [ranks, bytes], what `digests_of` returned on each of them.
        rank: of the caller.

    Raises:
        ValueError: some ranks have other requests than the first.
    """
    if torch.equal(told, told[:1].expand_as(told)):
        return
    digests = told.view(len(told), -1, DIGEST_BYTES)
    differs = (digests != digests[:1]).any(2)
    ranks = differs.any(1).nonzero().view(-1).tolist()
    names = [name for name, other in zip(NAMES, differs.any(0).tolist(), strict=False) if other]
    refuse(
        "Sampler",
        "the batch",
        "be the same on all ranks of its shard",
        f"another {' and '.join(names)} on rank {', '.join(map(str, ranks))} than on rank 0 (this is rank {rank})",
        "Add the same requests in the same order everywhere, and give all ranks the same tokens.",
    )


class Agreement:
    """What the ranks have agreed on about a batch.

    Its requests are compared once for as long as it stays as it is, whatever masks its steps bring. Of requests without
    a seed each rank has drawn its own, and the first rank's count.
    """

    def __init__(self) -> None:
        self._agreed: dict[int, int] = {}
        self._version = -1
        self._compared: dict[Hashable, bytes] = {}

    def compared(self, batch: SamplingBatch, key: Hashable) -> bytes | None:
        """Returns the digest of requests that was compared for such steps of the batch as it is; None: nobody did."""
        return self._compared.get(key) if batch.version == self._version else None

    def note(self, batch: SamplingBatch, key: Hashable, requests: bytes) -> None:
        """Notes that all ranks have the requests of this digest."""
        if batch.version != self._version:
            self._version, self._compared = batch.version, {}
        self._compared[key] = requests

    def split(self, batch: SamplingBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the seeds of all rows, and the rows whose seeds the ranks do not know yet."""
        seeds, missing = batch.host.seed.copy(), []
        for row in (row for row, params in enumerate(batch.params) if params.seed is None):
            own = int(seeds[row])
            if own in self._agreed:
                seeds[row] = self._agreed[own]
            else:
                missing.append(row)
        return seeds, np.array(missing, np.int64)

    def agree(self, batch: SamplingBatch, rows: npt.NDArray[np.int64], of_first: npt.NDArray[np.int64]) -> None:
        """Notes the first rank's seeds of some rows, and forgets those of rows that are gone."""
        own = batch.host.seed
        if len(rows):
            there = set(own.tolist())
            self._agreed = {seed: other for seed, other in self._agreed.items() if seed in there}
            self._agreed |= dict(zip(own[rows].tolist(), of_first.tolist(), strict=True))
