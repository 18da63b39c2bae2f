"""`RaggedTexts` keeps the texts of a batch whose rows grow by different numbers of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.places import Places, tokens_first
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.steps import warn_of_impossible
from ascend_sample.decoding.streaming import Listening


class RaggedTexts:
    """Keeps prompts and what is generated, each row from the left.

    Args:
        request: the prompts, the stop tokens, and how many tokens each row may get.
        most: how many tokens are written at once, at most.

    Attributes:
        tokens: int64 [batch, prompt + max_steps + most]; what follows a row's end is undefined.
        lengths: int64 [batch], the number of tokens of each row, its prompt included.
        room: int64 [batch], how many tokens each row may still get; 0 for a row that is done.
        scores: float32 [batch] on the host, the sums of the log-probabilities of what was generated.
    """

    def __init__(self, request: Request, most: int) -> None:
        self.request = request
        prompts = request.input_ids.gather(1, tokens_first(request.attention_mask))
        self.tokens = torch.nn.functional.pad(prompts, (0, request.max_steps + most))
        self.lengths = request.prompt_lengths()
        self.room = request.max_new_tokens.clone()
        self.scores = torch.zeros(request.batch_size, dtype=torch.float32, device="cpu")
        self._prompt_lengths = self.lengths
        self._places = Places(request.device)
        self._listening = Listening(request.strategy, request.on_tokens, request.input_ids, request.attention_mask)

    def append(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Appends the first counts[r] tokens to each row r, up to its first stop token; nothing to a row that is done.

        Args:
            tokens: int64 [batch, n].
            counts: int64 [batch], from 1, none above the row's room unless it is done.

        Returns:
            int64 [batch], how many tokens each row got.
        """
        each = self._places.first(tokens.shape[1] + 2)
        # How many tokens there are up to the first stop token; one more than all without any.
        up_to_eos = torch.where(self.request.is_eos(tokens), each[1:-1], each[-1]).amin(dim=1)
        is_ended = up_to_eos <= counts
        counts = torch.minimum(torch.minimum(counts, up_to_eos), self.room)
        self._put(tokens)
        self.lengths = self.lengths + counts
        self.room = (self.room - counts).masked_fill_(is_ended, 0)
        if self.request.on_tokens is not None:
            self._listening.tell(tokens, counts, self.room == 0)
        return counts

    def score(self, log_probs: Tensor, counts: Tensor) -> None:
        """Adds the log-probabilities of the first counts[r] tokens of each row, [batch, n] and [batch] on the host."""
        is_new = torch.arange(log_probs.shape[1], device="cpu") < counts[:, None]
        self.scores = self.scores + torch.where(is_new, log_probs, 0.0).sum(dim=1)

    def window(self, start: Tensor, draft: Tensor, is_ragged: bool) -> Tensor:
        """Returns the text tokens from start on and the draft tokens behind them, int64 [batch, 1 + drafted].

        Args:
            start: int64 [batch], none behind the row's last token.
            draft: int64 [batch, drafted], tokens that may be written behind the end of each row.
            is_ragged: False only if start is the last token of every row.
        """
        if not is_ragged:
            return torch.cat((self.tokens.gather(1, start[:, None]), draft), dim=1)
        self._put(draft)
        return self.tokens.gather(1, start[:, None] + self._places.first(draft.shape[1] + 1))

    def result(self, stats: SpeculativeStats) -> DecodeOutput:
        """Returns what was generated, when all rows are done."""
        warn_of_impossible(self.request, self.scores == -torch.inf)
        lengths = self.lengths - self._prompt_lengths
        places = torch.arange(int(lengths.max()), device=lengths.device)
        sequences = self.tokens.gather(1, self._prompt_lengths[:, None] + places)
        sequences = sequences.masked_fill(places >= lengths[:, None], self.request.pad_token_id)
        return DecodeOutput(sequences, self.scores.to(lengths.device), lengths, stats=stats)

    def _put(self, tokens: Tensor) -> None:
        """Writes tokens, int64 [batch, n], behind each row's end."""
        self.tokens.scatter_(1, self.lengths[:, None] + self._places.first(tokens.shape[1]), tokens)
