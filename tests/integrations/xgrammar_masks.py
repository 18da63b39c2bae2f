"""xgrammar's masks of a real grammar over a real tokenizer.

`nox -s integrations` runs this in vLLM's environment, which has xgrammar.
"""

from __future__ import annotations

import json

import xgrammar
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tests.support.grammar_texts import END, ROWS, SCHEMA, check_texts, make_tokenizer


class Matcher:
    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)

    def fill(self, bitmask: Tensor, place: int) -> None:
        self._matcher.fill_next_token_bitmask(bitmask, place)

    def accept(self, token: int) -> bool:
        return self._matcher.accept_token(token)

    def is_over(self) -> bool:
        return self._matcher.is_terminated()


def test_texts_are_of_the_grammar() -> None:
    tokenizer = make_tokenizer()
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    known = xgrammar.TokenizerInfo.from_huggingface(
        whole, vocab_size=tokenizer.get_vocab_size(), stop_token_ids=[tokenizer.token_to_id(END)]
    )
    compiled = xgrammar.GrammarCompiler(known).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    check_texts(tokenizer, [Matcher(compiled) for _ in range(ROWS)], "cpu")
