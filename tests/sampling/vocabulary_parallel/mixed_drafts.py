"""Random drafts of every kind of row, verified whole and by ranks that each have a part."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from mixed_rows import Case, batch_of, random_case
from shard_ranks import Counted, on_threads, part_of, shards_of
from torch import Tensor

from ascend_sample.sampling import KeptSets, Sampler, VerifiedDrafts, verify_drafts
from ascend_sample.sampling.step.logprobs import Logprobs
from ascend_sample.sampling.vocabulary_parallel import Exchange

RULES = (None, None, "standard", "block")
"""Of the passes of a process: two under match, of chains and of trees."""
FOREIGN = (-1, -(2**62), 2**40)


class DraftCase(NamedTuple):
    """A pass of drafts: the case has the logits and the bitmask of all places, and as many requests as counts.

    ``probabilities`` are of the whole vocabulary, or of ``candidates``.
    """

    case: Case
    counts: list[int]
    parents: list[int] | None
    drafts: Tensor
    rule: Any = "match"
    probabilities: Tensor | None = None
    candidates: Tensor | None = None

    @property
    def ends(self) -> set[int]:
        """The places behind the drafts of each request."""
        return {sum(self.counts[: request + 1]) + request for request in range(len(self.counts))}


def random_drafts(number: int, size: int, places: int = 24, *, is_tree: bool = False) -> DraftCase:
    """Drafts of which some are right, some are nonsense, and some no ids."""
    rng, case = random.Random(number), random_case(number, size, places)
    counts = []
    while sum(counts) + len(counts) < places:
        counts.append(min(rng.randrange(5), places - sum(counts) - len(counts) - 1))
    requests = len(counts)
    case = case._replace(params=case.params[:requests], prompts=case.prompts[:requests])
    if number % 3 == 0:  # of a third of the passes most requests ask what is kept
        case = case._replace(
            params=[replace(one, return_sampling_mask=row % 4 > 0) for row, one in enumerate(case.params)]
        )
    parents = None
    if is_tree:
        numbers = [place for count in counts for place in range(count + 1)]
        parents = [rng.randrange(place) if place else -1 for place in numbers]
    ids = [rng.randrange(case.vocab_size) for _ in range(sum(counts))]
    ids = [rng.choice((*FOREIGN, case.vocab_size)) if rng.random() < 0.1 else token for token in ids]
    found = DraftCase(case, counts, parents, torch.tensor(ids, dtype=torch.int64))
    for _ in range(rng.randrange(4)):  # what is drawn where the drafts stop is proposed there
        found = found._replace(drafts=continued(found, whole(found, steps=1)[0]))
    return found


def drawn_drafts(number: int, size: int, rule: str, places: int = 24) -> DraftCase:
    """Drafts that were drawn from known distributions, dense or listed, or from none."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    drafts = random_drafts(number, size, places)
    case = drafts.case
    vocab_size, of_draft = case.vocab_size, [place for place in range(places) if place not in drafts.ends]
    kind = rng.choice(("dense", "near", "listed", "certain"))
    drafts = drafts._replace(rule=rule)
    if kind == "certain" or not of_draft:
        return drafts
    noise = torch.randn(len(of_draft), vocab_size, generator=generator)
    near = case.logits[of_draft].float().nan_to_num(-9.0, 9.0, -9.0).clamp(-9, 9)
    q = (noise + near if kind == "near" else 2 * noise).softmax(1)
    ids = torch.multinomial(q, 1, generator=generator)[:, 0]
    ids[::7] = drafts.drafts[::7]
    if kind != "listed":
        return drafts._replace(drafts=ids, probabilities=q)
    best = q.topk(min(5, vocab_size), 1)
    listed = best.indices.clone()
    listed[::4, -1] = vocab_size + 7  # which does not count
    among_them = best.values / best.values.sum(1, keepdim=True)
    return drafts._replace(drafts=listed[:, 0], probabilities=among_them, candidates=listed)


def continued(drafts: DraftCase, verified: VerifiedDrafts) -> Tensor:
    """The drafts, of which the first that a request does not keep is what it got instead."""
    ids, start = drafts.drafts.clone(), 0
    for request, count in enumerate(drafts.counts):
        accepted = int(verified.accepted[request])
        token = verified.token_ids[request, accepted]
        place = accepted if verified.path is None else int(verified.path[request, accepted])
        parents = range(-1, count)
        if drafts.parents is not None:
            parents = drafts.parents[start + request : start + request + count + 1]
        following = [child for child in range(1, count + 1) if parents[child] == place]
        if following:
            ids[start + following[-1] - 1] = token
        start += count
    return ids


def steps_of(
    drafts: DraftCase, logits: Tensor, q: Tensor | None, sampler: Sampler, steps: int, device: str
) -> list[VerifiedDrafts]:
    """Verifies the same drafts again and again, each time after what they have given."""
    batch, found = batch_of(drafts.case, device), []
    for _ in range(steps):
        verified = verify_drafts(
            logits.to(device),
            drafts.drafts.to(device),
            batch,
            counts=drafts.counts,
            parents=drafts.parents,
            sampler=sampler,
            bitmask=drafts.case.bitmask,
            rule=drafts.rule,
            draft_probabilities=None if q is None else q.to(device),
            draft_candidates=None if drafts.candidates is None else drafts.candidates.to(device),
        )
        verified.append_to(batch)
        found.append(on_cpu(verified))
    return found


def on_cpu(verified: VerifiedDrafts) -> VerifiedDrafts:
    """The same, where a test can look at it."""
    logprobs = verified.logprobs
    if logprobs is not None:
        logprobs = Logprobs(logprobs.rows, *(tensor.cpu() for tensor in logprobs[1:]))
    tensors = (verified.token_ids.cpu(), verified.accepted.cpu(), verified.status.cpu())
    kept = None if verified.kept is None else KeptSets(*(tensor.cpu() for tensor in verified.kept))
    return VerifiedDrafts(*tensors, logprobs, None if verified.path is None else verified.path.cpu(), kept)


def whole(drafts: DraftCase, steps: int = 2, device: str = "cpu") -> list[VerifiedDrafts]:
    sampler = Sampler(**drafts.case.options)  # type: ignore[arg-type]
    return steps_of(drafts, drafts.case.logits, drafts.probabilities, sampler, steps, device)


def on_rank(
    drafts: DraftCase, exchange: Exchange, steps: int = 2, device: str = "cpu"
) -> tuple[list[VerifiedDrafts], list[int]]:
    """What a rank finds, and the bytes of each message that it sends."""
    case, counted = drafts.case, Counted(exchange)
    shard = shards_of(case.widths, case.vocab_size, counted)
    sampler = Sampler(**case.options, shard=shard)  # type: ignore[arg-type]
    q = drafts.probabilities
    own = part_of(q, shard) if q is not None and drafts.candidates is None else q
    return steps_of(drafts, part_of(case.logits, shard), own, sampler, steps, device), counted.sent


def is_same(drafts: DraftCase, found: VerifiedDrafts, wanted: VerifiedDrafts) -> bool:
    """Whether tokens, statuses, paths, kept sets and the logprobs of reached places are the same, bit for bit."""
    if (found.kept is None) != (wanted.kept is None):
        return False
    rows = [] if wanted.logprobs is None else wanted.logprobs.rows
    if rows != ([] if found.logprobs is None else found.logprobs.rows):
        return False
    reached, start = set(), 0
    for request, count in enumerate(drafts.counts):
        accepted = int(wanted.accepted[request])
        way = range(accepted + 1) if wanted.path is None else wanted.path[request, : accepted + 1].tolist()
        reached |= {start + place for place in way}
        start += count + 1
    there = [index for index, row in enumerate(rows) if row in reached]
    one, other = (
        [*each[:3], each.path, *(each.kept or ()), *(tensor[there] for tensor in (each.logprobs or ())[1:])]
        for each in (found, wanted)
    )
    return all(
        mine is its is None or torch.equal(mine.view(torch.uint8), its.view(torch.uint8))
        for mine, its in zip(one, other, strict=True)
    )


def split(drafts: DraftCase, steps: int = 2, device: str = "cpu") -> list[list[VerifiedDrafts]]:
    size = len(drafts.case.widths)
    return on_threads(size, lambda exchange: on_rank(drafts, exchange, steps, device)[0])


def check_split(drafts: DraftCase, device: str = "cpu") -> int:
    """Raises unless all ranks find what whole logits give, twice; returns how many drafts stay at first."""
    expected = whole(drafts, device=device)
    for rank, found in enumerate(split(drafts, device=device)):
        for step, (one, wanted) in enumerate(zip(found, expected, strict=True)):
            assert is_same(drafts, one, wanted), f"rank {rank}, step {step}: {drafts}"
    return int(expected[0].accepted.sum())


def verify_on_rank(exchange: Exchange, passes: int, device: str = "cpu") -> str:
    """Verifies drafts in so many passes; returns what to print, or ends with an error where something differs."""
    for number in range(passes):
        rule = RULES[number % len(RULES)]
        if rule is None:
            drafts = random_drafts(61_000 + number, exchange.size, is_tree=number % 2 == 1)
        else:
            drafts = drawn_drafts(61_000 + number, exchange.size, rule)
        found, _ = on_rank(drafts, exchange, device=device)
        for one, wanted in zip(found, whole(drafts, device=device), strict=True):
            if not is_same(drafts, one, wanted):
                raise SystemExit(f"drafts {number}, rank {exchange.rank}: {drafts}")
    return f"rank {exchange.rank}: {passes} passes of drafts are the same"
