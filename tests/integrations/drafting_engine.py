"""An engine with the interface of vLLM's V1 runner that decodes with drafts or without, with the classes it is given.

Its model looks at the last two tokens. `test_vllm_drafts.py` gives it stand-ins, `vllm_drafts_parity.py` vLLM's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.integrations.vllm_batches import InputBatch, NotedBatch, Request

VOCAB_SIZE = 24
Drafter = Callable[[int, list[int]], list[int]]
"""Proposes tokens for a request, by its number and its text."""
TABLES = torch.randn(2, VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 1.5


def model(text: Sequence[int]) -> Tensor:
    """Returns float32 [VOCAB_SIZE] logits of the next token; what is no id reads as the id 0."""
    last, before = (token if 0 <= token < VOCAB_SIZE else 0 for token in (text[-1], text[-2]))
    return TABLES[0, last] + TABLES[1, before]


class Engine:
    """Steps of a batch of requests.

    Args:
        vllm: has the classes Sampler, RejectionSampler, SamplingMetadata, SpecDecodeMetadata, LogitsProcessors,
            MinTokensLogitsProcessor and BatchUpdate.
        requests: of the batch.
        mode: how logprobs are reported.
        device: where the logits are; None: what `vllm` says, or on the CPU.
        is_noted: the host knows what the requests ask for, as with the plugin in vLLM's batch.
    """

    def __init__(
        self,
        vllm: Any,
        requests: list[Request],
        mode: str = "raw_logprobs",
        device: str | None = None,
        is_noted: bool = True,
    ) -> None:
        self.vllm, self.requests = vllm, requests
        self.device = device or getattr(vllm, "device", "cpu")
        self.sampler = vllm.Sampler(logprobs_mode=mode)
        self.rejection_sampler = vllm.RejectionSampler(self.sampler)
        self.batch = (NotedBatch if is_noted else InputBatch)(VOCAB_SIZE, len(requests), self.device, vllm)
        self.batch.requests = requests
        self.processors = self.batch.logitsprocs
        if any(each.least for each in requests):
            self.processors.non_argmax_invariant.append(self._min_tokens())

    def decode(self, length: int, drafter: Drafter | None = None) -> list[list[int]]:
        """Decodes until each request has so many tokens at least; returns the first of each."""
        while min(len(request.output) for request in self.requests) < length:
            if drafter is None:
                self.step([[] for _ in self.requests])
            else:
                self.step([drafter(row, each.prompt + each.output) for row, each in enumerate(self.requests)])
        return [request.output[:length] for request in self.requests]

    def places(self, drafts: list[list[int]]) -> list[list[int]]:
        """Returns the texts after which a step looks for a token: of each request, and after each of its drafts."""
        texts = [each.prompt + each.output for each in self.requests]
        return [text + ids[:count] for text, ids in zip(texts, drafts, strict=True) for count in range(len(ids) + 1)]

    def step(self, drafts: list[list[int]], draft_probs: Tensor | None = None) -> Any:
        """Does a step in which each request has drafts, and returns vLLM's output."""
        logits = torch.stack([model(text) for text in self.places(drafts)]).to(self.device)
        metadata = self.metadata(drafts)
        if not any(drafts):
            output = self.sampler(logits=logits, sampling_metadata=metadata)
        else:
            of_drafts = None if draft_probs is None else draft_probs.to(self.device)
            output = self.rejection_sampler(self.spec_metadata(drafts), of_drafts, logits, metadata)
        rows = output.sampled_token_ids.tolist()
        for number, (request, ids) in enumerate(zip(self.requests, rows, strict=True)):
            kept = [token for token in ids if token != -1]
            request.output += kept
            if output.logprobs_tensors is not None:
                at = number * len(ids)
                request.reported += output.logprobs_tensors.logprobs[at : at + len(kept), 0].tolist()
        return output

    def spec_metadata(self, drafts: list[list[int]]) -> Any:
        """Returns what vLLM's runner makes of drafts."""
        counts = [len(ids) for ids in drafts]
        ends = list(itertools.accumulate(count + 1 for count in counts))
        targets = [end - count - 1 + each for end, count in zip(ends, counts, strict=True) for each in range(count)]

        def there(numbers: Sequence[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=self.device)

        return self.vllm.SpecDecodeMetadata(
            draft_token_ids=there([*itertools.chain(*drafts)]),
            num_draft_tokens=counts,
            cu_num_draft_tokens=there(list(itertools.accumulate(counts))),
            cu_num_sampled_tokens=there(ends),
            target_logits_indices=there(targets),
            bonus_logits_indices=there([end - 1 for end in ends]),
            logits_indices=there(range(ends[-1])),
        )

    def _min_tokens(self) -> Any:
        """Returns vLLM's processor of them, which looks at the requests' texts in each step."""
        processor = self.vllm.MinTokensLogitsProcessor(None, torch.device(self.device), False)
        added = [
            (
                row,
                SimpleNamespace(min_tokens=each.least, all_stop_token_ids=STOPS, structured_outputs=None),
                [],
                each.output,
            )
            for row, each in enumerate(self.requests)
        ]
        processor.update_state(self.vllm.BatchUpdate(batch_size=len(added), removed=[], added=added, moved=[]))
        return processor

    def metadata(self, drafts: list[list[int]]) -> Any:
        """Returns what vLLM's batch says of its requests."""
        for processor in self.processors.non_argmax_invariant:
            processor.update_state(None)
        return self.batch.refresh(drafts)


REQUESTS: tuple[dict[str, Any], ...] = (
    {"prompt": [3, 4], "seed": 1, "temperature": 0.7},
    {"prompt": [7, 1, 2], "temperature": 0.0},
    {"prompt": [5, 6], "seed": 2, "top_k": 5},
    {"prompt": [1, 9], "temperature": 1.2},  # without a seed: its text is another one each time
    {"prompt": [8, 8, 8], "seed": 3, "top_p": 0.8, "frequency": 0.5, "presence": 0.3},
    {"prompt": [2, 0], "temperature": 0.0, "repetition": 1.3, "banned": [4, 11]},
    {"prompt": [4, 4], "seed": 2**64 - 5, "temperature": 0.5, "top_k": 9, "top_p": 0.9, "repetition": 1.2},
)
PLAIN = tuple(each for each in REQUESTS if not {"frequency", "repetition"} & each.keys())
"""Those without penalties, whose drafts may be anything: vLLM counts drafts without looking whether they are ids."""
AT_LEAST: tuple[dict[str, Any], ...] = (
    {"prompt": [7, 1, 2], "least": 3, "temperature": 0.0, "frequency": 0.5},
    *({"prompt": [row, 4], "least": 7, "seed": row} for row in range(1, 10)),
)
"""Those that must not draw a stop before they have so many tokens."""
STOPS = {*range(0, VOCAB_SIZE, 2)}
LENGTH = 20


def requests(kinds: Sequence[dict[str, Any]] = REQUESTS, **more: Any) -> list[Request]:
    """Returns new requests."""
    return [Request(**kind, **more) for kind in kinds]


def drafters(plain: list[list[int]], kinds: Sequence[dict[str, Any]]) -> dict[str, Drafter]:
    """Returns drafters by name: those that any request can have.

    Args:
        plain: what plain decoding gives each request; a draft that is right comes from there.
        kinds: the requests, in order.
    """
    generator = torch.Generator().manual_seed(11)

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    def right(row: int, text: list[int]) -> list[int]:
        done = len(text) - len(kinds[row]["prompt"])
        return plain[row][done : done + row % 4]  # the first request has none

    def half_right(row: int, text: list[int]) -> list[int]:
        ids = right(3, text) if row == 3 else right(row, text)
        return [token if number(2) else number(VOCAB_SIZE) for token in ids][: number(5)]

    def n_gram(row: int, text: list[int]) -> list[int]:
        found = [at for at in range(len(text) - 1) if text[at] == text[-1]]
        return text[found[-1] + 1 :][:4] if found else []

    def nonsense(row: int, text: list[int]) -> list[int]:
        return [number(VOCAB_SIZE) for _ in range(number(7))]

    return {"right": right, "half right": half_right, "n-gram": n_gram, "nonsense": nonsense}


def with_what_is_no_id(drafter: Drafter) -> Drafter:
    """Returns a drafter that puts placeholders and ids beyond the vocabulary among what another one proposes."""
    steps = itertools.count()

    def propose(row: int, text: list[int]) -> list[int]:
        ids = drafter(row, text)
        at, wrong = next(steps) % 5, (-1, VOCAB_SIZE, 10**6)[next(steps) % 3]
        return [*ids[:at], wrong, *ids[at:]]

    return propose


def is_reproducible(kinds: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the requests whose texts are always the same."""
    return [row for row, kind in enumerate(kinds) if kind.get("seed") is not None or kind.get("temperature") == 0]
