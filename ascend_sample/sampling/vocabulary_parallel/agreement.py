"""Checks that all ranks have the same requests, and gives requests without a seed the seeds of the first rank."""

from __future__ import annotations

import hashlib
import zlib
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import NO_TOKEN, DraftPlaces
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.table import NO_SLOT
from ascend_sample.sampling.vocabulary_parallel.exchange import Exchange, Field, gather_fields

COMPARED: Final = (
    *DISTRIBUTION,
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "min_tokens_left",
    "position",
)
"""Numbers of a row that have to be the same on all ranks, in addition to its seed."""
NAMES: Final = (*COMPARED, "seed", "options", "request", "bitmask", "drafts")
"""Names of the digests of a message."""
DIGEST_BYTES: Final = 4


class RankConsistency:
    """Comparison of the requests of all ranks, which a sampler makes when a batch changes.

    Args:
        exchange: The ranks.
        options: Options of the sampler, which have to be the same as well.
    """

    def __init__(self, exchange: Exchange, options: str) -> None:
        self._exchange, self._options = exchange, options
        self._agreed: WeakKeyDictionary[SamplingBatch, tuple[int, torch.dtype]] = WeakKeyDictionary()

    def agree(self, batch: SamplingBatch, logits: Tensor) -> None:
        """Compares the requests if the batch has changed: one collective, and one more if a request has no seed.

        Messages of other requests have other lengths, so requests are compared before any other message. Seeds of
        drafts' places are those of their requests, which are compared before.

        Args:
            batch: The requests.
            logits: Those of this rank; their dtype and device count.

        Raises:
            ValueError: Another rank has other requests.
        """
        if self._agreed.get(batch) == (batch.version, logits.dtype):
            return
        self.compare(self.digests(batch, logits, requests=digest_of_requests(batch)), logits.device)
        unseeded = np.array([row for row, params in enumerate(batch.params) if params.seed is None], np.int64)
        if len(unseeded) and not isinstance(batch, DraftPlaces):
            own = batch.host.seed[unseeded]
            field = Field("seeds", torch.int64, torch.from_numpy(own))
            of_first = gather_fields(self._exchange, [field], logits.device)["seeds"][0].cpu().numpy()
            if (own != of_first).any():
                batch.set_seeds(unseeded, of_first)
        self._agreed[batch] = (batch.version, logits.dtype)

    def compare(self, digests: Tensor, device: torch.device) -> None:
        """Compares the `digests` of all ranks in a collective of their own, which the host waits for."""
        self.check(self._exchange.all_gather(digests.to(device)).cpu())

    def digests(
        self,
        batch: SamplingBatch,
        logits: Tensor,
        allowed: Bitmask | None = None,
        purpose: Purpose = Purpose.DRAW,
        requests: bytes = b"",
        drafts: bytes = b"",
    ) -> Tensor:
        """Returns a digest of each of the values that have to be the same on all ranks: uint8 [names of `NAMES` * 4].

        Args:
            batch: The requests, or the places of their drafts.
            logits: Those of this rank. Bitmasks and drafts are compared where they are on a CPU; their dtype counts.
            allowed: A grammar's bitmask; None: all ids.
            purpose: Purpose of the noise.
            requests: `digest_of_requests`, where the batch has changed.
            drafts: Drafts that are verified, and the rule.
        """
        is_seeded = np.array([params.seed is not None for params in batch.params], np.bool_)
        values = [getattr(batch.host, name).tobytes() for name in COMPARED]
        values.append(np.where(is_seeded, batch.host.seed, 0).tobytes())
        values.append(f"{self._options} {int(purpose)} {logits.dtype} {batch.vocab_size}".encode())
        values.append(requests)
        masks = b""
        if allowed is not None and logits.is_cpu:  # a megabyte and more, in each step: a checksum is enough
            edits = allowed.native_edits(len(batch))
            masks = zlib.crc32(edits["bitmask"].numpy().data).to_bytes(4, "little")
            masks += edits["bitmask_rows"].numpy().tobytes()
        values.append(masks)
        if isinstance(batch, DraftPlaces):
            drafts = batch.layout.before.tobytes() + (batch.draft_ids.numpy().tobytes() if logits.is_cpu else b"")
        values.append(drafts)
        digests = b"".join(hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest() for value in values)
        return torch.frombuffer(bytearray(digests), dtype=torch.uint8)

    def check(self, gathered: Tensor) -> None:
        """Raises unless the digests of all ranks are the same.

        Args:
            gathered: uint8 [ranks, bytes] on the CPU.

        Raises:
            ValueError: Some ranks have other requests than the first.
        """
        if torch.equal(gathered, gathered[:1].expand_as(gathered)):
            return
        digests = gathered.view(len(gathered), -1, DIGEST_BYTES)
        differs = (digests != digests[:1]).any(2)
        ranks = differs.any(1).nonzero().view(-1).tolist()
        names = [name for name, other in zip(NAMES, differs.any(0).tolist(), strict=True) if other]
        others = f"another {' and '.join(names)} on rank {', '.join(map(str, ranks))}"
        refuse(
            "Sampler",
            "the batch",
            "be the same on all ranks of its shard",
            f"{others} than on rank 0 (this is rank {self._exchange.rank})",
            "Add the same requests in the same order everywhere, and give all ranks the same tokens.",
        )


def digest_of_requests(batch: SamplingBatch) -> bytes:
    """Returns a digest of the parameters of a batch's requests, but for their seeds.

    On a CPU it is one of the ids, too, that rows with penalties have seen, in any slots.
    """
    asked = [{**params.to_mapping(), "seed": None} for params in batch.params]
    digest = hashlib.blake2b(repr(asked).encode(), digest_size=DIGEST_BYTES)
    edits = batch.native_edits() if batch.device.type == "cpu" and not isinstance(batch, DraftPlaces) else {}
    if "penalty_ids" in edits:
        slots = edits["penalty_slot"][edits["penalty_slot"] != NO_SLOT]
        lengths = edits["penalty_lengths"][slots].unsqueeze(1)
        ids = edits["penalty_ids"][slots, : int(lengths.max())]
        is_there = torch.arange(ids.shape[1], device="cpu") < lengths
        digest.update(ids.masked_fill(~is_there, NO_TOKEN).sort(1).values.numpy().tobytes())
    return digest.digest()
