"""Plain torch modules as models to decode with. No cache, all is computed anew: short, slow, and so an oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample._errors import refuse, refuse_result
from ascend_sample.decoding.checks import check_arguments, name_of
from ascend_sample.decoding.model import StepOutput


class TokenHistory(NamedTuple):
    """The tokens so far, which is all the cache that recomputation needs.

    Attributes:
        tokens: int64 [batch, length], from the left; what follows a row's end is undefined.
        lengths: int64 [batch].
        encoder: what the encoder takes, [batch, ...] each.
    """

    tokens: Tensor
    lengths: Tensor
    encoder: dict[str, Tensor]


class ModuleModel:
    """A `StepModel` of anything that maps tokens to logits.

    Args:
        module: called with input_ids int64 [batch, length] and the encoder's tensors by name; returns logits
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
            check_arguments("ModuleModel", "encoder", called, (input_ids,), encoder)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        to_the_left = torch.argsort(~mask, dim=1, stable=True)
        history = TokenHistory(input_ids.gather(1, to_the_left), mask.sum(dim=1), encoder)
        logits, hidden_states = self._run(history)
        if hidden_states is not None:
            back = torch.argsort(to_the_left, dim=1)
            hidden_states = hidden_states.gather(1, _over_last(back, hidden_states))
        return StepOutput(_take(logits, history.lengths[:, None] - 1).squeeze(1), history, hidden_states)

    def decode(self, tokens: Tensor, cache: TokenHistory) -> StepOutput:
        """See `StepModel.decode`."""
        count = tokens.shape[1]
        places = cache.lengths[:, None] + torch.arange(count, device=tokens.device)
        widened = torch.nn.functional.pad(cache.tokens, (0, count)).scatter(1, places, tokens)
        history = TokenHistory(widened, cache.lengths + count, cache.encoder)
        logits, hidden_states = self._run(history)
        return StepOutput(
            _take(logits, places), history, None if hidden_states is None else _take(hidden_states, places)
        )

    def expand(self, cache: TokenHistory, count: int) -> TokenHistory:
        """See `StepModel.expand`."""
        rows = torch.arange(len(cache.tokens), device=cache.tokens.device)
        return self.reorder(cache, rows.repeat_interleave(count))

    def reorder(self, cache: TokenHistory, index: Tensor) -> TokenHistory:
        """See `StepModel.reorder`."""
        encoder = {name: value[index] for name, value in cache.encoder.items()}
        return TokenHistory(cache.tokens[index], cache.lengths[index], encoder)

    def rollback(self, cache: TokenHistory, lengths: Tensor) -> TokenHistory:
        """See `StepModel.rollback`."""
        return cache._replace(lengths=lengths)

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


def _take(values: Tensor, places: Tensor) -> Tensor:
    """Takes, of values [batch, length, n], those at places [batch, m]."""
    return values.gather(1, _over_last(places, values))


def _over_last(places: Tensor, values: Tensor) -> Tensor:
    return places[:, :, None].expand(-1, -1, values.shape[2])
