"""`RaggedTexts` keeps the texts of a batch whose rows grow by different numbers of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.places import Places, tokens_first
from ascend_sample.decoding.reading import read_log_probs, read_together
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.speculation.verifier import VerifyResult
from ascend_sample.decoding.steps import warn_of_impossible
from ascend_sample.decoding.streaming import Listening
from ascend_sample.sampling import RowStatus


class RaggedTexts:
    """Keeps prompts and what is generated, each row from the left.

    Args:
        request: the prompts, the stop tokens, and how many tokens each row may get.
        most: how many tokens are written at once, at most.

    Attributes:
        tokens: int64 [batch, prompt + max_steps + most]; what follows a row's end is undefined.
        lengths: int64 [batch], the number of tokens of each row, its prompt included.
        lengths_cpu: the same on the CPU.
        room: int64 [batch], how many tokens each row may still get; 0 for a row that is done.
        room_cpu: the same on the CPU.
        most_room: the largest of them; 0 when all rows are done.
        least_room: the smallest of them.
    """

    def __init__(self, request: Request, most: int) -> None:
        self.request = request
        prompts = request.input_ids.gather(1, tokens_first(request.attention_mask))
        self.tokens = torch.nn.functional.pad(prompts, (0, request.max_steps + most))
        self.lengths = self._prompt_lengths = request.prompt_lengths()
        self.room = request.max_new_tokens.clone()
        room, self.lengths_cpu = read_together(self.room, self.lengths)
        self._note_room(room)
        self._scores = torch.zeros(request.batch_size, dtype=torch.float32, device="cpu")
        self._places = Places(request.device)
        self._listening = Listening(request.strategy, request.on_tokens, request.input_ids, request.attention_mask)

    def append(self, result: VerifyResult, logits: Tensor, proposed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Appends what a round has brought each row, up to its first stop token; nothing to a row that is done.

        A round waits for the device here alone.

        Args:
            result: the tokens, and how many drafts of each row stay; with one more, none above its room.
            logits: floats [batch, n, vocab_size], the model's at the places of the tokens.
            proposed: int64 [batch], how many of the tokens were drafts.

        Returns:
            On the CPU, int64 [batch] each: how many tokens each row got, proposed, and how many drafts stay.
        """
        tokens, accepted = result.tokens, result.accepted
        each = self._places.first(tokens.shape[1] + 2)
        # How many tokens there are up to the first stop token; one more than all without any.
        up_to_eos = torch.where(self.request.is_eos(tokens), each[1:-1], each[-1]).amin(dim=1)
        counts = accepted + 1
        is_ended = up_to_eos <= counts
        counts = torch.minimum(torch.minimum(counts, up_to_eos), self.room)
        self._put(tokens)
        self.lengths = self.lengths + counts
        self.room = (self.room - counts).masked_fill_(is_ended, 0)
        if self.request.on_tokens is not None:
            self._listening.tell(tokens, counts, self.room == 0)
        return self._read(result, logits, counts, proposed)

    def _read(
        self, result: VerifyResult, logits: Tensor, counts: Tensor, proposed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Brings to the host what `append` returns, the room that is left, and the tokens' log-probabilities."""
        tokens, accepted, status = result
        given = [self.room, counts, proposed, accepted]
        if status is not None:
            given.append(status == RowStatus.ALL_MASKED)
        log_probs, room, counts, proposed, accepted, *is_masked = read_log_probs(logits, tokens, *given)
        for one in is_masked:
            log_probs = log_probs.masked_fill(one, -torch.inf)
        is_new = torch.arange(tokens.shape[1], device="cpu") < counts[:, None]
        self._scores += torch.where(is_new, log_probs, 0.0).sum(dim=1)
        self.lengths_cpu = self.lengths_cpu + counts
        self._note_room(room)
        return counts, proposed, accepted

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
        warn_of_impossible(self.request, self._scores == -torch.inf)
        lengths = self.lengths - self._prompt_lengths
        places = torch.arange(int(lengths.max()), device=lengths.device)
        sequences = self.tokens.gather(1, self._prompt_lengths[:, None] + places)
        sequences = sequences.masked_fill(places >= lengths[:, None], self.request.pad_token_id)
        return DecodeOutput(sequences, self._scores.to(lengths.device), lengths, stats=stats)

    def _put(self, tokens: Tensor) -> None:
        """Writes tokens, int64 [batch, n], behind each row's end."""
        self.tokens.scatter_(1, self.lengths[:, None] + self._places.first(tokens.shape[1]), tokens)

    def _note_room(self, room: Tensor) -> None:
        self.room_cpu = room
        self.least_room, self.most_room = map(int, room.aminmax())
