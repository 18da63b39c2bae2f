"""What a request forbids, forces or makes less likely because of its text: n-grams, DRY, bad words, long thoughts.

The rules of a row look at its prompt and output as one text, on the host. They give a short list of ids and addends,
which joins the row's own in its slot; what a token costs them does not depend on how long the text is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import numpy

from ascend_sample.sampling.edits.processing import MASKED
from ascend_sample.sampling.edits.slots import Floats, Ids
from ascend_sample.sampling.edits.text_indexes import Journal, NgramIndex, SuffixIndex, Tokens, by_last
from ascend_sample.sampling.requests.checks import LARGEST
from ascend_sample.sampling.requests.params import SamplingParams

SPARE: Final = 1024
"""So many tokens more than twice `dry_penalty_last_n` are indexed before those that are out of it are forgotten."""
FORCED: Final = 1e9
"""What the logit of an id gets that is to be drawn, as in vLLM: finite, so that deviations and sums stay finite."""
NOTHING: Final = (numpy.zeros(1, numpy.int64), numpy.full(1, -0.0, numpy.float32))
"""A list that changes nothing: a slot has at least one id."""


def has_rules(params: SamplingParams) -> bool:
    """Tells whether a request has rules that look at its text."""
    is_bounded = params.thinking_token_budget is not None
    return params.no_repeat_ngram_size > 0 or params.dry_multiplier > 0 or bool(params.bad_words) or is_bounded


class TextRules:
    """The rules of one row, and its text.

    Args:
        params: the request; `has_rules` holds.
        text: its prompt and output.
        vocab_size: what is no id of the vocabulary counts as a token that equals no other.

    Attributes:
        own: the addends that do not depend on the text, as of `addend_of`.
        listed: what the row's slot has of `addends`; whoever writes it there notes it.

    Example:
        >>> rules = TextRules(SamplingParams(bad_words=[[1, 2]], no_repeat_ngram_size=2), [3, 1], vocab_size=5)
        >>> rules.addends()
        (array([2]), array([-inf], dtype=float32))
        >>> rules.extend([3])
        >>> rules.addends()
        (array([1]), array([-inf], dtype=float32))
    """

    def __init__(self, params: SamplingParams, text: Iterable[int], vocab_size: int) -> None:
        self._params, self._vocab_size = params, vocab_size
        self._text = list(text)
        self._journal = Journal()
        self.own: tuple[Ids, Floats] = (NOTHING[0][:0], NOTHING[1][:0])
        self.listed: tuple[Ids, Floats] = self.own
        self._ngrams: NgramIndex | None = None
        if params.no_repeat_ngram_size > 0:
            size, window = params.no_repeat_ngram_size, params.no_repeat_ngram_window
            self._ngrams = NgramIndex(size, window, self._text, self._journal)
        self._spared = frozenset(params.no_repeat_ngram_whitelist)
        words = [(tuple(word[:-1]), word[-1]) for word in params.bad_words]
        self._words = by_last(words)
        breakers = cast(Collection[Tokens], params.dry_sequence_breakers)
        self._breakers = by_last((breaker, len(breaker)) for breaker in breakers)
        self._unpenalized = {breaker[0] for breaker in breakers if len(breaker) == 1}
        self._unbroken = 0  # where what may be matched begins: after the last breaker
        self._suffixes: SuffixIndex | None = None
        if params.dry_multiplier > 0:
            self._index_suffixes()
            last = len(self._text) if breakers else 0
            ends = (end for end in range(last, 0, -1) if self._ends_with_breaker(end))
            self._unbroken = next(ends, 0)
        self._thought: int | None = None  # where the one begins that is open, behind what opens it
        if params.thinking_token_budget is not None:
            any(map(self._note_thought, range(len(self._text), 0, -1)))  # until one is found

    def extend(self, tokens: Iterable[int]) -> None:
        """Takes in tokens of the text."""
        for token in tokens:
            # Numbers below 0 are no ids, and each is another.
            self._text.append(token if 0 <= token < self._vocab_size else -1 - len(self._text))
            if self._ngrams is not None:
                self._ngrams.note_last()
            if self._params.thinking_token_budget is not None:
                self._note_thought(len(self._text))
            if self._suffixes is not None:
                self._suffixes.append(self._text[-1])
                if self._ends_with_breaker(len(self._text)):
                    self._unbroken = len(self._text)
                most = self._params.dry_penalty_last_n
                if most is not None and self._suffixes.count > 2 * most + SPARE and not self._journal.is_recording:
                    self._index_suffixes()

    def addends(self, own: tuple[Ids, Floats] | None = None) -> tuple[Ids, Floats]:
        """Returns the list of addends: ids, each once and at least one, and what is added to their logits.

        Args:
            own: those that do not depend on the text, as of `addend_of`; None: `own`.
        """
        own_ids, own_addends = self.own if own is None else own
        found = self._penalties()
        found |= dict.fromkeys(self._forbidden(), MASKED)
        if (forced := self._forced()) is not None:
            found[forced] = FORCED
        if not found:
            return (own_ids, own_addends) if len(own_ids) else NOTHING
        ids = numpy.fromiter(found, numpy.int64, len(found))
        addends = numpy.fromiter(found.values(), numpy.float64, len(found))
        if len(own_ids):
            place = own_ids.searchsorted(ids)
            is_own = own_ids.take(place, mode="clip") == ids
            all_addends = numpy.concatenate((own_addends, addends[~is_own]))
            all_addends[place[is_own]] += addends[is_own]
            ids, addends = numpy.concatenate((own_ids, ids[~is_own])), all_addends
            numpy.maximum(addends, -LARGEST, out=addends, where=addends != MASKED)
        return ids, addends.astype(numpy.float32)

    @contextmanager
    def after(self, drafts: Iterable[int]) -> Iterator[None]:
        """Lets drafts belong to the text for as long as the context lasts."""
        length, unbroken, thought = len(self._text), self._unbroken, self._thought
        mark = None if self._suffixes is None else self._suffixes.mark()
        self._journal.record()
        try:
            self.extend(drafts)
            yield
        finally:
            self._journal.take_back()
            if self._suffixes is not None and mark is not None:
                self._suffixes.take_back(mark)
            del self._text[length:]
            self._unbroken = unbroken
            self._thought = thought

    def _penalties(self) -> dict[int, float]:
        """Returns what is added to logits of ids that would go on with a repetition."""
        if self._suffixes is None:
            return {}
        params, first = self._params, len(self._text) - self._suffixes.count
        start = 0 if params.dry_penalty_last_n is None else max(0, len(self._text) - params.dry_penalty_last_n - first)
        longest = len(self._text) - self._unbroken
        found = self._suffixes.continuations(longest, params.dry_allowed_length, start)
        penalties = {length: -penalty_of(params, length) for length in set(found.values())}
        return {
            token: penalties[length] for token, length in found.items() if token >= 0 and token not in self._unpenalized
        }

    def _forbidden(self) -> set[int]:
        """Returns the ids that would repeat an n-gram, or end a bad word."""
        forbidden = set(self._ngrams.following()) - self._spared if self._ngrams is not None else set()
        if self._words and self._text:
            for beginning, last in self._words.get(self._text[-1], ()):
                if self._has_before(len(self._text), beginning):
                    forbidden.add(last)
        return {token for token in forbidden if token >= 0}

    def _forced(self) -> int | None:
        """Returns the next id of what closes a thought, if one has as many tokens as it may."""
        budget, end = self._params.thinking_token_budget, len(self._text)
        if budget is None or self._thought is None or end - self._thought < budget:
            return None
        closing = tuple(self._params.thinking_end_message_ids or self._params.thinking_end_ids)
        longest = min(end - self._thought, len(closing) - 1)
        there = next(length for length in range(longest, -1, -1) if self._has_before(end, closing[:length]))
        return closing[there]

    def _note_thought(self, end: int) -> bool:
        """Notes that a thought ends or begins at a place, and tells whether it does."""
        closes = self._has_before(end, self._params.thinking_end_ids)
        if closes or self._has_before(end, self._params.thinking_start_ids):
            self._thought = None if closes else end
            return True
        return False

    def _ends_with_breaker(self, end: int) -> bool:
        breakers = self._breakers.get(self._text[end - 1], ())
        return any(self._has_before(end, breaker) for breaker, _ in breakers)

    def _has_before(self, end: int, tokens: Sequence[int]) -> bool:
        """Tells whether these are the tokens of the text before a place."""
        return len(tokens) <= end and tuple(self._text[end - len(tokens) : end]) == tokens

    def _index_suffixes(self) -> None:
        """Indexes the tokens that `dry_penalty_last_n` reaches."""
        length = self._params.dry_penalty_last_n
        reached = self._text if length is None else self._text[-length:]
        self._suffixes = SuffixIndex(longest_match(self._params), reached, self._journal)


def penalty_of(params: SamplingParams, length: int) -> float:
    """Returns what DRY subtracts for a match of so many tokens, at least `dry_allowed_length`: a float32 in any case.

    Example:
        >>> penalty_of(SamplingParams(dry_multiplier=0.5, dry_base=2.0), 4)
        2.0
    """
    beyond = min(length, longest_match(params)) - params.dry_allowed_length
    return min(params.dry_multiplier * params.dry_base**beyond, LARGEST)


def longest_match(params: SamplingParams) -> int:
    """Returns the length of a match beyond which DRY's penalty does not grow: at the largest float32."""
    if params.dry_base == 1:
        return params.dry_allowed_length
    growing = math.log(LARGEST / params.dry_multiplier) / math.log(params.dry_base)
    return params.dry_allowed_length + max(0, math.ceil(growing))
