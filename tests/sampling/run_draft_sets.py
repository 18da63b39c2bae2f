"""Kept sets of verified drafts, as a trainer uses them: random texts under all rules, in chains and in trees.

    python tests/sampling/run_draft_sets.py --tokens 100000
    python -m hostcann run python tests/sampling/run_draft_sets.py --device npu --tokens 10000

Of each token of a request that asks, the set must be the float64 reference's, and the log-probability that it has
there what a trainer makes of the processed logits and the ids: a softmax in float64. Exit status 1 where one is wrong.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
import numpy as np
from drafting import Drafts, Text, ToyModel, best_of, new_batch, random_params, tree
from kept_oracle import Race, judge
from many_batches import Outcome, main_of
from torch import Tensor

from ascend_sample.sampling import KeptSets, Sampler, SamplingBatch, SamplingParams, VerifiedDrafts, verify_drafts
from ascend_sample.sampling.requests.params import DEFAULTS

RULES: tuple[Any, ...] = ("match", "match", "standard", "block")
MOST_ROWS = 24
MOST_DRAFTS = 5
PASSES = 4
FAR = 1e-6
"""So far from a trainer's may a token's log-probability be."""
UNFORCED = {name: DEFAULTS[name] for name in DEFAULTS if name.startswith("thinking_")}
"""What forces a token does so by 1e9: beside it the others are equal on a device, and top-k keeps any of them."""


class Pass(NamedTuple):
    """What a verification is asked, and of each place the request and the tokens before it."""

    arguments: dict[str, Any]
    proposed: list[Drafts]
    logits: Tensor
    masks: Tensor


def new_pass(model: ToyModel, texts: list[Text], rule: str, with_trees: bool, rng: random.Random) -> Pass:
    """Proposes drafts for texts, and reads them."""
    drafter, proposed, proposals = best_of(model), [], []
    for request, text in enumerate(texts):
        count = rng.randrange(MOST_DRAFTS + 1)
        if with_trees:
            proposed.append(tree(drafter, rng, text, [], count, model.vocab_size))
            continue
        drafts: Text = [] if rule != "match" else drafter(rng, text, [], count, model.vocab_size)
        while len(drafts) < count:
            law = (model.read(request, text + drafts)[0].double() * 0.8).softmax(0)
            proposals.append(law.float())
            drafts.append(rng.choices(range(model.vocab_size), law.tolist())[0])
        proposed.append(Drafts(drafts, [*range(-1, len(drafts))]))
    read = [
        model.read(request, texts[request] + drafts.way(place))
        for request, drafts in enumerate(proposed)
        for place in range(len(drafts.parents))
    ]
    logits, masks = (torch.stack(each) for each in zip(*read, strict=True))
    arguments: dict[str, Any] = {"counts": [len(drafts.tokens) for drafts in proposed], "rule": rule}
    arguments["draft_ids"] = torch.tensor([id_ for drafts in proposed for id_ in drafts.tokens], dtype=torch.int64)
    if with_trees:
        arguments["parents"] = [parent for drafts in proposed for parent in drafts.parents]
    if proposals and rng.random() < 0.7:
        arguments["draft_probabilities"] = torch.stack(proposals)
    return Pass(arguments, proposed, logits, masks)


class Given(NamedTuple):
    """A token that a request got, the row of the logits that it was drawn from, and the output before it."""

    row: int
    request: int
    token: int
    status: int
    outputs: Text


def tokens_of(verified: VerifiedDrafts, proposed: list[Drafts], outputs: list[Text]) -> list[Given]:
    """Lists the tokens of a pass, request by request."""
    tokens, first = [], 0
    for request, drafts in enumerate(proposed):
        count = int(verified.accepted[request]) + 1
        way = [*range(count)] if verified.path is None else verified.path[request, :count].tolist()
        ids, statuses = (each[request, :count].tolist() for each in (verified.token_ids, verified.status))
        for column, (place, token, status) in enumerate(zip(way, ids, statuses, strict=True)):
            tokens.append(Given(first + place, request, token, status, outputs[request] + ids[:column]))
        first += len(drafts.parents)
    return tokens


class Requests(NamedTuple):
    """What is the same in all passes of a batch."""

    params: list[SamplingParams]
    prompts: list[Text]
    keep_ties: bool
    device: str

    def processed(self, logits: Tensor, tokens: list[Given]) -> Tensor:
        """What a trainer has of each token: the logits of its row after masks, biases and penalties."""
        rows, batch = logits[[one.row for one in tokens]].to(self.device), SamplingBatch(logits.shape[1], self.device)
        texts = [self.prompts[one.request] for one in tokens], [one.outputs for one in tokens]
        batch.extend([self.params[one.request] for one in tokens], texts[0], output_ids=texts[1])
        edited = batch.edited(rows)
        return (rows if edited is None else edited).cpu()

    def check(self, kept: KeptSets, logits: Tensor, tokens: list[Given]) -> tuple[int, list[str]]:
        """Of how many tokens rounding chose the set, and what is wrong with others."""
        near, wrong = 0, []
        for one, processed in zip(tokens, self.processed(logits, tokens), strict=True):
            params, prompt = self.params[one.request], self.prompts[one.request]
            texts = (len(prompt) + len(one.outputs), tuple(prompt), tuple(one.outputs))
            race = Race(logits[one.row].double().numpy(), params, *texts, self.keep_ties)
            judged = judge(kept, one.row, race, one.token, one.status)
            found = judged.wrong or far_from_a_trainers(kept, one, processed, params.temperature)
            near += judged.is_near
            wrong += [] if found is None else [f"request {one.request}, row {one.row}: {found}: {params}"]
        reached = {one.row for one in tokens}
        empty = [row for row in range(len(logits)) if row not in reached]
        return near, wrong + [
            f"row {row} gave no token, and keeps {kept.counts[row]}" for row in empty if kept.counts[row]
        ]


def far_from_a_trainers(kept: KeptSets, one: Given, processed: Tensor, temperature: float) -> str | None:
    """What is wrong with the log-probability of a token, beside a softmax in float64 over what is kept."""
    ids, logprobs = kept.of_row(one.row)
    if not len(ids):
        return None
    divisor = float(np.float32(temperature)) or 1.0
    expected = (processed[ids].double() / divisor).log_softmax(0)[ids == one.token]
    far = float((logprobs[ids == one.token] - expected).abs())
    return None if far <= FAR else f"the log-probability of {one.token} is {far} from a trainer's {float(expected)}"


def try_batch(number: int, device: str) -> Outcome:
    """Decodes some passes of one batch; notes the tokens of which rounding chose the set."""
    rng = random.Random(number)
    model = ToyModel(rng.choice((40, 257, 1500)), rng.choice((torch.float32, torch.bfloat16)), rng.random() < 0.3)
    rule = rng.choice(RULES)
    with_trees, keep_ties = rule == "match" and rng.random() < 0.5, rng.random() < 0.1
    drawn = [random_params(rng, model.vocab_size) for _ in range(rng.randrange(1, MOST_ROWS + 1))]
    params = [replace(one, return_sampling_mask=rng.random() < 0.9, **UNFORCED) for one in drawn]
    prompts = [[rng.randrange(16) for _ in range(rng.randrange(1, 6))] for _ in params]
    requests = Requests(params, prompts, keep_ties, device)
    outputs: list[Text] = [[] for _ in params]
    batch = new_batch(params, prompts, model.vocab_size, device)
    sampler = Sampler(keep_ties=keep_ties, max_kept=rng.choice((None, model.vocab_size)))
    tried, near = 0, 0
    wrong: list[str] = []
    for _ in range(PASSES):
        texts = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
        given = new_pass(model, texts, rule, with_trees, rng)
        sent = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in given.arguments.items()}
        masks = given.masks.to(device) if model.with_grammar else None
        verified = verify_drafts(given.logits.to(device), batch=batch, sampler=sampler, bitmask=masks, **sent)
        tokens = tokens_of(verified, given.proposed, outputs)
        if any(one.return_sampling_mask for one in params):
            logits = given.logits
            if model.with_grammar:
                logits = logits.masked_fill(~allowed(given.masks, model.vocab_size), -torch.inf)
            kept = KeptSets(*(each.cpu() for each in verified.kept))
            found = requests.check(kept, logits, tokens)
            near, wrong = near + found[0], wrong + [f"batch {number}, {rule}: {one}" for one in found[1]]
            tried += sum(params[one.request].return_sampling_mask for one in tokens)
        for one in tokens:
            outputs[one.request] = [*one.outputs, one.token]
        verified.append_to(batch)
    return Outcome(tried, near, wrong)


def allowed(words: Tensor, vocab_size: int) -> Tensor:
    """The ids of masks, bool [rows, vocab_size]."""
    return torch.from_numpy(np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")[:, :vocab_size] > 0)


def told(found: Outcome) -> str:
    return f", of which rounding chose {found.noted} sets: {len(found.wrong)} are wrong"


if __name__ == "__main__":
    sys.exit(main_of(try_batch, "Kept sets of random texts with drafts beside a trainer's.", "token", 100_000, told))
