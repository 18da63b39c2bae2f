"""In speculative sampling a drafter proposes tokens, and the target judges all of them in one pass, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm
from typing_extensions import Unpack

from ascend_sample._errors import refuse
from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.model import StepModel, decoded, entered
from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.places import at_places
from ascend_sample.decoding.request import GenerationOptions, Request, check_positions, check_request, defaults_of
from ascend_sample.decoding.row_params import check_generator, checked_params
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma, checked_gamma
from ascend_sample.decoding.speculation.drafters import (
    Draft,
    Drafter,
    ModelDrafter,
    ModelDraftState,
    Round,
    checked_draft,
    checked_drafter,
)
from ascend_sample.decoding.speculation.ragged_texts import RaggedTexts
from ascend_sample.decoding.speculation.verifier import Verifier
from ascend_sample.decoding.steps import prefilled
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.drafts.arguments import VerificationRule, check_rule
from ascend_sample.sampling.requests.fields import Stage
from ascend_sample.sampling.requests.params import fields_of

STRATEGY = "speculative_sample"


@torch.no_grad()
def speculative_sample(
    model: StepModel,
    input_ids: Tensor,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    drafter: StepModel | Drafter,
    max_new_tokens: int | Sequence[int] | Tensor,
    gamma: int | Literal["adaptive"] | AdaptiveGamma = 4,
    rule: VerificationRule = "standard",
    generator: torch.Generator | None = None,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Samples from a model with the help of a cheaper one; what is drawn has exactly the model's distribution.

    In each round the drafter proposes gamma tokens a row, the model reads all of them in one pass, `verify_drafts`
    judges them, and a row gets those that stay and one more: 1 to gamma + 1 tokens. Rows advance by different numbers;
    caches go back to where each row is. Greedy rows (temperature 0) get the tokens of greedy search. Rows are
    independent: with a fixed gamma and params for each row, a row gets the same tokens alone and in any batch (as far
    as the models' logits are the same bits).

    Args:
        model: the model that is sampled from, the target.
        input_ids: int64 [batch, length], the prompts.
        params: one `SamplingParams` for each prompt, or one for all. Target and draft are sampled with temperature,
            top_k, top_p, min_p and seed alike, the target with penalties, biases and masks too. None: the model's
            distribution as it is. Prompts that share a seed share their noise. logprobs are refused.
        drafter: a model of the same vocabulary, or a `Drafter`.
        max_new_tokens: the most tokens that are generated, for all rows or for each. No cache ever holds more than a
            row's prompt and this many tokens, but for prompts shorter than gamma.
        gamma: how many tokens are drafted in a round; 0 is plain decoding. "adaptive" or an `AdaptiveGamma`: more
            where drafts are accepted.
        rule: which drafts stay, as `verify_drafts` says. "standard": as many as leaves the distribution exact, draft by
            draft. "block": the same of all drafts together, which accepts at least as many. "match": what `sample`
            would draw: then the texts are those of `sample` with the same seeds, token for token, whatever is proposed,
            ids that the model does not know included.
        generator: where the seeds of prompts without one come from, on the CPU; None is torch's default one.
        **common: see `GenerationOptions`. logits_processor, stopping_criteria and return_scores are refused, and so are
            rules of a model's generation_config: what they get or give is one step of all rows, and here rows are at
            different steps.

    Returns:
        The sequences; as sequences_scores the sums of the tokens' log-probabilities by the model itself, neither
        filtered nor divided by a temperature; and stats. A row that had no token left to draw has the score -inf, and a
        RuntimeWarning names it.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> model = ModuleModel(lambda ids: torch.nn.functional.one_hot((ids + 1) % 5, 5) * 50.0)
        >>> output = speculative_sample(model, torch.tensor([[1, 2]]), drafter=model, max_new_tokens=6, gamma=2)
        >>> output.sequences, output.stats.target_passes
        (tensor([[3, 4, 0, 1, 2, 3]]), 2)

    Source: docs/decoding.md, section "Speculative sampling".
    """
    request = check_request(STRATEGY, model, input_ids, max_new_tokens, **common)
    _refuse_what_needs_steps(request, model)
    control = checked_gamma(STRATEGY, gamma)
    proposer = checked_drafter(STRATEGY, drafter)
    if isinstance(proposer, ModelDrafter):
        check_positions(request, proposer.model, "drafter")
    check_rule(STRATEGY, rule, "standard")
    remedy = "Call sample: each draft would need the state after those before it."
    rows = checked_params(request, checked_params(request, params), fields_of(Stage.STATE), remedy)
    check_generator(request, generator)
    most = control.max_gamma if isinstance(control, AdaptiveGamma) else control
    texts, counts = RaggedTexts(request, most + 1), _Counts(request.batch_size, most)
    target = _Target(model, request)
    sampling = RowSampling(rows, target.vocab_size, request.device, generator, request.prompts())
    drafting, verifier = _Drafting(proposer, request, sampling, rule), Verifier(sampling, rows, rule)
    proposal, logits = drafting.propose(texts, 0), target.first_logits[:, None]  # the prompts give the first token
    with tqdm(total=request.max_steps, unit="token", desc=STRATEGY, disable=not request.progress) as bar:
        while True:
            draft = proposal.draft
            result = verifier.verify(logits, draft, proposal.is_whole)
            emitted, proposed, accepted = texts.append(result, logits, draft.counts)
            verifier.append(result.tokens, emitted)
            looked, kept = counts.add(draft.tokens.shape[1], emitted, proposed, accepted)
            bar.update(request.max_steps - texts.most_room - bar.n)
            if texts.most_room == 0:
                break
            if isinstance(control, AdaptiveGamma):
                control.observe(looked, kept)
            wanted = control.gamma if isinstance(control, AdaptiveGamma) else control
            proposal = drafting.propose(texts, min(wanted, texts.most_room - 1))
            logits = target.read(texts, proposal, rule)
    stats = SpeculativeStats(*counts.on(request.device), target.passes, drafting.passes)
    return texts.result(stats)


class _Proposal(NamedTuple):
    """Holds the draft of a round."""

    draft: Draft
    is_ragged: bool  # some row wants fewer tokens than others
    is_whole: bool  # the host knows that every row proposes all tokens


class _Target:
    """Reads texts and drafts with the model that is sampled from.

    Attributes:
        first_logits: floats [batch, vocab_size], what follows the prompts.
        vocab_size: how many tokens the logits are for.
        passes: how many there were, the prompts not counted.
    """

    def __init__(self, model: StepModel, request: Request) -> None:
        self._model = model
        self.first_logits, self._cache, _ = prefilled(model, request)
        self.vocab_size = self.first_logits.shape[1]
        self.passes = 0
        self._has_read_drafts = False  # so its cache may hold some that are not part of the texts

    def read(self, texts: RaggedTexts, proposal: _Proposal, rule: VerificationRule) -> Tensor:
        """Reads the last token of each row and the drafts; returns logits [batch, 1 + drafts, vocab_size]."""
        tokens, is_ragged = proposal.draft.tokens, proposal.is_ragged
        count = tokens.shape[1]
        # A row that wants fewer is judged from further back, by tokens that it has already: so it stays within its end.
        # One that is done leaves its last token unread: that is one more than the model was promised to read.
        start = texts.lengths - 1
        if is_ragged:
            start = (start - count + (texts.room - 1).clamp(max=count)).clamp(min=0)
        if self._has_read_drafts or is_ragged:  # rows that are done are ragged: they stay where they are
            self._cache = self._model.rollback(self._cache, start)
        if rule == "match" and count:  # it may propose ids that the model does not know, which are not accepted
            tokens = tokens.clamp(0, self.vocab_size - 1)
        window = texts.window(start, tokens, is_ragged)
        logits, self._cache, _ = entered(decoded(STRATEGY, self._model, window, self._cache, self.vocab_size))
        self.passes += 1
        self._has_read_drafts = count > 0
        if is_ragged and count:  # each row's own come first
            places = (texts.lengths - 1 - start)[:, None] + torch.arange(1 + count, device=logits.device)
            logits = at_places(logits, places.clamp(max=count))
        return logits


class _Drafting:
    """Asks a drafter for the drafts of each round, and checks what it says.

    Attributes:
        passes: how many it took, the prompts not counted.
    """

    def __init__(self, drafter: Drafter, request: Request, sampling: RowSampling, rule: VerificationRule) -> None:
        self._drafter, self._request, self._sampling, self._rule = drafter, request, sampling, rule
        self._is_started = False
        self._state: Any = None
        self._uniform: dict[int, Tensor] = {}
        self.passes = 0

    def propose(self, texts: RaggedTexts, count: int) -> _Proposal:
        """Returns up to count tokens a row, fewer where a row has no room for them and one more."""
        if count not in self._uniform:  # the same number for each row
            self._uniform[count] = torch.full_like(texts.lengths, count)
        wanted, is_ragged = self._uniform[count], texts.least_room - 1 < count
        if is_ragged:
            wanted = (texts.room - 1).clamp(min=0, max=count)
        if count == 0:
            return _Proposal(Draft(texts.tokens[:, :0], wanted), is_ragged, not is_ragged)
        if not self._is_started:
            self._start()
        wanted_cpu = (texts.room_cpu - 1).clamp(min=0, max=count)
        sampling, rule, lengths_cpu = self._sampling, self._rule, texts.lengths_cpu
        given = Round(texts.tokens, texts.lengths, wanted, count, is_ragged, sampling, rule, lengths_cpu, wanted_cpu)
        proposed, self._state = self._drafter.draft(self._state, given)
        draft = checked_draft(STRATEGY, self._drafter, proposed, given)
        self.passes += draft.passes
        return _Proposal(draft, is_ragged, not is_ragged and draft.counts is wanted)

    def _start(self) -> None:
        """Lets the drafter read the prompts."""
        self._is_started = True
        request, vocab_size = self._request, self._sampling.vocab_size
        try:
            self._state = self._drafter.start(request.input_ids, request.attention_mask, request.encoder)
        except IndexError as error:  # most likely of a token beyond its vocabulary, which it has not told yet
            remedy = f"Draft with a model of the same vocabulary of {vocab_size} tokens."
            refuse(STRATEGY, "drafter", "be able to read the prompts", f"IndexError: {error}", remedy)
        if isinstance(self._state, ModelDraftState) and self._state.vocab_size != vocab_size:
            rule = f"have the model's vocabulary of {vocab_size} tokens"
            remedy = "Draft with one of its family, and cut padding of an output layer off."
            refuse(STRATEGY, "drafter", rule, self._state.vocab_size, remedy)


class _Counts:
    """Counts the drafts that the target looked at, and those that it accepted, by row and place in the round."""

    def __init__(self, batch_size: int, most: int) -> None:
        self._drafted = torch.zeros(batch_size, most, dtype=torch.int64, device="cpu")
        self._accepted = self._drafted.clone()

    def add(self, count: int, emitted: Tensor, proposed: Tensor, accepted: Tensor) -> tuple[int, int]:
        """Adds a round of count drafts a row; returns how many were looked at, and accepted, in all rows.

        What follows a stop token was never part of the text.
        """
        places = torch.arange(count, device="cpu")
        looked = (places < torch.minimum(emitted, proposed)[:, None]).long()
        kept = (places < torch.minimum(emitted, accepted)[:, None]).long()
        self._drafted[:, :count] += looked
        self._accepted[:, :count] += kept
        return int(looked.sum()), int(kept.sum())

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns both on a device, int64 [batch, most]."""
        return self._drafted.to(device), self._accepted.to(device)


def _refuse_what_needs_steps(request: Request, model: StepModel) -> None:
    rules = defaults_of(model).rules
    if rules:
        remedy = (
            "A rule looks at one step of all rows, and here rows are at different steps: use sample(), or leave the "
            "rules out, for example CausalModel(model, generation_config=GenerationConfig(eos_token_id=...))."
        )
        refuse(STRATEGY, "model", "ask for no rules in its generation_config", ", ".join(rules), remedy)
    for name in ("logits_processor", "stopping_criteria"):
        if getattr(request, name):
            remedy = "They look at one step of all rows, and here rows are at different steps: use sample()."
            refuse(STRATEGY, name, "be empty", f"{len(getattr(request, name))}", remedy)
    if request.return_scores:
        refuse(STRATEGY, "return_scores", "be False", "True", "Rows have no steps in common here: use sample().")
