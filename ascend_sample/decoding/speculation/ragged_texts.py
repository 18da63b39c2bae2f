"""`RaggedTexts` keeps the texts of a batch whose rows grow by different numbers of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.decoding.log_probs import log_probs_of
from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.places import tokens_first
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.steps import warn_of_impossible
from ascend_sample.decoding.streaming import Listening


class RaggedTexts:
    """Keeps prompts and what is generated, each row from the left.

    Args:
        request: the prompts, the stop tokens, and how many tokens each row may get.

    Attributes:
        tokens: int64 [batch, prompt + max_steps + 1]; what follows a row's end is undefined. The last column is where
            everything goes that is not to be kept.
        lengths: int64 [batch], the number of tokens of each row, its prompt included.
        room: int64 [batch], how many tokens each row may still get; 0 for a row that is done.
        scores: float32 [batch], the sums of the log-probabilities of what was generated.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        prompts = request.input_ids.gather(1, tokens_first(request.attention_mask))
        self.tokens = torch.nn.functional.pad(prompts, (0, request.max_steps + 1))
        self.lengths = request.prompt_lengths()
        self.room = request.max_new_tokens.clone()
        self.scores = torch.zeros(request.batch_size, device=request.device)
        self._prompt_lengths = self.lengths
        self._listening = Listening(request.strategy, request.on_tokens, request.input_ids, request.attention_mask)

    def append(self, tokens: Tensor, counts: Tensor, logits: Tensor) -> Tensor:
        """Appends the first counts[r] tokens to each row r, up to its first stop token; nothing to a row that is done.

        Args:
            tokens: int64 [batch, n].
            counts: int64 [batch], from 1, none above the row's room unless it is done.
            logits: floats [batch, n, vocab_size], the model's for these places.

        Returns:
            int64 [batch], how many tokens each row got.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        is_eos = self.request.is_eos(tokens) & (places < counts[:, None])
        first_eos = torch.where(is_eos, places, tokens.shape[1]).amin(dim=1)
        counts = torch.where(self.room > 0, torch.minimum(counts, first_eos + 1), 0)
        is_new = self._put(tokens, counts)
        self.scores = self.scores + torch.where(is_new, log_probs_of(logits, tokens), 0.0).sum(dim=1)
        self.lengths = self.lengths + counts
        is_ended = is_eos.any(dim=1) | (self.room == counts)
        self.room = torch.where(is_ended, 0, self.room - counts)
        if self.request.on_tokens is not None:
            self._listening.tell(tokens, counts, self.room == 0)
        return counts

    def window(self, start: Tensor, draft: Tensor, counts: Tensor) -> Tensor:
        """Returns the text tokens from start on and the draft tokens behind them, int64 [batch, 1 + drafted].

        Args:
            start: int64 [batch], at least draft.shape[1] - counts before the row's last token, or 0.
            draft: int64 [batch, drafted], tokens of which row r gets the first counts[r] behind its end.
            counts: int64 [batch], how many draft tokens each row gets.
        """
        self._put(draft, counts)
        return self.tokens.gather(1, start[:, None] + torch.arange(draft.shape[1] + 1, device=start.device))

    def result(self, stats: SpeculativeStats) -> DecodeOutput:
        """Returns what was generated, when all rows are done."""
        warn_of_impossible(self.request, self.scores == -torch.inf)
        lengths = self.lengths - self._prompt_lengths
        places = torch.arange(int(lengths.max()), device=lengths.device)
        sequences = self.tokens.gather(1, self._prompt_lengths[:, None] + places)
        sequences = sequences.masked_fill(places >= lengths[:, None], self.request.pad_token_id)
        return DecodeOutput(sequences, self.scores, lengths, stats=stats)

    def _put(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Writes the first counts[r] tokens of each row behind its end; returns which those are, bool [batch, n]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        is_new = places < counts[:, None]
        self.tokens.scatter_(1, torch.where(is_new, self.lengths[:, None] + places, self.tokens.shape[1] - 1), tokens)
        return is_new
