"""In speculative sampling a drafter proposes tokens, and the target judges all of them in one pass, exactly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm
from typing_extensions import Unpack

from ascend_sample._errors import refuse
from ascend_sample.decoding.checks import has_methods
from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.log_probs import log_probs_of, log_probs_of_usual
from ascend_sample.decoding.model import StepModel, decoded, entered
from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.places import at_places
from ascend_sample.decoding.reading import read_together
from ascend_sample.decoding.request import CommonOptions, Request, check_positions, check_request, defaults_of
from ascend_sample.decoding.row_params import check_generator
from ascend_sample.decoding.speculation.acceptance import Draft, judge_draft, judge_greedy_draft
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma, checked_gamma
from ascend_sample.decoding.speculation.drafters import (
    Drafter,
    ModelDrafter,
    ModelDraftState,
    Round,
    checked_draft,
    checked_drafter,
)
from ascend_sample.decoding.speculation.matching import Verification, checked_rows, is_judged_there
from ascend_sample.decoding.speculation.ragged_texts import RaggedTexts
from ascend_sample.decoding.speculation.round_noise import RoundNoise
from ascend_sample.decoding.steps import prefilled, read_prompts
from ascend_sample.sampling import RowStatus, SamplingParams
from ascend_sample.sampling.drafts.arguments import Rule

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
    rule: Rule = "standard",
    generator: torch.Generator | None = None,
    **common: Unpack[CommonOptions],
) -> DecodeOutput:
    """Samples from a model with the help of a cheaper one; what is drawn has exactly the model's distribution.

    In each round the drafter proposes gamma tokens a row, one pass of the model judges them (`judge_draft`), and a row
    gets those that it accepts and one more: 1 to gamma + 1 tokens. Rows advance by different numbers; caches go back to
    where each row is. Greedy rows (temperature 0) get the tokens that greedy search would give them. Rows are
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
        gamma: how many tokens are drafted in a round; 0 is plain decoding. "adaptive" or an `AdaptiveGamma`: as many as
            pay off.
        rule: which drafts stay, as `verify_drafts` says. "standard": as many as leaves the distribution exact, draft by
            draft. "block": the same of all drafts together, which accepts at least as many. "match": what `sample`
            would draw: then the texts are those of `sample` with the same seeds, token for token, whatever is proposed,
            ids that the model does not know included.
        generator: where the seeds of prompts without one come from, on the CPU; None is torch's default one.
        **common: see `CommonOptions`. logits_processor, stopping_criteria and return_scores are refused, and so are
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
    rows = checked_rows(request, params, rule)
    check_generator(request, generator)
    largest = control.largest if isinstance(control, AdaptiveGamma) else control
    run = _Run(model, proposer, request, rows, largest, generator, rule)
    if not (isinstance(control, int) and run.start_with_drafts(min(control, run.most_room - 1))):
        run.start()
    with tqdm(total=request.max_steps, unit="token", desc=STRATEGY, disable=not request.progress) as bar:
        while run.most_room:
            bar.update(request.max_steps - run.most_room - bar.n)
            limit = run.most_room - 1
            if isinstance(control, AdaptiveGamma):
                unseen = run.unseen
                unread = unseen if run.is_drafter_started else unseen + input_ids.shape[1]
                count = control.choose(limit, run.rows_to_go(), unread)
                if count and not run.is_drafter_started:
                    control.observe_reading(run.timed_start_of_drafter(), input_ids.shape[1])
                began = time.perf_counter()
                looked, accepted = run.next_round(count)
                control.observe(count, time.perf_counter() - began, looked, accepted, unseen)
            else:
                run.next_round(min(control, limit))
        bar.update(request.max_steps - bar.n)
    return run.result()


class _Run:
    """Does the rounds of a call, and keeps its texts and caches.

    Attributes:
        lengths_here: int64 [batch] on the CPU, how many tokens each row has, its prompt included.
        room_of_rows: how many tokens each row may still get; 0 for a row that is done.
        most_room: the largest of them; 0 when all rows are done.
        unseen: how many tokens a row got since the drafter was last asked, or since the prompt.
        is_drafter_started: whether it has read the prompts.
    """

    def __init__(
        self,
        model: StepModel,
        drafter: Drafter,
        request: Request,
        params: list[SamplingParams],
        largest: int,
        generator: torch.Generator | None,
        rule: Rule,
    ) -> None:
        self.model, self.drafter, self.request = model, drafter, request
        self.params, self.generator, self.rule = params, generator, rule
        self.verification: Verification | None = None
        self.texts = RaggedTexts(request, most=largest + 1)
        self.cache: Any = None
        room, self.lengths_here = read_together(request.max_new_tokens, self.texts.lengths)
        self._note_room(room.tolist())
        self.is_drafter_started = False
        self.state: Any = None
        self.unseen = 0
        self.is_cache_ahead = False
        counts = torch.zeros(request.batch_size, largest, dtype=torch.int64, device="cpu")
        self.drafted, self.accepted = counts, counts.clone()  # on the host
        self.as_many: dict[int, Tensor] = {}  # the same number for each row
        self.target_passes = self.draft_passes = 0

    def start(self) -> None:
        """Processes the prompts, which gives the first token too; then a row's cache lacks its last token alone."""
        output = prefilled(self.model, self.request)
        self.cache = output.cache
        self._sample_from(output.logits.shape[1])
        self._judge(Draft(self.texts.tokens[:, :0], self._as_many(0)), output.logits[:, None], self._noise(0))

    def start_with_drafts(self, count: int) -> bool:
        """Judges count drafts a row in the pass that reads the prompts, which saves a pass; returns whether it did.

        It does where that changes nothing but the time: all rows are greedy and have the same room, nobody listens for
        the first token, there is no encoder, and the drafter and the model can.
        """
        request, size = self.request, getattr(self.model, "vocab_size", None)
        may_wait = (
            count > 0
            and self.least_room == self.most_room
            and request.on_tokens is None
            and not request.encoder
            and isinstance(self.drafter, ModelDrafter)
            and all(params.temperature == 0 for params in self.params)
            and has_methods(self.model, ("prefill_with_drafts",))
        )
        if not (may_wait and isinstance(size, int)):
            return False
        self._sample_from(size)
        draft = self._draft(self._as_many(count), count, is_ragged=False)
        output = entered(read_prompts(self.model, request, draft.tokens))
        self.cache = output.cache
        self._judge(draft, output.logits)
        return True

    def next_round(self, count: int) -> tuple[int, int]:
        """Drafts count tokens a row and judges them; returns how many were looked at, and accepted, in all rows."""
        texts = self.texts
        is_ragged = self.least_room - 1 < count
        wanted = (texts.room - 1).clamp(min=0, max=count) if is_ragged else self._as_many(count)
        noise = self._noise(count)
        draft = self._draft(wanted, count, is_ragged, noise)
        # A row that wants fewer is judged from further back, by tokens that it has already: so it stays within its end.
        # One that is done leaves its last token unread: that is one more than the model was promised to read.
        start = texts.lengths - 1
        if is_ragged:
            start = (start - count + (texts.room - 1).clamp(max=count)).clamp(min=0)
        if self.is_cache_ahead or is_ragged:  # rows that are done are ragged: they stay where they are
            self.cache = self.model.rollback(self.cache, start)
        window = texts.window(start, self._readable(draft.tokens), is_ragged)
        output = decoded(STRATEGY, self.model, window, self.cache, self.vocab_size)
        logits, self.cache, _ = entered(output)
        self.target_passes += 1
        if is_ragged and count:
            logits = _from_place(logits, texts.lengths - 1 - start)
        return self._judge(draft, logits, noise, is_whole=not is_ragged and draft.counts is wanted)

    def _noise(self, count: int) -> RoundNoise | None:
        """Returns the noise of a round that the host makes: of rows on a device that are drawn."""
        if self.sampling.is_greedy or self.texts.lengths.is_cpu:
            return None
        wanted = torch.tensor(self.room_of_rows, device="cpu") - 1
        return RoundNoise(
            self.sampling, self.lengths_here, wanted.clamp(min=0, max=count), count, self.verification is None
        )

    def _judge(
        self, draft: Draft, logits: Tensor, noise: RoundNoise | None = None, is_whole: bool = False
    ) -> tuple[int, int]:
        """Appends what is accepted, and a token more; logits [batch, 1 + drafts, vocab_size] follow the last token."""
        texts, count, status = self.texts, draft.tokens.shape[1], None
        if self.verification is not None:
            new, accepted, status = self.verification.judge(logits, draft)
        elif self.sampling.is_greedy and count:
            accepted, new = judge_greedy_draft(logits, draft, self.sampling, texts.lengths, is_whole)
        else:
            accepted, token = judge_draft(logits, draft, self.sampling, texts.lengths, noise, is_whole)
            new = torch.nn.functional.pad(draft.tokens, (0, 1)).scatter(1, accepted[:, None], token[:, None])
        emitted = texts.append(new, accepted + 1)
        self.is_cache_ahead = count > 0
        self.unseen = 0 if count else self.unseen + 1
        return self._read(logits, new, emitted, draft.counts, accepted, status)

    def rows_to_go(self) -> list[tuple[int, int]]:
        """Returns how many draft tokens were looked at, and accepted, of each row that is not done."""
        of_rows = (counts.sum(dim=1).tolist() for counts in (self.drafted, self.accepted))
        rows = zip(self.room_of_rows, *of_rows, strict=True)
        return [(looked, accepted) for room, looked, accepted in rows if room > 0]

    def result(self) -> DecodeOutput:
        """Returns the texts and the statistics, when all rows are done."""
        drafted, accepted = (counts.to(self.request.device) for counts in (self.drafted, self.accepted))
        return self.texts.result(SpeculativeStats(drafted, accepted, self.target_passes, self.draft_passes))

    def start_drafter(self) -> None:
        """Lets the drafter read the prompts, if it has not yet."""
        if not self.is_drafter_started:
            self.is_drafter_started = True
            request = self.request
            try:
                self.state = self.drafter.start(request.input_ids, request.attention_mask, request.encoder)
            except IndexError as error:  # most likely of a token beyond its vocabulary, which it has not told yet
                remedy = f"Draft with a model of the same vocabulary of {self.vocab_size} tokens."
                refuse(STRATEGY, "drafter", "be able to read the prompts", f"IndexError: {error}", remedy)
            if isinstance(self.state, ModelDraftState) and self.state.vocab_size != self.vocab_size:
                rule = f"have the model's vocabulary of {self.vocab_size} tokens"
                refuse(
                    STRATEGY,
                    "drafter",
                    rule,
                    self.state.vocab_size,
                    "Draft with one of its family, and cut padding of an output layer off.",
                )

    def timed_start_of_drafter(self) -> float:
        """Starts the drafter, waits for it, and returns its seconds."""
        began = time.perf_counter()
        self.start_drafter()
        self.texts.room.tolist()  # on a device it is done when this has arrived
        return time.perf_counter() - began

    def _draft(self, wanted: Tensor, count: int, is_ragged: bool, noise: RoundNoise | None = None) -> Draft:
        texts = self.texts
        if count == 0:
            return Draft(texts.tokens[:, :0], wanted)
        self.start_drafter()
        given = Round(
            texts.tokens, texts.lengths, wanted, count, self.unseen, is_ragged, self.sampling, noise, self.rule
        )
        proposed, self.state = self.drafter.draft(self.state, given)
        draft = checked_draft(STRATEGY, self.drafter, proposed, given)
        self.draft_passes += draft.passes
        return draft

    def _readable(self, drafted: Tensor) -> Tensor:
        """Returns what the model reads of drafts: under the rule match, others for those that it does not know."""
        return drafted.clamp(0, self.vocab_size - 1) if self.rule == "match" and drafted.shape[1] else drafted

    def _sample_from(self, vocab_size: int) -> None:
        """Notes how many tokens the model's logits are for, and how each row is sampled from them."""
        self.vocab_size = vocab_size
        self.sampling = RowSampling(self.params, vocab_size, self.request.device, self.generator)
        if is_judged_there(self.rule, self.params):
            self.verification = Verification(self.request, self.params, self.sampling, self.rule)

    def _as_many(self, count: int) -> Tensor:
        """Returns int64 [batch] of the same number, made once."""
        if count not in self.as_many:
            self.as_many[count] = torch.full_like(self.texts.lengths, count)
        return self.as_many[count]

    def _read(
        self,
        logits: Tensor,
        tokens: Tensor,
        emitted: Tensor,
        proposed: Tensor,
        accepted: Tensor,
        status: Tensor | None = None,
    ) -> tuple[int, int]:
        """Notes what a round was like, and the room that it leaves. A round waits for the device here alone.

        Args:
            logits: floats [batch, n, vocab_size], the model's at the places of the tokens.
            tokens: int64 [batch, n], what was to be appended.
            emitted: int64 [batch], how many of them were.
            proposed: int64 [batch], how many of them were drafts.
            accepted: int64 [batch], how many of these were accepted.
            status: int8 [batch, n], a `RowStatus` of each token; None where probabilities say what is impossible.

        Returns:
            How many draft tokens were looked at, and accepted, in all rows.
        """
        log_probs = (log_probs_of if tokens.is_cpu else log_probs_of_usual)(logits, tokens)
        if status is not None:
            log_probs = log_probs.masked_fill(status == RowStatus.ALL_MASKED, -torch.inf)
        log_probs, room, *counts = read_together(log_probs, self.texts.room, emitted, proposed, accepted)
        if log_probs.isnan().any():
            log_probs = log_probs_of(logits, tokens).cpu()
        emitted, proposed, accepted = counts
        if self.verification is not None:
            self.verification.append(tokens, emitted)
        self.lengths_here = self.lengths_here + emitted
        self.texts.score(log_probs, emitted)
        count = tokens.shape[1] - 1
        places = torch.arange(count, device="cpu")
        # What follows a stop token was never part of the text.
        looked = (places < torch.minimum(emitted, proposed)[:, None]).long()
        kept = (places < torch.minimum(emitted, accepted)[:, None]).long()
        self.drafted[:, :count] += looked
        self.accepted[:, :count] += kept
        self._note_room(room.tolist())
        return int(looked.sum()), int(kept.sum())

    def _note_room(self, room_of_rows: list[int]) -> None:
        self.room_of_rows = room_of_rows
        self.most_room, self.least_room = max(room_of_rows), min(room_of_rows)


def _from_place(logits: Tensor, first: Tensor) -> Tensor:
    """Returns each row of logits, [batch, places, vocab_size], from its first on, filled up with its last place."""
    places = first[:, None] + torch.arange(logits.shape[1], device=logits.device)
    return at_places(logits, places.clamp(max=logits.shape[1] - 1))


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
