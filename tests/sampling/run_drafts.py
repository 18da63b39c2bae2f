"""Random texts with drafts beside the same texts without: `verify_drafts` under the rule match changes no token.

    python tests/sampling/run_drafts.py --texts 100000
    python -m hostcann run python tests/sampling/run_drafts.py --device npu --texts 2000

Each batch has 1 to 64 requests of all kinds of parameters, with a grammar or without, one drafter (what would be right,
mostly right, n-grams, a model, nonsense, ids that are none) and 0 to 8 drafts that follow one another, in chains or in
trees. Exit status 1 where a token differs.
"""

from __future__ import annotations

import random
import sys

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from drafting import DRAFTERS, ToyModel, best_of, decoded, decoded_with_drafts, random_params
from many_batches import Outcome, main_of

from ascend_sample.sampling import Sampler

VOCAB_SIZES = (16, 40, 257, 1500)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_ROWS = 64
MOST_DRAFTS = 8
TOKENS = 8  # of a text


def try_batch(number: int, device: str) -> Outcome:
    """Decodes one batch with drafts and without."""
    rng = random.Random(number)
    size = rng.choice((1, 2, rng.randrange(1, MOST_ROWS + 1), MOST_ROWS))
    model = ToyModel(rng.choice(VOCAB_SIZES), rng.choice(DTYPES), rng.random() < 0.3)
    name, drafter = rng.choice([*DRAFTERS.items(), ("model", best_of(model))])
    params = [random_params(rng, model.vocab_size) for _ in range(size)]
    prompts = [[rng.randrange(16) for _ in range(rng.randrange(1, 9))] for _ in range(size)]
    sampler, most, with_trees = (
        Sampler(keep_ties=rng.random() < 0.1),
        rng.randrange(MOST_DRAFTS + 1),
        rng.random() < 0.5,
    )
    plain = decoded(model, params, prompts, TOKENS, sampler, device)
    texts, accepted = decoded_with_drafts(
        model, params, prompts, plain, drafter, most, rng, sampler, device, with_trees=with_trees
    )
    wrong = [
        f"batch {number}, request {request}, {name}, {most} {'in trees' if with_trees else 'in chains'}: "
        f"{text[:TOKENS]}, expected {whole}: {params[request]}"
        for request, (text, whole) in enumerate(zip(texts, plain, strict=True))
        if text[:TOKENS] != whole
    ]
    return Outcome(size, accepted, wrong)


def told(found: Outcome) -> str:
    return f", in which {found.noted} drafts were accepted: {len(found.wrong)} differ"


if __name__ == "__main__":
    sys.exit(main_of(try_batch, "Random texts with drafts beside those without.", "text", 100_000, told))
