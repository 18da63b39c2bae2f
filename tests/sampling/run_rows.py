"""Random rows of `Sampler` beside the float64 reference: the token is the one that wins the reference's races.

    python tests/sampling/run_rows.py --rows 1000000
    python -m hostcann run python tests/sampling/run_rows.py --device npu --rows 20000

Each batch has a vocabulary, a dtype and requests of every kind, with edits and a bitmask. Another token counts as wrong
unless its race ends within 2e-6 of the winner's, or the end of a nucleus is that near to what rounding chooses: those
are counted. So it is with the kept sets of the rows that ask for them, whose log-probabilities have to be float64's,
and with what rows remember of their draws. Exit status 1 where a token, a set or a state is wrong.
"""

from __future__ import annotations

import dataclasses
import random
import sys

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import numpy as np  # isort: skip
import torch
from kept_oracle import Race, judge
from many_batches import Outcome, main_of
from oracle import expected
from row_edits import packed
from state_rows import acceptable_tokens, as_drawn, set_states, states_after, with_state, wrong_state
from torch import Tensor

from ascend_sample.sampling import KeptSets, Sampler, SamplingBatch, SamplingParams

ROWS = 64  # of a batch
VOCAB_SIZES = (2, 7, 64, 255, 256, 257, 500, 1500, 3000)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NEAR = 2e-6
NEAR_STATE = 2e-5
"""Of races of adaptive-p: a weight changes by up to 33 times what rounding does to the probability and the average."""


def random_request(rng: random.Random, vocab_size: int) -> SamplingParams:
    """Any filters; one kind of edit in half of the rows."""

    def ids(most: int) -> list[int]:
        return rng.sample(range(vocab_size), rng.randrange(1, min(most, vocab_size - 1) + 1))  # one is left

    params = SamplingParams(
        temperature=rng.choice((0.0, 0.2, 0.7, 1.0, 1.0, 1.0, 1.7)),
        top_k=rng.choice((None, None, None, 1, 5, 50, 200, 1024, 1100)),
        top_p=rng.choice((1.0, 1.0, 0.1, 0.5, 0.9, 0.999)),
        min_p=rng.choice((0.0, 0.0, 0.0, 0.05, 0.3)),
        seed=rng.randrange(2**64),
    )
    changes = (
        {"repetition_penalty": rng.choice((0.8, 1.05, 1.3))},
        {"presence_penalty": rng.uniform(-2, 2), "frequency_penalty": rng.uniform(-1, 1)},
        {"logit_bias": {token_id: rng.uniform(-9, 9) for token_id in ids(20)}},
        {"suppress_token_ids": ids(vocab_size)},
        {"allowed_token_ids": ids(vocab_size)},
        {"stop_token_ids": ids(5), "min_tokens": rng.randrange(9)},
        {"no_repeat_ngram_size": rng.randrange(1, 3), "no_repeat_ngram_window": rng.choice((None, 2, 9))},
        {"bad_words": {(rng.randrange(vocab_size), rng.randrange(vocab_size)) for _ in range(20)}},
        {
            "dry_multiplier": rng.choice((0.8, 3.0)),
            "dry_allowed_length": rng.randrange(1, 3),
            "dry_penalty_last_n": rng.choice((None, 9)),
            "dry_sequence_breakers": rng.sample(range(vocab_size), rng.randrange(2)),
            "logit_bias": {token_id: rng.uniform(-9, 9) for token_id in ids(20)},
        },
    )
    params = dataclasses.replace(params, **random_range(rng)) if rng.random() < 0.3 else params
    return dataclasses.replace(params, **rng.choice(changes)) if rng.random() < 0.5 else params


def random_range(rng: random.Random) -> dict[str, float]:
    """Some of the filters that keep a range of values; mostly one."""
    filters: tuple[dict[str, float], ...] = (
        {"typical_p": rng.choice((0.1, 0.5, 0.9, 0.999))},
        {"epsilon_cutoff": rng.choice((3e-4, 0.01, 0.3))},
        {"eta_cutoff": rng.choice((3e-4, 0.01, 0.3))},
        {"top_a": rng.choice((0.05, 0.3, 1.0))},
        {"top_n_sigma": rng.choice((0.5, 1.0, 2.0))},
        {"xtc_probability": rng.choice((0.5, 1.0)), "xtc_threshold": rng.choice((0.001, 0.05, 0.2))},
    )
    chosen = [one for one in filters if rng.random() < 0.2] or [rng.choice(filters)]
    return {name: number for one in chosen for name, number in one.items()}


def random_logits(
    generator: torch.Generator, rng: random.Random, shape: tuple[int, int], odd: tuple[float, ...] = (torch.nan,)
) -> Tensor:
    """float32 rows of any spread; here and there -inf, one of the odd values, and what is equal."""
    logits = torch.randn(shape, generator=generator) * rng.choice((0.1, 1.0, 3.0, 10.0))
    if rng.random() < 0.3:
        logits = logits.round()
    if rng.random() < 0.3:
        strange = torch.rand(shape, generator=generator)
        logits[strange < 0.1] = -torch.inf
        logits[strange > 0.99] = rng.choice(odd)
    return logits


def try_batch(number: int, device: str) -> Outcome:
    """Samples one batch, and looks at each of its rows."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    vocab_size, dtype, keep_ties = rng.choice(VOCAB_SIZES), rng.choice(DTYPES), rng.random() < 0.1
    logits = random_logits(generator, rng, (ROWS, vocab_size)).to(dtype)
    allowed = torch.rand(ROWS, vocab_size, generator=generator) < rng.choice((0.02, 0.5, 0.98))
    masked = set(rng.sample(range(ROWS), rng.choice((0, 0, ROWS // 2))))
    allowed[[row for row in range(ROWS) if row not in masked]] = True
    asking = random.Random(f"kept {number}")  # another one: rows stay what they are without kept sets
    params = [
        dataclasses.replace(random_request(rng, vocab_size), return_sampling_mask=asking.random() < 0.7)
        for _ in range(ROWS)
    ]
    remembering = random.Random(f"states {number}")
    params = [with_state(remembering, one) for one in params]
    prompts = [[rng.randrange(vocab_size) for _ in range(rng.randrange(30))] for _ in range(ROWS)]
    batch = SamplingBatch(vocab_size, device)
    batch.extend(params, prompts)
    states = set_states(remembering, batch)
    bitmask = packed(list(allowed), vocab_size).to(device) if masked else None
    output = Sampler(keep_ties=keep_ties)(logits.to(device), batch, advance=False, bitmask=bitmask)
    drawn, status = output.token_ids.tolist(), output.status.tolist()
    kept = None if output.kept is None else KeptSets(*(tensor.cpu() for tensor in output.kept))
    moved = states_after(output.states)
    rows = logits.float().where(allowed, -torch.inf).numpy().astype(np.float64)
    near, wrong = 0, []
    for row, token_id in enumerate(drawn):
        state = states[row]
        of_step = as_drawn(params[row], state)
        race = Race(rows[row], of_step, len(prompts[row]), tuple(prompts[row]), (), keep_ties)
        if state is not None:
            said = wrong_state(params[row], race, state, moved.get(row), token_id, status[row])
            if said is not None:
                wrong.append(f"batch {number}, row {row}: {said}: {params[row]}, {state}")
        if kept is not None:
            judged = judge(kept, row, race, token_id, status[row])
            near += judged.is_near
            if judged.wrong is not None:
                wrong.append(f"batch {number}, row {row}: {judged.wrong}: {params[row]}")
            if params[row].adaptive_target is not None and not status[row] and row in moved:
                if token_id not in acceptable_tokens(params[row], race, state, NEAR_STATE):
                    wrong.append(f"batch {number}, row {row}: {token_id} is not what adaptive-p draws: {params[row]}")
                continue
        if token_id == expected(*race, None).token_id:
            continue
        near += 1
        want = expected(*race, NEAR)
        if token_id not in want.acceptable:
            wrong.append(f"batch {number}, row {row}: {token_id}, expected {want.token_id}: {params[row]}")
    return Outcome(ROWS, near, wrong)


def told(found: Outcome) -> str:
    beyond = f"{len(found.wrong)} of them where neither a race nor the end of a set is that close"
    return f": {found.noted} tokens and kept sets are not float64's, {beyond}"


if __name__ == "__main__":
    sys.exit(main_of(try_batch, "Random rows of Sampler beside the float64 reference.", "row", 1_000_000, told))
