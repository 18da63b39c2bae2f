"""What a text repeats, found in a time that does not depend on its length: indexes that grow token by token.

Drafts are tokens that may be taken back: while a `Journal` records, indexes note in it what they change.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

Value = TypeVar("Value")
ABSENT: Final = object()
Tokens = tuple[int, ...]
ROOT: Final = 0
"""The state of no tokens."""


class Journal:
    """What was changed in dicts and lists since somebody began to record, so that it can be taken back.

    Attributes:
        put: sets an entry of a dict, or one of a list that is there.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[Any, Any, Any]] = []
        self.put: Callable[[Any, Any, Any], None] = operator.setitem

    @property
    def is_recording(self) -> bool:
        return self.put is not operator.setitem

    def record(self) -> None:
        """Begins to record."""
        self.put = self._put_and_note

    def take_back(self) -> None:
        """Lets everything be what it was when recording began, and ends that."""
        while self._changes:
            container, key, before = self._changes.pop()
            if before is ABSENT:
                del container[key]
            else:
                container[key] = before
        self.put = operator.setitem

    def _put_and_note(self, container: Any, key: Any, value: Any) -> None:
        before = container.get(key, ABSENT) if isinstance(container, dict) else container[key]
        self._changes.append((container, key, before))
        container[key] = value


class NgramIndex:
    """Which tokens have followed the last n - 1 ones of a text.

    Args:
        size: n, from 1.
        window: how many of the last tokens an n-gram must lie in; None: all.
        text: the tokens so far. The caller appends to it, and then calls `note_last`.
        journal: records drafts.

    Example:
        >>> text = [1, 2, 3, 1]
        >>> index = NgramIndex(2, None, text, Journal())
        >>> list(index.following())
        [2]
    """

    def __init__(self, size: int, window: int | None, text: Sequence[int], journal: Journal) -> None:
        self._size, self._window, self._text, self._journal = size, window, text, journal
        self._starts: dict[tuple[int, ...], dict[int, int]] = {}  # where each n-gram begins, for the last time
        for start in range(self._window_start(), len(text) - size + 1):
            self._note(start)

    def note_last(self) -> None:
        """Notes the n-gram that the last token ends, and forgets the one that leaves the window with it."""
        if len(self._text) >= self._size:
            self._note(len(self._text) - self._size)
        left = self._window_start() - 1
        if left >= 0 and not self._journal.is_recording:  # a draft may be taken back, and the window with it
            key, token = self._ngram(left)
            starts = self._starts.get(key)
            if starts is not None and starts.get(token) == left:
                del starts[token]
                if not starts:
                    del self._starts[key]

    def following(self) -> Iterable[int]:
        """Yields the tokens that would end an n-gram that the window has."""
        key = tuple(self._text[max(0, len(self._text) - self._size + 1) :])
        first = self._window_start()
        return (token for token, start in self._starts.get(key, {}).items() if start >= first)

    def _window_start(self) -> int:
        return 0 if self._window is None else max(0, len(self._text) - self._window)

    def _ngram(self, start: int) -> tuple[tuple[int, ...], int]:
        last = start + self._size - 1
        return tuple(self._text[start:last]), self._text[last]

    def _note(self, start: int) -> None:
        key, token = self._ngram(start)
        if key not in self._starts:
            self._journal.put(self._starts, key, {})
        self._journal.put(self._starts[key], token, start)


class SuffixIndex:
    """Where else in a text its end occurs: a suffix automaton, which knows of each substring what follows it.

    A state is a class of substrings that end at the same places; its link leads to the longest suffix that ends at more
    of them. So the states on the way from the whole text to `ROOT` have all of its suffixes, and what their edges are
    labelled with has followed these suffixes. A token is taken in in constant time, on average over the text, but for
    the states of suffixes of up to ``most`` tokens, where its place is noted at once; those of ``text``, at its end.

    Args:
        most: no longer matches are told apart.
        text: the tokens so far.
        journal: records drafts.

    Example:
        >>> index = SuffixIndex(9, [1, 2, 3, 4, 2, 3], Journal())
        >>> index.continuations(longest=9, least=1, start=0)
        {4: 2}

    Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.
    """

    def __init__(self, most: int, text: Iterable[int], journal: Journal) -> None:
        self._most, self._journal = most, journal
        self.count = 0
        self._length, self._link, self._last_end = [0], [-1], [-1]
        self._next: list[dict[int, int]] = [{}]
        self._whole = ROOT  # the state of the text
        for token in text:
            self._grow(token)
        last_end, link = self._last_end, self._link  # where a substring has ended, its suffixes have
        for state in sorted(range(1, len(link)), key=self._length.__getitem__, reverse=True):
            last_end[link[state]] = max(last_end[link[state]], last_end[state])
        self._bounded = self._state_of(self._whole, most + 1)  # that of the last most + 1 tokens

    def append(self, token: int) -> None:
        """Takes in a token."""
        self._grow(token)
        link, last_end, put, place = self._link, self._last_end, self._journal.put, self.count - 1
        at = self._bounded = self._state_of(self._next[self._bounded][token], self._most + 1)
        while at > ROOT:
            put(last_end, at, place)
            at = link[at]

    def _grow(self, token: int) -> None:
        """Takes in a token, but for where the shorter ones of the suffixes that it ends have ended before."""
        length, link, edges, put = self._length, self._link, self._next, self._journal.put
        place = self.count
        self.count += 1
        state = self._new_state(self.count, {}, place, ROOT)
        at = self._whole
        while at >= ROOT and token not in edges[at]:
            put(edges[at], token, state)
            at = link[at]
        if at >= ROOT:
            other = edges[at][token]
            if length[other] > length[at] + 1:  # the shorter ones of its substrings end here too, and part from it
                clone = self._new_state(length[at] + 1, dict(edges[other]), self._last_end[other], link[other])
                put(link, other, clone)
                while at >= ROOT and edges[at].get(token) == other:
                    put(edges[at], token, clone)
                    at = link[at]
                other = clone
            link[state] = other
        self._whole = state

    def continuations(self, longest: int, least: int, start: int) -> dict[int, int]:
        """Returns the tokens that have followed the end of the text, and after how many equal tokens, at most.

        Args:
            longest: so many of the last tokens may match.
            least: so many have to; from 1.
            start: the first token of the text that may be matched.
        """
        longest = min(longest, self._most)
        at = self._state_of(self._bounded, longest)
        found: dict[int, int] = {}
        while at > ROOT and (matched := min(self._length[at], longest)) >= least:
            for token, state in self._next[at].items():
                within = min(matched, self._last_end[state] - start)
                if within >= least and within > found.get(token, 0):
                    found[token] = within
            at = self._link[at]
        return found

    def mark(self) -> tuple[int, ...]:
        """Returns what `take_back` goes back to."""
        return self.count, len(self._length), self._whole, self._bounded

    def take_back(self, mark: tuple[int, ...]) -> None:
        """Forgets the tokens since a mark, once the journal has taken its changes back."""
        self.count, states, self._whole, self._bounded = mark
        for of_states in (self._length, self._link, self._last_end, self._next):
            del of_states[states:]

    def _new_state(self, length: int, edges: dict[int, int], last_end: int, link: int) -> int:
        self._length.append(length)
        self._next.append(edges)
        self._last_end.append(last_end)
        self._link.append(link)
        return len(self._length) - 1

    def _state_of(self, state: int, length: int) -> int:
        """Returns the state of the suffix of so many tokens, given that of a longer one."""
        while state > ROOT and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state


def by_last(sequences: Iterable[tuple[Tokens, Value]]) -> dict[int, list[tuple[Tokens, Value]]]:
    """Returns sequences, and the value that belongs to each, by their last tokens."""
    found: dict[int, list[tuple[Tokens, Value]]] = defaultdict(list)
    for sequence, value in sequences:
        found[sequence[-1]].append((sequence, value))
    return dict(found)
