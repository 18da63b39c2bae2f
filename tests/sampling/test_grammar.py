"""llguidance masks a real grammar over a real tokenizer; tests/integrations/xgrammar_masks.py has those of xgrammar."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer
from llguidance.torch import fill_next_token_bitmask
from torch import Tensor

from tests.support.grammar_texts import END, ROWS, SCHEMA, check_texts, make_tokenizer


class Matcher:
    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(SCHEMA))

    def fill(self, bitmask: Tensor, place: int) -> None:
        fill_next_token_bitmask(self._matcher, bitmask, place)

    def accept(self, token: int) -> bool:
        return self._matcher.consume_token(token)

    def is_over(self) -> bool:
        return self._matcher.is_stopped()


def test_texts_are_of_the_grammar(device: str) -> None:
    tokenizer = make_tokenizer()
    ours = LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id(END))
    check_texts(tokenizer, [Matcher(ours) for _ in range(ROWS)], device)
