"""Verifying drafts on the CPU, beside a read of the rows that are reached and an engine's functions.

    python -m benchmarks.verify_drafts  # prints the table and the promises, writes build/performance/verify_drafts.json

64 requests with 4 drafts each, top-k 50, a vocabulary of 151,936, bfloat16. Every cell times its contestants in turns.
A row is reached when the drafts before it stay; the read beside which a cell is put is one of as many rows. All find
their logits in memory, as those lie there that a model has just written: each call takes the next of some copies. The
engine is vllm-ascend, as far as it verifies drafts in plain torch (benchmarks/rejection_peer.py). Its noise is made for
all requests at once, as for those without seeds: that is the cheaper of its ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ascend_sample.bench.timing import rotate
from ascend_sample.sampling import SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.drafts.arguments import VerificationRule
from benchmarks import distributions, rejection_peer
from benchmarks.command import (
    measure_and_show,
    microseconds,
    others_share,
    quartiles_of,
    run_of,
    show_table,
    timed,
)
from benchmarks.gates import AT_LEAST, AT_MOST, Gate, gate_of_ratios
from benchmarks.step_rows import cold_copies, make_read

REQUESTS, GAMMA, VOCAB_SIZE, TOP_K = 64, 4, 151936, 50
CHAIN = tuple(range(-1, GAMMA))
TREE = (*CHAIN, *CHAIN[1:])
"""A chain, and beside each place of it another draft."""
SECONDS = 6.0
VERIFY, READ = "verify_drafts", "one read of the rows that are reached"
PEER = "vllm-ascend's functions in torch"
MATCH_READS, DRAWN_READS, AHEAD_OF_PEER = 1.6, 3.0, 100.0


@dataclass(frozen=True)
class Cell:
    """What is timed together.

    Attributes:
        name: how the drafts are.
        rule: by which they are judged.
        right: how many of a request's drafts are what is drawn there.
        parents: of a request's places.
    """

    name: str
    rule: VerificationRule = "match"
    right: int = GAMMA
    parents: tuple[int, ...] = CHAIN


CELLS = (
    Cell("match, all stay"),
    Cell("match, two stay", right=2),
    Cell("match, none stays", right=0),
    Cell("match, two stay in a tree of 8", right=2, parents=TREE),
    Cell("standard, dense q", "standard"),
    Cell("block, dense q", "block"),
)


class Case(NamedTuple):
    """The data of a cell."""

    logits: Tensor  # [places, vocab_size]
    drafts: Tensor  # int64 [drafts]
    proposals: Tensor | None  # float32 [drafts, vocab_size]


def new_batch() -> SamplingBatch:
    """The requests."""
    batch = SamplingBatch(VOCAB_SIZE)
    batch.extend([SamplingParams(top_k=TOP_K, seed=row) for row in range(REQUESTS)])
    return batch


def make_case(cell: Cell) -> Case:
    """Logits of a language model; drafts that are right for so long, or that are drawn from a q close to p."""
    rows = distributions.make(distributions.LANGUAGE_MODEL, REQUESTS * len(cell.parents), VOCAB_SIZE)
    logits = rows.to(torch.bfloat16)
    if cell.rule != "match":
        generator = torch.Generator().manual_seed(1)
        of_drafts = rows.view(REQUESTS, -1, VOCAB_SIZE)[:, :GAMMA].flatten(0, 1)
        best = of_drafts.topk(TOP_K)
        unsure = best.values + 0.5 * torch.randn(best.values.shape, generator=generator)
        proposals = torch.zeros_like(of_drafts).scatter_(1, best.indices, unsure.softmax(1))
        return Case(logits, proposals.multinomial(1, generator=generator).squeeze(1), proposals)
    drafts = torch.full((REQUESTS, len(cell.parents) - 1), VOCAB_SIZE)  # an id that nothing draws
    for place in range(cell.right):
        case = Case(logits, drafts.flatten(), None)
        drafts[:, place] = call_of(cell, case)(logits).token_ids[:, place]
    return Case(logits, drafts.flatten(), None)


def call_of(cell: Cell, case: Case) -> Callable[[Tensor], Any]:
    """The verification of the drafts by logits, which leaves the batch as it is."""
    batch = new_batch()
    counts = [len(cell.parents) - 1] * REQUESTS
    parents = None if cell.parents == CHAIN else [*cell.parents] * REQUESTS

    def verify(logits: Tensor) -> object:
        return verify_drafts(
            logits,
            case.drafts,
            batch,
            counts=counts,
            parents=parents,
            rule=cell.rule,
            draft_probabilities=case.proposals,
        )

    return verify


def peer_of(case: Case) -> Callable[[Tensor], object]:
    """What the engine's functions make of the same logits and drafts."""
    requests = rejection_peer.Requests(torch.ones(REQUESTS), torch.full((REQUESTS,), TOP_K))
    drafts = ids_of(case)
    return lambda logits: rejection_peer.verify(logits, drafts, case.proposals, requests)


def ids_of(case: Case) -> Tensor:
    """The drafts for an engine that takes no id beyond the vocabulary."""
    return case.drafts.clamp(max=VOCAB_SIZE - 1)


def run(seconds: float) -> dict[str, Any]:
    """Times every cell."""
    records = []
    for cell in track(CELLS, description="cells"):
        case = make_case(cell)
        verify = call_of(cell, case)
        accepted = int(verify(case.logits).accepted.sum())
        reached = accepted + REQUESTS
        copies = cold_copies(case.logits, reached)
        judges = {VERIFY: verify}
        if cell.parents == CHAIN and cell.rule != "block":  # the engine knows neither trees nor this rule
            judges[PEER] = peer_of(case)
        calls = {name: rotate(call, [(logits,) for logits in copies]) for name, call in judges.items()}
        calls |= {READ: make_read(*(logits[:reached] for logits in copies))}
        described = {"cell": cell.name, "rule": cell.rule, "accepted": accepted, "reached": reached}
        records.append(described | timed(calls, seconds))
    return run_of(records, judge(records))


def judge(records: list[dict[str, Any]]) -> list[Gate]:
    """What is promised of it."""

    def worst(name: str, rules: set[str], bound: str, limit: float, above: str, below: str) -> Gate:
        cells = [record for record in records if record["rule"] in rules]
        return gate_of_ratios("drafts", name, bound, limit, cells, above, below)

    return [
        worst(f"match / {READ}", {"match"}, AT_MOST, MATCH_READS, VERIFY, READ),
        worst(f"standard with dense q / {READ}", {"standard"}, AT_MOST, DRAWN_READS, VERIFY, READ),
        worst(f"{PEER} / {VERIFY}", {"match", "standard"}, AT_LEAST, AHEAD_OF_PEER, PEER, VERIFY),
    ]


def show(found: dict[str, Any]) -> None:
    """Prints times and promises."""
    table = Table("drafts", "accepted", "rows reached", "contestant", "median", "quartiles", "others' share")
    for record in found["records"]:
        for name, result in record["results"].items():
            cells = (record["cell"], str(record["accepted"]), str(record["reached"]), name)
            table.add_row(*cells, microseconds(result["median"]), quartiles_of(result), others_share(record))
    show_table(table, found["gates"])


if __name__ == "__main__":
    raise SystemExit(measure_and_show("verify_drafts", __doc__, (SECONDS, "for each row of the table"), run, show))
