"""Records the bits of random steps on every path, and compares two records: a refactoring changes none.

    python -m hostcann run python tests/sampling/record_bits.py record before.json --rows 20000
    python tests/sampling/record_bits.py compare before.json after.json

The paths are `Sampler` and the functions on a CPU and an NPU, `StaticStep` and `StaticVerification` in graphs,
`verify_drafts` under each rule, and ranks that share a vocabulary. A record has digests of what each row got: tokens
with statuses, logprobs, kept sets, states, whole rows. `compare` counts the rows that differ by path, result and kind,
and its exit status is 1 where any does. Both records have to be made with one version of the generators.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "vocabulary_parallel")]

import ascend_sample  # noqa: F401, E402  imports torch in a way that needs no CANN

import mixed_drafts  # isort: skip  # noqa: E402
import mixed_rows  # noqa: E402
import torch  # noqa: E402
from run_rows import random_logits, random_request  # noqa: E402
from state_rows import set_states, with_state  # noqa: E402
from torch import Tensor  # noqa: E402

from ascend_sample.bench.launches import GRAPHS  # noqa: E402
from ascend_sample.sampling import (  # noqa: E402
    KeptSets,
    Logprobs,
    Sampler,
    SamplingBatch,
    SamplingParams,
    StaticVerification,
    filter_logits,
    sample_rows,
    score,
    verify_drafts,
)
from ascend_sample.sampling.edits.value_ranges import RANGE  # noqa: E402
from ascend_sample.sampling.requests.params import DEFAULTS  # noqa: E402
from ascend_sample.sampling.static.step import StaticStep  # noqa: E402

ROWS: Final = 32  # of a batch
DRAFTS: Final = 3  # of a request in a graph
LISTED: Final = 6  # results that may differ, printed for each path and result
VALUED: Final = ("temperature", "top_k")  # fields whose value is a part of a row's kind
UNNAMED: Final = ("seed", "logprobs", "return_sampling_mask")
OUTSIDE_OF_GRAPHS: Final = {  # what a graph refuses, switched off
    **{name: DEFAULTS[name] for name in RANGE},
    "no_repeat_ngram_size": 0,
    "bad_words": (),
    "dry_multiplier": 0.0,
}
Record = dict[str, Any]
"""Where a row is (path, step), its kind, and a digest of each of its results."""


def digest(*results: Any) -> str:
    """Returns a digest of tensors' bits, and of what else is given by its text."""
    found = hashlib.blake2b(digest_size=6)
    for each in results:
        if isinstance(each, Tensor):
            found.update(each.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(each).encode())
    return found.hexdigest()


def on_cpu(results: Any) -> Any:
    """Returns a named tuple, whose tensors are on the CPU."""
    return results._replace(
        **{name: each.cpu() for name, each in results._asdict().items() if isinstance(each, Tensor)},
        **{name: on_cpu(each) for name, each in results._asdict().items() if isinstance(each, Logprobs | KeptSets)},
    )


def kind_of(params: SamplingParams, *more: object) -> str:
    """Names the fields of a request that are not their defaults."""
    usual, names = SamplingParams(), []
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if value != getattr(usual, field.name) and field.name not in UNNAMED:
            names.append(f"{field.name}={value}" if field.name in VALUED else field.name)
    return " ".join(map(str, (*names, *more)))


def case_of(number: int) -> tuple[mixed_rows.Case, list[SamplingParams]]:
    """Returns a random case, and its requests with kept sets and states in some rows."""
    case = mixed_rows.random_case(number, 1, ROWS)
    asking = random.Random(f"results {number}")
    params = [dataclasses.replace(one, return_sampling_mask=asking.random() < 0.3) for one in case.params]
    return case, [with_state(asking, one) for one in params]


def steps(number: int, device: str) -> Iterator[Record]:
    """Takes two steps of `Sampler`; in between requests leave and move."""
    case, params = case_of(number)
    choice = random.Random(f"moves {number}")
    batch = SamplingBatch(case.vocab_size, device)
    batch.extend(params, case.prompts)
    set_states(choice, batch)
    sampler, logits, bitmask = Sampler(**case.options), case.logits.to(device), case.bitmask
    for step in range(2):
        output = on_cpu(sampler(logits[: len(batch)], batch, bitmask=bitmask))
        more = (case.logits.dtype, sorted(case.options.items()), "bitmask" if bitmask is not None else "")
        moved = {} if output.states is None else dict(zip(output.states.rows, output.states.values.cpu(), strict=True))
        for row in range(len(batch)):
            found: Record = {"tokens": digest(output.token_ids[row], output.status[row])}
            if output.logprobs is not None and row in output.logprobs.rows:
                place = output.logprobs.rows.index(row)
                found["logprobs"] = digest(*(tensor[place] for tensor in output.logprobs[1:]))
            if output.kept is not None:
                found["kept"] = digest(*output.kept.of_row(row), output.kept.counts[row])
            if row in moved:
                found["state"] = digest(moved[row])
            yield {"step": step, "kind": kind_of(batch.params[row], *more), "results": found}
        batch.remove(choice.randrange(len(batch)))
        batch.swap(0, len(batch) - 1)
        bitmask = None if bitmask is None else bitmask[: len(batch)]


def functions(number: int, device: str) -> Iterator[Record]:
    """Calls the functions on the rows of a batch, and processes it."""
    case, params = case_of(number)
    batch = SamplingBatch(case.vocab_size, device)
    batch.extend(params, case.prompts)
    logits, keep_ties = case.logits.to(device), bool(case.options["keep_ties"])
    filters = {name: getattr(batch, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    kept = filter_logits(logits, **filters, keep_ties=keep_ties).cpu()
    keys = {"seed": batch.seed, "position": batch.position, "keep_ties": keep_ties}
    facts = {name: tensor.cpu().numpy() for name, tensor in filters.items()}
    drawn = [on_cpu(sample_rows(logits, **filters, **keys, facts=known)) for known in (None, facts)]
    given = torch.tensor([sum(prompt) % case.vocab_size for prompt in case.prompts], device=device)
    scores = on_cpu(score(logits, given, n=min(2, case.vocab_size), entropy=True))
    processed = batch.process(logits)
    changed = torch.empty(0) if processed is None else processed.logits.cpu()
    for row, one in enumerate(params):
        found: Record = {
            "filter_logits": digest(kept[row]),
            "tokens": digest(*(tensor[row] for each in drawn for tensor in each)),
            "score": digest(*(tensor[row] for tensor in scores)),
        }
        if processed is not None and row in processed.host_rows:
            found["processed"] = digest(changed[processed.host_rows.index(row)])
        yield {"step": 0, "kind": kind_of(one, case.logits.dtype, keep_ties), "results": found}


def replay_of(step: StaticStep | StaticVerification) -> Callable[[], None]:
    """Returns what replays a step: its graph on a device that has graphs."""
    device = step.token_ids.device.type
    if device == "cpu":
        return step.run
    step.run()  # what is looked up or allocated once is no part of the graph
    module: Any = torch.get_device_module(device)
    module.synchronize()
    graph = getattr(module, GRAPHS[device])()
    with module.graph(graph):
        step.run()
    replay: Callable[[], None] = graph.replay
    return replay


@functools.cache
def static_step(device: str, dtype: torch.dtype, mode: str, only_top_k: bool) -> tuple[StaticStep, Any]:
    step = StaticStep(
        ROWS,
        500,
        dtype,
        device,
        largest_k=200,
        only_top_k=only_top_k,
        addends=32,
        history=64,
        bitmask=True,
        logprobs=2,
        logprobs_mode=mode,
        max_kept=64,
    )
    return step, replay_of(step)


def graph_request(rng: random.Random, vocab_size: int, only_top_k: bool) -> SamplingParams:
    """Returns a random request that a graph serves."""
    one = random_request(rng, vocab_size)
    changes: dict[str, Any] = dict(OUTSIDE_OF_GRAPHS)
    if len(one.suppress_token_ids) > 20:
        changes["suppress_token_ids"] = ()
    if one.top_k is None or one.top_k > 200:
        changes["top_k"] = 40 if only_top_k else None
    return dataclasses.replace(one, **changes)


def static_steps(number: int, device: str) -> Iterator[Record]:
    """Replays two steps of a graph."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    dtype = rng.choice((torch.float32, torch.bfloat16))
    only_top_k, mode = number % 3 == 2, mixed_rows.MODES[number % len(mixed_rows.MODES)]
    step, replay = static_step(device, dtype, mode, only_top_k)
    params = [
        dataclasses.replace(
            graph_request(rng, 500, only_top_k), logprobs=rng.choice((None, 2)), return_sampling_mask=True
        )
        for _ in range(ROWS - number % 4)
    ]
    batch = SamplingBatch(500, device)
    batch.extend(params, [[rng.randrange(500) for _ in range(rng.randrange(30))] for _ in params])
    logits = random_logits(generator, rng, (len(params), 500), odd=(torch.nan, torch.inf)).to(dtype)
    words = torch.randint(-(2**31), 2**31, (len(params), 16), generator=generator).to(torch.int32)
    for taken in range(2):
        step.logits[: len(batch)].copy_(logits)
        step.prepare(batch, bitmask=words if number % 2 else None)
        replay()
        assert step.logprobs is not None, "the step has room for them"
        assert step.kept is not None, "the step has room for them"
        token_ids, status, logprobs, kept = (
            step.token_ids.cpu(),
            step.status.cpu(),
            on_cpu(step.logprobs),
            on_cpu(step.kept),
        )
        for row, one in enumerate(params):
            found = {
                "tokens": digest(token_ids[row], status[row]),
                "logprobs": digest(*(tensor[row] for tensor in logprobs[1:])) if one.logprobs is not None else "",
                "kept": digest(*kept.of_row(row), kept.counts[row]),
            }
            yield {"step": taken, "kind": kind_of(one, dtype, mode, only_top_k), "results": found}
        batch.append(step.token_ids[: len(batch)].clone())


def drafts(number: int, device: str) -> Iterator[Record]:
    """Verifies the drafts of a pass, twice, under one of the rules."""
    rule = mixed_drafts.RULES[number % len(mixed_drafts.RULES)]
    if rule is None:
        case = mixed_drafts.random_drafts(number, 1, ROWS, is_tree=number % 2 == 1)
    else:
        case = mixed_drafts.drawn_drafts(number, 1, rule, ROWS)
    there = {
        "draft_probabilities": case.probabilities,
        "draft_candidates": case.candidates,
    }
    batch = mixed_rows.batch_of(case.case, device)
    for step in range(2):
        verified = verify_drafts(
            case.case.logits.to(device),
            case.drafts.to(device),
            batch,
            counts=case.counts,
            parents=case.parents,
            rule=case.rule,
            sampler=Sampler(**case.case.options),
            bitmask=case.case.bitmask,
            **{name: None if tensor is None else tensor.to(device) for name, tensor in there.items()},
        )
        yield from verified_rows(case, on_cpu(verified), step)
        verified.append_to(batch)


def verified_rows(case: mixed_drafts.DraftCase, verified: Any, step: int) -> Iterator[Record]:
    """Yields a record for each request of a pass; of logprobs those of places that are reached."""
    start, accepted = 0, verified.accepted.tolist()
    rows = [] if verified.logprobs is None else verified.logprobs.rows
    for request, count in enumerate(case.counts):
        way = range(accepted[request] + 1)
        if verified.path is not None:
            way = verified.path[request, : accepted[request] + 1].tolist()
        path = () if verified.path is None else (verified.path[request],)
        found = {"tokens": digest(verified.token_ids[request], accepted[request], verified.status[request], *path)}
        if reported := [rows.index(start + place) for place in way if start + place in rows]:
            found["logprobs"] = digest(*(tensor[reported] for tensor in verified.logprobs[1:]))
        kind = kind_of(case.case.params[request], case.case.logits.dtype, case.rule, *case.case.options.items())
        yield {"step": step, "kind": kind, "results": found}
        start += count + 1


@functools.cache
def static_verification(device: str, rule: str, is_drawn: bool) -> tuple[StaticVerification, Any]:
    verification = StaticVerification(
        ROWS // (DRAFTS + 1),
        DRAFTS,
        500,
        torch.bfloat16,
        device,
        rule=rule,  # type: ignore[arg-type]
        is_drawn=is_drawn,
        largest_k=200,
        addends=32,
        history=64,
        bitmask=True,
    )
    return verification, replay_of(verification)


def static_drafts(number: int, device: str) -> Iterator[Record]:
    """Replays two passes of a graph that verifies drafts."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    rule, is_drawn = (("match", False), ("standard", True), ("block", True), ("standard", False))[number % 4]
    verification, replay = static_verification(device, rule, is_drawn)
    params = [graph_request(rng, 500, False) for _ in range(ROWS // (DRAFTS + 1) - number % 2)]
    batch = SamplingBatch(500, device)
    batch.extend(params, [[rng.randrange(500) for _ in range(rng.randrange(30))] for _ in params])
    places = len(params) * (DRAFTS + 1)
    for step in range(2):
        logits = random_logits(generator, rng, (places, 500)).bfloat16()
        near = logits.float().nan_to_num(-9.0, 9.0, -9.0).clamp(-9, 9).view(len(params), DRAFTS + 1, 500)[:, :DRAFTS]
        q = near.flatten(0, 1).softmax(1)
        ids = torch.multinomial(q, 1, generator=generator).view(-1) if is_drawn else q.argmax(1)
        ids[::9] = -1
        verification.logits[:places].copy_(logits)
        verification.draft_ids[: len(ids)].copy_(ids)
        if verification.draft_probabilities is not None:
            verification.draft_probabilities[: len(q)].copy_(q)
        verification.prepare(batch)
        replay()
        verified = verification.verified(batch)
        results = on_cpu(verified)[:3]
        for row, one in enumerate(params):
            found = {"tokens": digest(*(tensor[row] for tensor in results))}
            yield {"step": step, "kind": kind_of(one, rule, is_drawn), "results": found}
        verified.append_to(batch)


def split_steps(number: int, device: str) -> Iterator[Record]:
    """Takes two steps with 1 to 3 ranks; the first rank's are recorded."""
    size = 1 + number % 3
    case = mixed_rows.random_case(number, size, ROWS)
    for step, output in enumerate(mixed_rows.split(case, device)[0].outputs):
        for row, one in enumerate(case.params):
            found = {"tokens": digest(output.token_ids[row], output.status[row])}
            if output.logprobs is not None and row in output.logprobs.rows:
                place = output.logprobs.rows.index(row)
                found["logprobs"] = digest(*(tensor[place] for tensor in output.logprobs[1:]))
            kind = kind_of(one, case.logits.dtype, *case.options.items(), f"{size} ranks")
            yield {"step": step, "kind": kind, "results": found}


def split_drafts(number: int, device: str) -> Iterator[Record]:
    """Verifies drafts with 1 to 3 ranks, twice, of chains and trees by the rule match."""
    case = mixed_drafts.random_drafts(number, 1 + number % 3, ROWS, is_tree=number % 2 == 1)
    for step, verified in enumerate(mixed_drafts.split(case, device=device)[0]):
        yield from verified_rows(case, verified, step)


PATHS: Final[dict[str, tuple[Callable[[int, str], Iterator[Record]], str, int]]] = {
    "steps cpu": (steps, "cpu", 5),
    "steps npu": (steps, "npu", 5),
    "functions cpu": (functions, "cpu", 1),
    "functions npu": (functions, "npu", 1),
    "graph cpu": (static_steps, "cpu", 1),
    "graph npu": (static_steps, "npu", 2),
    "drafts cpu": (drafts, "cpu", 1),
    "drafts npu": (drafts, "npu", 1),
    "graph drafts cpu": (static_drafts, "cpu", 1),
    "graph drafts npu": (static_drafts, "npu", 1),
    "split cpu": (split_steps, "cpu", 2),
    "split npu": (split_steps, "npu", 2),
    "split drafts cpu": (split_drafts, "cpu", 1),
    "split drafts npu": (split_drafts, "npu", 1),
}
"""Of each path: what takes its steps, the device, and its share of all rows."""


def record(rows: int, only: str) -> dict[str, list[Record]]:
    """Takes the steps of all paths whose names contain ``only``, in so many rows."""
    torch.set_num_threads(1)
    whole = sum(share for _, _, share in PATHS.values())
    found: dict[str, list[Record]] = {}
    for path, (take, device, share) in PATHS.items():
        if only not in path:
            continue
        records: list[Record] = []
        number = 0
        while len(records) < rows * share / whole:
            records += [{"batch": number, **each} for each in take(number, device)]
            number += 1
        found[path] = records
        print(f"{path}: {len(records)} rows", flush=True)
    return found


def compare(before: dict[str, list[Record]], after: dict[str, list[Record]]) -> int:
    """Prints which results of which kinds differ; returns how many of them do."""
    differ = 0
    for path in before:
        if path not in after:
            print(f"{path}: missing")
            continue
        kinds: dict[str, Counter[str]] = {}
        examples: dict[tuple[str, str], str] = {}
        compared = 0
        for one, other in zip(before[path], after[path], strict=False):
            compared += 1
            for result in one["results"].keys() | other["results"].keys():
                if one["results"].get(result) != other["results"].get(result):
                    kinds.setdefault(result, Counter())[one["kind"]] += 1
                    examples.setdefault((result, one["kind"]), f"batch {one['batch']}, step {one['step']}")
        print(f"{path}: {compared} rows compared, {sum(counts.total() for counts in kinds.values())} results differ")
        for result, counts in kinds.items():
            differ += counts.total()
            for kind, count in counts.most_common(LISTED):
                print(f"    {result}: {count} of {kind} ({examples[result, kind]})")
    return differ


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Records the bits of random steps, or compares two records.")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="take steps and write digests of their results")
    recording.add_argument("file", type=Path)
    recording.add_argument("--rows", type=int, default=1_000, help="rows of all paths together (default 1,000)")
    recording.add_argument("--only", default="", help="paths whose names contain this, such as cpu (default: all)")
    comparing = commands.add_parser("compare", help="count the results that differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        options.file.write_text(json.dumps(record(options.rows, options.only)))
        return 0
    before, after = (json.loads(file.read_text()) for file in (options.before, options.after))
    return 1 if compare(before, after) else 0


if __name__ == "__main__":
    sys.exit(main())
