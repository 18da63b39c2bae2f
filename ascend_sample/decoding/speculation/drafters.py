"""Drafters propose tokens for a target to judge, by a smaller model or by the text so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from ascend_sample._errors import check_bool, check_integer, refuse, refuse_result
from ascend_sample.decoding.checks import has_methods, name_of
from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.model import StepModel, checked, decoded, entered
from ascend_sample.decoding.places import at_places
from ascend_sample.decoding.request import check_model
from ascend_sample.sampling.drafts.arguments import VerificationRule
from ascend_sample.sampling.drafts.judging import noise_position


class Draft(NamedTuple):
    """Holds what a drafter proposes.

    Attributes:
        tokens: int64 [batch, count], all of the model's vocabulary; what follows a row's own count is any of them.
            Under the rule match others are not accepted. Under the other rules they are refused on a CPU; on a device,
            where a round would have to wait for an answer, they end the drafts of their row.
        counts: int64 [batch], how many of them each row proposes, 0 to count.
        probabilities: float32 [batch, count, vocab_size], the distribution that each token was drawn from; None where
            tokens are not drawn: each then counts as drawn from a distribution that has nothing else.
        passes: how many forward passes it took.
    """

    tokens: Tensor
    counts: Tensor
    probabilities: Tensor | None = None
    passes: int = 0


class Round(NamedTuple):
    """Tells a drafter about the texts and what is wanted.

    In each round but the first a row got, since the last one, the accepted draft tokens and one more; in the first it
    got one since the prompt.

    Attributes:
        tokens: int64 [batch, capacity], prompts without padding and what was generated, from the left; what follows a
            row's end is undefined.
        lengths: int64 [batch], the number of tokens of each row.
        wanted: int64 [batch], the most tokens that each row may propose, up to size; a model must not see places
            beyond lengths + wanted.
        size: the largest of wanted, or more.
        is_ragged: False only if every row wants size tokens.
        sampling: how the target is sampled: whoever draws from the same filters proposes what the target can draw.
        rule: by which drafts are judged.
        lengths_cpu: lengths on the CPU. None: they are there.
        wanted_cpu: likewise.
    """

    tokens: Tensor
    lengths: Tensor
    wanted: Tensor
    size: int
    is_ragged: bool
    sampling: RowSampling
    rule: VerificationRule = "standard"
    lengths_cpu: Tensor | None = None
    wanted_cpu: Tensor | None = None

    def first_read(self, lengths: Tensor, wanted: Tensor, known: int) -> Tensor:
        """Returns from where on a model reads so many tokens of each row, int64 [batch], on the device of lengths.

        A row that wants fewer starts earlier, by tokens that it has already: no row goes beyond what it wants.
        """
        start = lengths - known
        return (start - (self.size - wanted) if self.is_ragged else start).clamp(min=0)

    def noise_positions(self, known: int) -> Tensor:
        """Returns the positions whose noise draws what a model drafts that reads so many tokens of each row first.

        Returns:
            int64 [size, batch] on the CPU.
        """
        lengths = self.lengths if self.lengths_cpu is None else self.lengths_cpu
        wanted = self.wanted if self.wanted_cpu is None else self.wanted_cpu
        positions = self.first_read(lengths, wanted, known) + known + torch.arange(self.size, device="cpu")[:, None]
        if self.rule != "block":
            return positions
        number = (positions - lengths).clamp(min=0)  # before lengths nothing is drawn
        of_noise: Tensor = noise_position(self.rule, lengths, number)
        return of_noise


_NO_TOKEN: Final = -1
DRAFTER_METHODS: Final = ("start", "draft")
"""The methods of `Drafter`."""


class Drafter(Protocol):
    """Proposes tokens. Its state, which is opaque to its callers, belongs to one batch of texts.

    Whatever it proposes, results are exact as long as `Draft.probabilities` are what the tokens were drawn from, by
    noise that nothing else uses (`Purpose.DRAFT`): under the rule block no earlier round either, which
    `Round.noise_positions` sees to. Good proposals make it fast, nothing more.

    Source: docs/decoding.md, section "Drafters".
    """

    def start(self, input_ids: Tensor, attention_mask: Tensor, encoder: Mapping[str, Tensor]) -> Any:
        """Reads the prompts, int64 [batch, length], with a mask that is False at padding; returns the state."""
        ...

    def draft(self, state: Any, texts: Round) -> tuple[Draft, Any]:
        """Proposes texts.size tokens a row, fewer where a row has fewer or wants fewer; returns the next state too."""
        ...


class ModelDraftState(NamedTuple):
    """Holds the state of a `ModelDrafter`.

    Attributes:
        cache: the cache of its model.
        missing: how many of the last tokens of a text the cache lacks, or may have wrong.
        vocab_size: how many tokens its model knows.
    """

    cache: Any
    missing: int
    vocab_size: int


class ModelDrafter:
    """Drafts with a model: draws from it as the target is drawn from, with the filters of each row.

    Args:
        model: a model of the target's vocabulary that is cheaper than the target.
        uses_encoder: whether it takes the encoder's tensors that the target takes.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> from ascend_sample.sampling import SamplingParams
        >>> model = ModuleModel(lambda ids: torch.nn.functional.one_hot((ids + 1) % 5, 5) * 50.0)
        >>> prompt = torch.tensor([[1, 2]])
        >>> drafter = ModelDrafter(model)
        >>> state = drafter.start(prompt[:, :1], torch.ones(1, 1, dtype=torch.bool), {})
        >>> sampling = RowSampling([SamplingParams(seed=1)], 5, prompt.device)
        >>> texts = Round(prompt, torch.tensor([2]), torch.tensor([3]), 3, False, sampling)
        >>> drafter.draft(state, texts)[0].tokens
        tensor([[3, 4, 0]])
    """

    def __init__(self, model: StepModel, *, uses_encoder: bool = True) -> None:
        check_model("ModelDrafter", "model", model)
        check_bool("ModelDrafter", "uses_encoder", uses_encoder)
        self.model = model
        self.uses_encoder = uses_encoder

    def start(self, input_ids: Tensor, attention_mask: Tensor, encoder: Mapping[str, Tensor]) -> ModelDraftState:
        """See `Drafter.start`."""
        given = encoder if self.uses_encoder else {}
        output = self.model.prefill(input_ids, attention_mask, **given)
        output = checked("ModelDrafter", self.model, output, len(input_ids), read=input_ids.shape[1])
        return ModelDraftState(output.cache, 1, output.logits.shape[1])

    def draft(self, state: ModelDraftState, texts: Round) -> tuple[Draft, ModelDraftState]:
        """See `Drafter.draft`. Each token takes a pass; the first one also reads what is new in the texts."""
        known, count, sampling = state.missing, texts.size, texts.sampling
        first = texts.first_read(texts.lengths, texts.wanted, known)
        cache = self.model.rollback(state.cache, first)
        given = texts.tokens.gather(1, first[:, None] + sampling.places.first(known))
        noise = None if sampling.is_greedy else sampling.draft_noise(texts.noise_positions(known))
        tokens: list[Tensor] = []
        probabilities: list[Tensor] = []
        for step in range(count):
            output = decoded("ModelDrafter", self.model, given, cache, state.vocab_size)
            logits, cache, _ = entered(output)
            if noise is None:  # nothing is drawn, so there is nothing to judge by
                token = sampling.greedy.of(logits[:, -1])
            else:
                probabilities.append(sampling.probabilities(logits[:, -1]))
                token = (probabilities[-1] / noise[step]).argmax(dim=1)
            if texts.is_ragged:
                position = first + (known + step)
                old = texts.tokens.gather(1, position.clamp(max=texts.tokens.shape[1] - 1)[:, None]).squeeze(1)
                token = torch.where(position < texts.lengths, old, token)
            tokens.append(token)
            given = token[:, None]
        drafted = torch.stack(tokens, dim=1)
        q = torch.stack(probabilities, dim=1) if probabilities else None
        if texts.is_ragged:
            place = (texts.lengths - first - known)[:, None] + sampling.places.first(count)
            place = place.clamp(min=0, max=count - 1)  # anything will do for a row that is done
            drafted = drafted.gather(1, place)
            q = None if q is None else at_places(q, place)
        # It lacks its own last token and the target's, where all were accepted.
        return Draft(drafted, texts.wanted, q, count), state._replace(cache=cache, missing=2)


class NGramDrafter:
    """Drafts what followed the last tokens when they occurred before in the text (prompt lookup). It needs no model.

    Of several occurrences of the longest possible match the latest counts. Where what followed reaches the end of the
    text, it is repeated, as a text is that has begun to repeat itself.

    Args:
        max_ngram: How many tokens are looked for at first.
        min_ngram: How many must match at least; below that, a row has no draft.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> text = torch.tensor([[7, 1, 2, 3, 4, 1, 2]])
        >>> sampling = RowSampling([SamplingParams()], 8, text.device)
        >>> texts = Round(text, torch.tensor([7]), torch.tensor([6]), 6, False, sampling)
        >>> drafter = NGramDrafter()
        >>> state = drafter.start(text, torch.ones(1, 7, dtype=torch.bool), {})
        >>> drafter.draft(state, texts)[0].tokens
        tensor([[3, 4, 1, 2, 3, 4]])
    """

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        check_integer("NGramDrafter", "min_ngram", min_ngram, low=1)
        check_integer("NGramDrafter", "max_ngram", max_ngram, low=int(min_ngram))
        self.max_ngram = int(max_ngram)
        self.min_ngram = int(min_ngram)

    def start(self, input_ids: Tensor, attention_mask: Tensor, encoder: Mapping[str, Tensor]) -> NGramDraftState:
        """Keeps nothing of the prompts but their largest id, because a round brings the texts."""
        return NGramDraftState(int(input_ids.where(attention_mask, 0).max()))

    def draft(self, state: NGramDraftState, texts: Round) -> tuple[Draft, NGramDraftState]:
        """See `Drafter.draft`. A few operators find all matches of all sizes."""
        tokens, lengths, places = texts.tokens, texts.lengths, texts.sampling.places
        capacity, ranks = tokens.shape[1], state.ranks
        max_ngram = max(1, min(self.max_ngram, capacity - 1))
        if ranks is None or ranks.capacity != capacity:
            ranks = _Ranks.of(capacity, max_ngram, min(self.min_ngram, max_ngram + 1), tokens.device)
        padded = torch.nn.functional.pad(tokens, (max_ngram, 0), value=_NO_TOKEN)
        last = padded.gather(1, lengths[:, None] + places.first(max_ngram))
        # What is before each place, as many tokens; before the text there are some that no last token is.
        is_same = padded.unfold(1, max_ngram, 1)[:, :capacity] == last[:, None]
        found = torch.where(is_same, ranks.of_same, ranks.of_other).amin(dim=2)
        found.masked_fill_(places.first(capacity) >= lengths[:, None], ranks.least)
        follows = found.amax(dim=1).remainder(capacity)
        period = (lengths - follows)[:, None]
        drafted = tokens.gather(1, follows[:, None] + places.first(texts.size) % period)
        counts = torch.where(follows > 0, texts.wanted, places.first(1))
        if state.largest >= texts.sampling.vocab_size:  # a prompt has tokens that the model reads and never says
            drafted, counts = without_what_is_no_id(drafted, counts, texts)
        return Draft(drafted, counts), state._replace(ranks=ranks)


class _Ranks(NamedTuple):
    """What places of a text are worth as those where a match ends: the max_ngram match, and of these the latest.

    A place p is worth p - capacity * missing, if so many of the last tokens are not before it.

    Attributes:
        capacity: how many places there are.
        of_same: int64 [capacity, 1], where all are.
        of_other: int64 [capacity, max_ngram], where the last one that is not is the first, the second, ... of them.
        least: the worth of no match; so much is place 0.
    """

    capacity: int
    of_same: Tensor
    of_other: Tensor
    least: int

    @classmethod
    def of(cls, capacity: int, max_ngram: int, min_ngram: int, device: torch.device) -> _Ranks:
        """Makes them, once for a batch of texts."""
        places = torch.arange(capacity, device=device)[:, None]
        of_other = places - capacity * torch.arange(1, max_ngram + 1, device=device)
        least = -capacity * (max_ngram - min_ngram)
        of_other[0] = least
        return cls(capacity, places, of_other, least)


class NGramDraftState(NamedTuple):
    """Holds the state of an `NGramDrafter`.

    Attributes:
        largest: the largest id of the prompts.
        ranks: what places are worth; None before the first draft.
    """

    largest: int
    ranks: _Ranks | None = None


OWN_DRAFTERS: Final = (ModelDrafter, NGramDrafter)
"""Those that propose what the model knows, and nothing else."""


def without_what_is_no_id(tokens: Tensor, counts: Tensor, texts: Round) -> tuple[Tensor, Tensor]:
    """Returns drafts of which each row's end before the first that the model does not know, and their counts."""
    known = tokens.clamp(0, texts.sampling.vocab_size - 1)
    ends = torch.where(known == tokens, texts.size, texts.sampling.places.first(texts.size)).amin(dim=1)
    return known, torch.minimum(counts, ends)


def checked_drafter(strategy: str, drafter: object) -> Drafter:
    """Returns who drafts, of a model a `ModelDrafter`, or raises unless it is one of both."""
    if has_methods(drafter, DRAFTER_METHODS):
        return cast(Drafter, drafter)
    check_model(strategy, "drafter", drafter, "a StepModel or a Drafter")
    return ModelDrafter(cast(StepModel, drafter))


def checked_draft(strategy: str, drafter: Drafter, draft: object, texts: Round) -> Draft:
    """Returns what a drafter has proposed for a round, or raises unless it is a `Draft` of that many tokens.

    On a CPU, where it costs nothing, it is also looked at which tokens and how many there are. Elsewhere a round would
    have to wait for an answer: under the rules standard and block, of which the model reads all tokens, a row's drafts
    end before the first that it does not know.
    """
    name, batch_size, remedy = f"drafter {name_of(drafter)}", len(texts.lengths), "See Draft."
    if not isinstance(draft, Draft):
        refuse_result(strategy, name, "return a Draft and the next state", draft, remedy)
    vocab_size = texts.sampling.vocab_size
    parts = (
        ("tokens", draft.tokens, torch.int64, (batch_size, texts.size)),
        ("counts", draft.counts, torch.int64, (batch_size,)),
        ("probabilities", draft.probabilities, torch.float32, (batch_size, texts.size, vocab_size)),
    )
    for part, value, dtype, shape in parts:
        if part == "probabilities" and value is None:
            continue
        if not isinstance(value, Tensor) or value.dtype != dtype or value.shape != shape:
            refuse_result(strategy, name, f"return {part} {list(shape)} of {dtype}", value, remedy)
    if draft.tokens.is_cpu:
        for count in map(int, draft.counts.aminmax()):
            if not 0 <= count <= texts.size:
                refuse(strategy, name, f"return counts from 0 to {texts.size}", count, remedy)
        for token in map(int, draft.tokens.aminmax() if texts.rule != "match" else ()):
            if not 0 <= token < vocab_size:
                rule = f"propose tokens of the model's vocabulary, 0 to {vocab_size - 1}"
                refuse(strategy, "drafter", rule, token, "Draft with tokens that the model knows.")
    elif texts.rule != "match" and texts.size and type(drafter) not in OWN_DRAFTERS:
        tokens, counts = without_what_is_no_id(draft.tokens, draft.counts, texts)
        return draft._replace(tokens=tokens, counts=counts.clamp_(min=0))
    return draft
