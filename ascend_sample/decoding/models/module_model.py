"""Plain torch modules become models to decode with. They compute all anew, which is slow, and so an oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample._errors import refuse, refuse_result
from ascend_sample.decoding.checks import check_arguments, name_of
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.places import at_places, is_trimmed_now, mask_of, repeated_rows, tokens_first


class TokenHistory(NamedTuple):
    """Keeps the tokens so far, which is all the cache that recomputation needs."""

    tokens: Tensor  # int64 [batch, length], from the left; what follows a row's end is undefined
    lengths: Tensor  # int64 [batch], the number of tokens of each row
    encoder: dict[str, Tensor]  # what the encoder takes, by name, [batch, ...] each
    rollbacks: int = 0  # how many there were since the tokens were trimmed to the longest row


class ModuleModel:
    """Makes a `StepModel` of anything that maps tokens to logits.

    Args:
        module: what is called with input_ids int64 [batch, length] and the encoder's tensors by name; returns logits
            [batch, length, vocab_size]. It must be causal: what it returns at a place depends on the tokens up to
            there. If it returns a tuple, that is (logits, hidden states [batch, length, hidden_size]).

    Example:
        >>> successor = ModuleModel(lambda input_ids: torch.nn.functional.one_hot((input_ids + 1) % 5, 5).float())
        >>> output = successor.prefill(torch.tensor([[1, 2], [4, 0]]), torch.tensor([[True, True], [True, False]]))
        >>> output.logits.argmax(dim=1)
        tensor([3, 0])
    """

    def __init__(self, module: Callable[..., Tensor | tuple[Tensor, Tensor]]) -> None:
        if not callable(module):
            refuse("ModuleModel", "module", "be callable", type(module).__name__, "Give a torch module.", TypeError)
        self.module = module

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`."""
        if encoder:
            called = self.module.forward if isinstance(self.module, torch.nn.Module) else self.module
            check_arguments("ModuleModel", called, (input_ids,), encoder)
        mask = mask_of(input_ids, attention_mask)
        order, lengths = tokens_first(mask), mask.sum(dim=1)
        # Columns that are padding everywhere may be more than the module can read.
        empty = input_ids.shape[1] - int(lengths.max())
        tokens = input_ids.gather(1, order)[:, : input_ids.shape[1] - empty]
        history = TokenHistory(tokens, lengths, encoder)
        logits, hidden_states = self._run(history)
        if hidden_states is not None:
            hidden_states = torch.nn.functional.pad(hidden_states, (0, 0, 0, empty))
            hidden_states = at_places(hidden_states, torch.argsort(order, dim=1))
        return StepOutput(at_places(logits, history.lengths[:, None] - 1).squeeze(1), history, hidden_states)

    def decode(self, tokens: Tensor, cache: TokenHistory) -> StepOutput:
        """See `StepModel.decode`."""
        count, known = tokens.shape[1], cache.tokens
        if known.is_cpu:  # whose lengths can be read for nothing: prompts that were padded may have outgrown that
            known = known[:, : int(cache.lengths.max())]
        places = cache.lengths[:, None] + torch.arange(count, device=tokens.device)
        widened = torch.nn.functional.pad(known, (0, count)).scatter(1, places, tokens)
        history = TokenHistory(widened, cache.lengths + count, cache.encoder, cache.rollbacks)
        logits, hidden_states = self._run(history)
        states = None if hidden_states is None else at_places(hidden_states, places)
        return StepOutput(at_places(logits, places), history, states)

    def expand(self, cache: TokenHistory, count: int) -> TokenHistory:
        """See `StepModel.expand`."""
        return self.reorder(cache, repeated_rows(cache.lengths, count))

    def reorder(self, cache: TokenHistory, index: Tensor) -> TokenHistory:
        """See `StepModel.reorder`."""
        encoder = {name: value[index] for name, value in cache.encoder.items()}
        return TokenHistory(cache.tokens[index], cache.lengths[index], encoder, cache.rollbacks)

    def rollback(self, cache: TokenHistory, lengths: Tensor) -> TokenHistory:
        """See `StepModel.rollback`."""
        tokens, rollbacks = cache.tokens, cache.rollbacks + 1
        if is_trimmed_now(lengths, rollbacks):  # what is never trimmed grows beyond what the module can read
            tokens, rollbacks = tokens[:, : int(lengths.max())], 0
        return TokenHistory(tokens, lengths, cache.encoder, rollbacks)

    @torch.no_grad()
    def _run(self, history: TokenHistory) -> tuple[Tensor, Tensor | None]:
        inside = torch.arange(history.tokens.shape[1], device=history.tokens.device) < history.lengths[:, None]
        output = self.module(history.tokens.where(inside, 0), **history.encoder)
        logits, hidden_states = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
        self._check("logits", logits, history.tokens, "vocab_size")
        if hidden_states is not None:
            self._check("hidden states", hidden_states, history.tokens, "hidden_size")
        return logits, hidden_states

    def _check(self, what: str, value: object, tokens: Tensor, last: str) -> None:
        if not isinstance(value, Tensor) or value.dim() != 3 or value.shape[:2] != tokens.shape:
            name = f"module {name_of(self.module)}"
            rule = f"return {what} [{', '.join(map(str, tokens.shape))}, {last}], those of each token"
            remedy = "Wrap it into a function that does; a model of transformers into CausalModel."
            refuse_result("ModuleModel", name, rule, value, remedy)
