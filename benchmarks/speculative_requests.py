"""Speculation for requests that ask for more: penalties, logprobs, and both, beside plain decoding of the same.

A part of `python -m benchmarks.speculative`. One request is decoded as an engine does it: token by token with
`Sampler`, and with drafts, the draft model's best tokens, that `verify_drafts` judges by the rule match. The texts are
the same, as far as the models' logits are. Logprobs are of each token that a text gets, with the best few beside it.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final, NamedTuple

import torch
from rich.console import Console
from torch import Tensor
from tqdm import tqdm

from ascend_sample.decoding.model import StepModel
from ascend_sample.sampling import Logprobs, Sampler, SamplingBatch, SamplingParams, verify_drafts
from benchmarks.quiet import Watch
from benchmarks.report import format_ratio, format_seconds

GAMMA: Final = 7
PROMPT_TOKENS, NEW_TOKENS = 24, 96
REPEATS = 5
PENALTIES: Final = {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.05}
LOGPROBS: Final = {"logprobs": 5}
ASKED: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "penalties": PENALTIES,
    "logprobs": LOGPROBS,
    "penalties and logprobs": PENALTIES | LOGPROBS,
}


class Decoded(NamedTuple):
    """A text.

    Attributes:
        tokens: what was drawn.
        logprobs: of each token that; empty where none were asked for.
        accepted: how many drafts stayed.
        rounds: how many passes of the target there were behind the prompt.
    """

    tokens: list[int]
    logprobs: list[float]
    accepted: int
    rounds: int


def decode_plainly(target: StepModel, prompt: Tensor, params: SamplingParams) -> Decoded:
    """Token by token."""
    batch, sampler = new_batch(target, prompt, params)
    output = target.prefill(prompt)
    logits, cache = output.logits, output.cache
    tokens: list[int] = []
    logprobs: list[float] = []
    while True:
        drawn = sampler(logits, batch)
        tokens += drawn.token_ids.tolist()
        logprobs += values_of(drawn.logprobs, 1)
        if len(tokens) == NEW_TOKENS:
            return Decoded(tokens, logprobs, 0, NEW_TOKENS - 1)
        logits, cache, _ = target.decode(drawn.token_ids[:, None], cache)
        logits = logits[:, -1]


def decode_with_drafts(target: StepModel, draft: StepModel, prompt: Tensor, params: SamplingParams) -> Decoded:
    """With drafts that are judged where they are read; the last round drafts no more than there is room for."""
    batch, sampler = new_batch(target, prompt, params)
    output, of_draft = target.prefill(prompt), draft.prefill(prompt)
    cache, draft_cache, known = output.cache, of_draft.cache, prompt.shape[1]
    drawn = sampler(output.logits, batch)
    tokens, logprobs = drawn.token_ids.tolist(), values_of(drawn.logprobs, 1)
    accepted = rounds = 0
    while len(tokens) < NEW_TOKENS:
        length, count = prompt.shape[1] + len(tokens), min(GAMMA, NEW_TOKENS - len(tokens) - 1)
        drafts: list[int] = []
        unread = tokens[known - prompt.shape[1] :]
        while len(drafts) < count:
            logits, draft_cache, _ = draft.decode(torch.tensor([unread]), draft_cache)
            drafts.append(int(logits[0, -1].argmax()))
            unread = drafts[-1:]
        logits, cache, _ = target.decode(torch.tensor([tokens[-1:] + drafts]), cache)
        verified = verify_drafts(
            logits[0], torch.tensor(drafts, dtype=torch.int64), batch, counts=[count], sampler=sampler
        )
        verified.append_to(batch)
        stayed = int(verified.accepted)
        tokens += verified.token_ids[0, : stayed + 1].tolist()
        logprobs += values_of(verified.logprobs, stayed + 1)
        accepted, rounds = accepted + stayed, rounds + 1
        cache = target.rollback(cache, torch.tensor([length + stayed]))
        if count:
            known = min(length + stayed, length + count - 1)  # the draft has not read its last token
            draft_cache = draft.rollback(draft_cache, torch.tensor([known]))
    return Decoded(tokens, logprobs, accepted, rounds)


def new_batch(target: StepModel, prompt: Tensor, params: SamplingParams) -> tuple[SamplingBatch, Sampler]:
    """One request of a target, and what samples it."""
    size = target.prefill(prompt[:, :1]).logits.shape[1]
    batch = SamplingBatch(size)
    batch.add(params, prompt[0].tolist(), position=prompt.shape[1])
    return batch, Sampler()


def values_of(logprobs: Logprobs | None, count: int) -> list[float]:
    """The logprobs of the first tokens themselves."""
    return [] if logprobs is None else logprobs.values[:count, 0].tolist()


def measure(target: StepModel, draft: StepModel, texts: dict[str, Tensor]) -> dict[str, Any]:
    """Time plain decoding and speculation in turns, of all that is asked for; the record of each.

    Args:
        target: the model.
        draft: a cheaper one.
        texts: int64 [texts, tokens] by what they are.
    """
    records = []
    for name, known in texts.items():
        watch = Watch()
        runs: dict[tuple[str, bool], list[tuple[float, Decoded]]] = {}
        for number in tqdm(range(REPEATS), desc=f"what requests ask for, {name}", unit="text"):
            prompt = known[number % len(known)][None, :PROMPT_TOKENS]
            ways = [(asked, is_drafted) for asked in ASKED for is_drafted in (False, True)]
            for asked, is_drafted in ways[number % len(ways) :] + ways[: number % len(ways)]:
                params = SamplingParams(seed=number, **ASKED[asked])
                began = time.perf_counter()
                if is_drafted:
                    found = decode_with_drafts(target, draft, prompt, params)
                else:
                    found = decode_plainly(target, prompt, params)
                runs.setdefault((asked, is_drafted), []).append((time.perf_counter() - began, found))
        disturbed = watch.share_of_others()
        records += [
            describe(name, asked, runs[asked, False], runs[asked, True]) | {"disturbed": disturbed} for asked in ASKED
        ]
    return {"records": records}


def describe(
    texts: str, asked: str, plain: list[tuple[float, Decoded]], drafted: list[tuple[float, Decoded]]
) -> dict[str, Any]:
    """Medians: seconds of a text, tokens a round, the speed of drafting beside none, text by text."""
    return {
        "texts": texts,
        "asked": asked,
        "plain": statistics.median(seconds for seconds, _ in plain),
        "drafted": statistics.median(seconds for seconds, _ in drafted),
        "tokens_per_round": statistics.median(found.accepted / found.rounds + 1 for _, found in drafted),
        "speed": statistics.median(slow / fast for (slow, _), (fast, _) in zip(plain, drafted, strict=True)),
    }


def table(part: dict[str, Any]) -> list[str]:
    """In Markdown."""
    lines = [
        "What requests ask for (`python -m benchmarks.speculative --part requests`): the same network; one request at "
        f"temperature 1, token by token with `Sampler`, and with {GAMMA} drafts a round that `verify_drafts` judges by "
        f"the rule match; {NEW_TOKENS} tokens, medians of {REPEATS} texts, all ways in turns.",
        "",
        "| texts | asked for | tokens a round | a token, plain | with drafts | speed-up | others' share |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in part["records"]:
        times = " | ".join(format_seconds(record[kind] / NEW_TOKENS) for kind in ("plain", "drafted"))
        lines.append(
            f"| {record['texts']} | {record['asked']} | {record['tokens_per_round']:.2f} | {times} "
            f"| {format_ratio(record['speed'])}x | {record['disturbed'] or 0:.0%} |"
        )
    return lines


def show(part: dict[str, Any], console: Console) -> None:
    """Print the table."""
    for line in table(part):
        console.print(line)
