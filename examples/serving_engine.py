"""The smallest engine that batches continuously: requests join, each step adds one token to each, and they leave.

What an engine has to do for the sampling layer stands in `Engine.step` and `Engine._leave`. The rest is what any engine
has: a queue, a key-value cache for each request, and the model.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ascend_sample.sampling import SamplerOutput, SamplingBatch, SamplingParams  # isort: skip  first to import torch, safely

import torch
from language_model import END_OF_TEXT_ID, Cache, LanguageModel
from torch import Tensor

Grammar = Callable[[list[int]], Tensor]
"""Says which ids a text may go on with: int32 [ceil(vocab_size / 32)] on the CPU, after the ids that it has got."""


class Request(NamedTuple):
    """What a user asks for."""

    name: str
    prompt_ids: list[int]
    params: SamplingParams
    most_tokens: int
    grammar: Grammar | None = None


class Arrival(NamedTuple):
    """A request, and the step before which it comes."""

    step: int
    request: Request


@dataclass
class Answer:
    """What a request got."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, int]] = field(default_factory=list)  # of each token, with its rank
    logits_digests: list[int] = field(
        default_factory=list
    )  # of each step, to tell the model's doing from the sampler's

    @property
    def is_complete(self) -> bool:
        """Whether the text has ended, or has as many tokens as it may."""
        return len(self.token_ids) == self.request.most_tokens or self.token_ids[-1:] == [END_OF_TEXT_ID]


@dataclass
class Running:
    """A row of the batch: an answer that grows, and what the model remembers of it."""

    answer: Answer
    new_ids: list[int]
    cache: Cache | None = None


class Engine:
    """Serves requests with a language model on one device.

    Args:
        model: on the device.
        sampler: draws the tokens: a `Sampler`, or what is called like one.
        most_rows: how many requests run together; the others wait.
        shuffle: seed of a generator that puts the rows in another order before each step; None leaves them.
        seed: of the generator that requests without a seed draw theirs from.
    """

    def __init__(
        self,
        model: LanguageModel,
        sampler: Callable[..., SamplerOutput],
        most_rows: int,
        shuffle: int | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.device = model.embedding.weight.device
        self.sampler = sampler
        self.most_rows = most_rows
        self.rows: list[Running] = []
        self.timeline: list[list[str]] = []  # of each step, the name of the request in each row
        generator = torch.Generator().manual_seed(seed)
        self.batch = SamplingBatch(model.config.vocab_size, self.device, capacity=4, generator=generator)
        self._random = None if shuffle is None else random.Random(shuffle)

    @torch.inference_mode()
    def serve(
        self, arrivals: Sequence[Arrival], on_tokens: Callable[[int], object] = lambda count: None
    ) -> list[Answer]:
        """Answers requests.

        Args:
            arrivals: requests in the order in which they come.
            on_tokens: is told after each step how many tokens it added.

        Returns:
            The answers, in the order in which they were complete.
        """
        waiting = deque(arrivals)
        answers: list[Answer] = []
        while waiting or self.rows:
            while waiting and len(self.rows) < self.most_rows and waiting[0].step <= len(self.timeline):
                self._join(waiting.popleft().request)
            self._shuffle()
            self.timeline.append([row.answer.request.name for row in self.rows])
            if self.rows:
                on_tokens(len(self.rows))
                self.step()
                answers += self._leave()
        return answers

    def step(self) -> None:
        """Adds one token to each request: a call of the sampler for all of them, and one wait for the device."""
        logits = torch.cat([self._next_logits(row) for row in self.rows])
        output = self.sampler(logits, self.batch, **self._masks())  # advances the batch
        token_ids, statuses = output.token_ids.tolist(), output.status.tolist()
        for row, token_id, status in zip(self.rows, token_ids, statuses, strict=True):
            row.new_ids = [token_id]
            row.answer.token_ids.append(token_id)
            row.answer.statuses.append(status)
        if output.logprobs is not None:
            own, ranks = output.logprobs.values[:, 0].tolist(), output.logprobs.ranks.tolist()
            for place, logprob, rank in zip(output.logprobs.rows, own, ranks, strict=True):
                self.rows[place].answer.logprobs.append((logprob, rank))

    def _masks(self) -> dict[str, Any]:
        """What the grammars of this step's requests allow: a bitmask, and the rows that it is for."""
        masks = {
            place: grammar(row.answer.token_ids)
            for place, row in enumerate(self.rows)
            if (grammar := row.answer.request.grammar) is not None
        }
        return {"bitmask": torch.stack([*masks.values()]), "bitmask_rows": [*masks]} if masks else {}

    def _join(self, request: Request) -> None:
        self.batch.add(request.params, request.prompt_ids)
        self.rows.append(Running(Answer(request), request.prompt_ids))

    def _leave(self) -> list[Answer]:
        """Removes what is complete. The last row takes the place of one that leaves, here as in the batch."""
        left = []
        for place in reversed(range(len(self.rows))):
            if self.rows[place].answer.is_complete:
                left.append(self.rows[place].answer)
                self.batch.remove(place)
                self.rows[place] = self.rows[-1]
                self.rows.pop()
        return left

    def _shuffle(self) -> None:
        if self._random is not None:
            permutation = self._random.sample(range(len(self.rows)), len(self.rows))
            self.batch.reorder(permutation)
            self.rows = [self.rows[source] for source in permutation]

    def _next_logits(self, row: Running) -> Tensor:
        """The model's logits for one request, [1, vocab_size].

        One request at a time: torch's matrix products may round differently for another number of rows, and logits that
        are not the same bits may give another token. An engine that promises equal texts needs such a model too.
        """
        logits, row.cache = self.model(torch.tensor([row.new_ids], device=self.device), row.cache)
        logits = logits[:, -1]
        row.answer.logits_digests.append(zlib.crc32(logits.contiguous().view(torch.uint8).cpu().numpy()))
        return logits
