"""Speculative sampling beside plain decoding on the CPU, with a draft and a target that the benchmark trains itself.

    python -m benchmarks.speculative                         # all parts; writes build/performance/speculative.json
    python -m benchmarks.speculative --part normalisation    # one of speed, normalisation, identity, assisted, requests

`speed` decodes texts that the models know by heart and others, at several temperatures: so acceptance varies. Each case
times plain decoding, gamma = 7, adaptive gamma and, of one row, gamma = 14 (nothing is promised of that) in turns. A
round of gamma drafts costs gamma * c + v plain steps, where c and v, the cost of a draft step and of a pass over gamma
+ 1 tokens, are measured in the same run; the model of the literature has v = 1. `normalisation` filters 352 positions
at once and one by one, as the source document's first version does. `identity` compares greedy texts of the demo's
language model, 1,000 prompts, with its own greedy ones. `assisted` is speculation beside transformers' own
(benchmarks/assisted.py), `requests` speculation with penalties and logprobs (benchmarks/speculative_requests.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

import torch  # isort: skip
from rich.console import Console
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, sample_rows
from benchmarks import assisted, environment, normalisation, speculative_requests
from benchmarks.command import parser_of, timed
from benchmarks.draft_and_target import CachedNetwork, NetworkConfig, Trained, load_or_train
from benchmarks.gates import AT_LEAST, AT_MOST, Gate, Measured, gate_of_worst
from benchmarks.greedy_identity import find_examples, identity
from benchmarks.native import ROOT
from benchmarks.quiet import Watch

OUTPUT = ROOT / "build" / "performance" / "speculative.json"
PARTS = ("speed", "normalisation", "identity", "assisted", "requests")

GAMMA, LONG_GAMMA = 7, 14
PROMPT_TOKENS, NEW_TOKENS = 24, 96
REPEATS = 5
HIGH_ACCEPTANCE = 0.92


class Case(NamedTuple):
    """Texts that are decoded.

    Attributes:
        name: what they are.
        is_known: whether the models know them by heart.
        temperature: at which they are sampled.
        batch_size: rows.
    """

    name: str
    is_known: bool
    temperature: float
    batch_size: int


CASES = (
    Case("known, greedy", True, 0.0, 1),
    Case("known, T=1", True, 1.0, 1),
    Case("known, T=2", True, 2.0, 1),
    Case("others, greedy", False, 0.0, 1),
    Case("others, T=0.7", False, 0.7, 1),
    Case("others, T=1", False, 1.0, 1),
    Case("known, T=1", True, 1.0, 8),
    Case("others, T=1", False, 1.0, 8),
)


def trained() -> Trained:
    """Draft and target, trained when they are not in the folder of the demo's model yet."""
    find_examples()
    from language_model import corpus
    from language_model.tokenizer import train_tokenizer
    from model_cache import cache_directory

    config = NetworkConfig()

    def texts() -> Tensor:
        documents = corpus.collect_documents()
        tokenizer = train_tokenizer(documents, config.vocab_size)
        encoded = (encoding.ids[: config.text_tokens] for encoding in tokenizer.encode_batch(documents))
        long = [ids for ids in encoded if len(ids) == config.text_tokens]
        return torch.tensor(long[: 2 * config.texts])

    return load_or_train(config, cache_directory("language_model"), corpus.fingerprint(), texts)


@torch.no_grad()
def decode_plainly(model: StepModel, prompts: Tensor, tokens: int, params: list[SamplingParams]) -> Tensor:
    """What speculation is measured against: one token a step, and nothing else."""
    temperature = torch.tensor([one.temperature for one in params])
    seed = torch.tensor([one.seed for one in params])
    facts = {"temperature": temperature.numpy()}

    def draw(logits: Tensor, position: int) -> Tensor:
        at = torch.full_like(seed, position)
        return sample_rows(logits, temperature=temperature, seed=seed, position=at, facts=facts).token_ids

    output = model.prefill(prompts)
    drawn = [draw(output.logits, prompts.shape[1])]
    cache = output.cache
    while len(drawn) < tokens:
        logits, cache, _ = model.decode(drawn[-1][:, None], cache)
        drawn.append(draw(logits[:, 0], prompts.shape[1] + len(drawn)))
    return torch.stack(drawn, dim=1)


def requests() -> dict[str, Any]:
    """Time speculation of requests that ask for penalties and logprobs."""
    models = trained()
    target, draft = CachedNetwork(models.network, is_draft=False), CachedNetwork(models.network, is_draft=True)
    return speculative_requests.measure(target, draft, {"known": models.known, "others": models.unknown})


def speed() -> dict[str, Any]:
    """Time every case; the record of each, and the costs of a step."""
    models = trained()
    target, draft = CachedNetwork(models.network, is_draft=False), CachedNetwork(models.network, is_draft=True)
    batch_sizes = sorted({case.batch_size for case in CASES})
    costs = {batch_size: step_costs(target, draft, models.known, batch_size) for batch_size in batch_sizes}
    records = [
        measure_case(case, models, target, draft, costs[case.batch_size])
        for case in tqdm(CASES, desc="cases of speculative decoding", unit="case")
    ]
    return {
        "parameters": sum(parameter.numel() for parameter in models.network.parameters()),
        "training_seconds": models.seconds,
        "losses": models.losses,
        "costs": {str(batch_size): cost._asdict() for batch_size, cost in costs.items()},
        "records": records,
    }


class StepCosts(NamedTuple):
    """Of passes, sampling included.

    Attributes:
        seconds: of a plain step of the target.
        draft: of a token of the draft, in plain steps; the literature's c.
        verification: of the target's pass over GAMMA + 1 tokens, in plain steps.
        disturbed: which share of the processors others had meanwhile; None where it is not known.
    """

    seconds: float
    draft: float
    verification: float
    disturbed: float | None = None


def step_costs(target: CachedNetwork, draft: CachedNetwork, texts: Tensor, batch_size: int) -> StepCosts:
    """Measure passes in the middle of texts."""
    prompts = texts[:1].expand(batch_size, -1).contiguous()[:, : PROMPT_TOKENS + NEW_TOKENS // 2]
    sampler = Sampler()

    def step(model: CachedNetwork, tokens: int) -> Callable[[], object]:
        logits, cache, _ = model.prefill(prompts)
        batch = SamplingBatch(logits.shape[1])
        batch.extend([SamplingParams(seed=row) for row in range(batch_size)])
        return lambda: sampler(model.decode(prompts[:, :tokens], cache).logits[:, -1], batch)

    subjects = {"plain": step(target, 1), "draft": step(draft, 1), "verification": step(target, GAMMA + 1)}
    record = timed(subjects, seconds=6.0)
    plain, *beside = (record["results"][name]["median"] for name in subjects)
    return StepCosts(plain, *(each / plain for each in beside), record["disturbed"])


def measure_case(
    case: Case, models: Trained, target: CachedNetwork, draft: CachedNetwork, costs: StepCosts
) -> dict[str, Any]:
    """Decode the case's texts in all ways, in turns; medians."""
    texts = models.known if case.is_known else models.unknown
    seconds: dict[str, list[float]] = {}
    outputs: list[DecodeOutput] = []
    watch = Watch()
    for number in range(REPEATS):
        rows = (torch.arange(case.batch_size) + number) % len(texts)
        prompts = texts[rows, :PROMPT_TOKENS]
        params = [
            SamplingParams(temperature=case.temperature, seed=100 * number + row) for row in range(case.batch_size)
        ]
        speculative = _speculate(target, draft, prompts, params)
        ways: dict[str, Callable[[], object]] = {
            "plain": lambda prompts=prompts, params=params: decode_plainly(target, prompts, NEW_TOKENS, params),
            "gamma": lambda run=speculative: outputs.append(run(GAMMA)),
            "adaptive": lambda run=speculative: run(AdaptiveGamma()),
        }
        if case.batch_size == 1:
            ways["long"] = lambda run=speculative: run(LONG_GAMMA)
        names = list(ways)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            ways[name]()
            seconds.setdefault(name, []).append(time.perf_counter() - began)
    return describe_case(case, seconds, outputs, costs, watch.share_of_others())


def _speculate(
    target: CachedNetwork, draft: CachedNetwork, prompts: Tensor, params: list[SamplingParams]
) -> Callable[[int | AdaptiveGamma], DecodeOutput]:
    return lambda gamma: speculative_sample(
        target, prompts, params, drafter=draft, gamma=gamma, max_new_tokens=NEW_TOKENS
    )


def describe_case(
    case: Case, seconds: dict[str, list[float]], outputs: list[DecodeOutput], costs: StepCosts, disturbed: float | None
) -> dict[str, Any]:
    """What was measured beside what the model says: of each text by its own acceptance, and the median counts."""
    runs = [(output.stats, int(output.lengths.max())) for output in outputs if output.stats is not None]
    stats = [one for one, _ in runs]
    looked = torch.stack([one.drafted.sum(dim=0) for one in stats]).sum(dim=0)
    kept = torch.stack([one.accepted.sum(dim=0) for one in stats]).sum(dim=0)
    # Of a round; the first token came from the prompts, and a batch has as many rounds as its slowest row.
    tokens = [(length - 1) / one.target_passes for one, length in runs]
    denominator = GAMMA * costs.draft
    ratios = {
        name: [plain / own for plain, own in zip(seconds["plain"], seconds[name], strict=True)] for name in seconds
    }
    model, model_with_verification = (
        [each / (denominator + verification) for each in tokens] for verification in (1.0, costs.verification)
    )

    def over(models: list[float]) -> float:
        return statistics.median(speed / each for speed, each in zip(ratios["gamma"], models, strict=True))

    return {
        "case": case._asdict(),
        "disturbed": max((share for share in (disturbed, costs.disturbed) if share is not None), default=None),
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "acceptance": float(kept.sum() / looked.sum()),
        "acceptance_by_place": (kept / looked.clamp(min=1)).tolist(),
        "accepted_per_round": statistics.median(tokens) - 1,
        "speed": statistics.median(ratios["gamma"]),
        "speed_adaptive": statistics.median(ratios["adaptive"]),
        "speed_long": statistics.median(ratios["long"]) if "long" in ratios else None,
        "model": statistics.median(model),
        "model_with_verification": statistics.median(model_with_verification),
        "speed_over_model": over(model),
        "speed_over_model_with_verification": over(model_with_verification),
    }


def judge(found: dict[str, Any]) -> list[Gate]:
    """What is promised, as far as it was measured."""
    gates = []
    if "speed" in found:
        records = found["speed"]["records"]
        single = [record for record in records if record["case"]["batch_size"] == 1]
        sure = [record for record in single if record["acceptance"] >= HIGH_ACCEPTANCE]
        gates += [
            _worst(
                f"gamma {GAMMA} / plain decoding, batch 1, acceptance of {HIGH_ACCEPTANCE} and more",
                AT_LEAST,
                1.8,
                sure,
                itemgetter("speed"),
            ),
            _worst("distance from (accepted + 1) / (gamma c + 1), batch 1", AT_MOST, 0.15, single, _distance),
            _worst(
                "distance from the model with the measured pass",
                AT_MOST,
                0.15,
                records,
                partial(_distance, over="speed_over_model_with_verification"),
            ),
        ]
    if "normalisation" in found:
        times = found["normalisation"][normalisation.JUDGED]
        disturbed = {"disturbed": times.get("disturbed")}  # which runs have not always noted
        measured = Measured(times["one by one"] / times["at once"], disturbed, "")
        name = f"normalisation one by one / at once, {normalisation.JUDGED}"
        gates.append(gate_of_worst("speculative", name, AT_LEAST, 50.0, [measured]))
    if "identity" in found:
        value = float(sum(found["identity"]["differing"].values()))
        gates.append(Gate("speculative", "greedy texts that differ", AT_MOST, 0.0, value, unit=""))
    if "assisted" in found:
        gates += assisted.judge(found["assisted"])
    return gates


def _distance(record: dict[str, Any], over: str = "speed_over_model") -> float:
    return abs(float(record[over]) - 1)


def beyond_one_row(records: list[dict[str, Any]]) -> str:
    """What of the promises for batch 1 is not kept at larger ones, in a sentence."""
    larger = [record for record in records if record["case"]["batch_size"] > 1]
    surest = max(larger, key=lambda record: record["acceptance"])
    farthest = max(larger, key=_distance)
    return (
        f"The first two are promised of one row only. Of {surest['case']['batch_size']} rows gamma {GAMMA} is "
        f"{surest['speed']:.2f}x plain decoding at an acceptance of {surest['acceptance']:.2f}, and of "
        f"{farthest['case']['batch_size']} it is up to {_distance(farthest):.0%} away from (accepted + 1) / "
        "(gamma c + 1)."
    )


def _worst(
    name: str, bound: str, limit: float, records: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]
) -> Gate:
    return gate_of_worst("speculative", name, bound, limit, [Measured(value(one), one, _label(one)) for one in records])


def _label(record: dict[str, Any]) -> str:
    return f"{record['case']['name']}, batch {record['case']['batch_size']}"


def show(found: dict[str, Any], gates: list[Gate]) -> None:
    """Print everything."""
    console = Console(width=150)
    if "speed" in found:
        part = found["speed"]
        console.print(
            f"{part['parameters'] / 1e6:.0f} M parameters, trained in {part['training_seconds']:.0f} s to losses of "
            f"{part['losses'][0]:.2f} (draft) and {part['losses'][1]:.2f} (target)"
        )
        for batch_size, costs in part["costs"].items():
            console.print(
                f"batch {batch_size}: a plain step {costs['seconds'] * 1e3:.1f} ms, a draft step {costs['draft']:.2f} "
                f"of it, a pass over {GAMMA + 1} tokens {costs['verification']:.2f}"
            )
        columns = ("case", "batch", "acceptance", "a round", f"gamma {GAMMA}", "model", "with pass", "adaptive")
        table = Table(*columns, f"gamma {LONG_GAMMA}", "others")
        for record in part["records"]:
            values = [
                f"{record['acceptance']:.3f}",
                f"{record['accepted_per_round'] + 1:.2f}",
                *(f"{record[name]:.2f}x" for name in ("speed", "model", "model_with_verification", "speed_adaptive")),
                "" if record["speed_long"] is None else f"{record['speed_long']:.2f}x",
                f"{record['disturbed'] or 0:.0%}",
            ]
            table.add_row(record["case"]["name"], str(record["case"]["batch_size"]), *values)
        console.print(table)
    if "normalisation" in found:
        for size, times in found["normalisation"].items():
            console.print(
                f"{size} logits: {times['one by one'] * 1e3:.2f} ms one by one, "
                f"{times['at once'] * 1e3:.3f} ms at once, {times['one by one'] / times['at once']:.0f}x"
            )
    if "identity" in found:
        console.print(found["identity"])
    if "assisted" in found:
        assisted.show(found["assisted"], console)
    if "requests" in found:
        speculative_requests.show(found["requests"], console)
    for gate in gates:
        value = "" if gate.value is None else f"{gate.value:.3g}"
        console.print(f"{gate.verdict:<12} {gate.name}: {value} ({gate.bound} {gate.limit:g}) {gate.worst}")


def main() -> int:
    """Measure; returns the exit status."""
    parser = parser_of("speculative", __doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="what to run; all if not given")
    options = parser.parse_args()
    measured = {
        "speed": speed,
        "normalisation": normalisation.measure_all,
        "identity": identity,
        "assisted": assisted.measure,
        "requests": requests,
    }
    found: dict[str, Any] = {"environment": environment.describe()}
    for part in options.part or PARTS:
        found[part] = measured[part]()
    gates = judge(found)
    found["gates"] = [gate.to_json() for gate in gates]
    environment.keep(OUTPUT, found)
    show(found, gates)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
