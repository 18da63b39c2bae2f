"""Continuous batching with the sampling layer: the text of a request does not depend on who else is in the batch.

    python examples/serve.py
    python examples/serve.py --tokens 48 --dtype float32 --device cpu

A small language model, trained here on the documentation in Python's standard library, serves requests with all kinds
of parameters, on a CPU and on an NPU, which hostcann emulates where there is none. Each request is served

- alone;
- with all others at once;
- with requests that join and leave while it runs, for there are fewer places than requests;
- with rows in another order before each step;
- by a step of sampling at fixed addresses, which an NPU replays as a graph;
- among strangers, whose prompts, parameters and seeds are others.

Its token ids must be the same each time and on each device. Exit status 1 says that they are not.

The sampling layer promises the same token for the same bits of logits. The model of this example computes one request
at a time so that its logits have the same bits in every batch.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import textwrap
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from demo import PROMPTS, TEXT_WIDTH, check_length, parse_with_devices, prepare, texts_must_agree  # isort: skip  imports torch safely

import torch
from language_model import END_OF_TEXT_ID, LanguageModel, decode_texts, encode_prompt, load_or_train
from serving_engine import Answer, Arrival, Engine, Grammar, Request
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from ascend_sample.parity.environment import is_emulated_npu
from ascend_sample.sampling import Logprobs, Sampler, SamplerOutput, SamplingBatch, SamplingParams, StaticStep

FEW_ROWS = 4
STEPS_BETWEEN_ARRIVALS = 3
LOGPROB_TOLERANCE = 1e-4  # logarithms may be rounded in other ways; ids may not differ at all
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

Answers = dict[str, Answer]


class Schedule(NamedTuple):
    """A way to serve the same requests."""

    name: str
    waves: list[list[Arrival]]  # each is served by an engine of its own
    most_rows: int
    shuffle: int | None = None
    is_static: bool = False  # sampled by a `StaticStep`


def make_requests(tokenizer: Tokenizer, vocab_size: int, most_tokens: int) -> list[Request]:
    """Requests with all kinds of parameters; the letter in front is shown where a row is."""
    (the,) = tokenizer.encode(" the").ids
    words = [
        token_id
        for token_id in range(tokenizer.get_vocab_size())
        if (text := tokenizer.decode([token_id])).isascii() and text.strip().isalpha() and text.islower()
    ]
    stop = [END_OF_TEXT_ID]
    wanted = (
        ("A greedy", SamplingParams(temperature=0)),
        ("B greedy, repetition penalty", SamplingParams(temperature=0, repetition_penalty=1.3)),
        ("C top-k, top-p, temperature", SamplingParams(top_k=40, top_p=0.9, temperature=0.8, seed=1)),
        ("D top-p alone", SamplingParams(top_p=0.9, seed=2)),
        ("E min-p", SamplingParams(min_p=0.05, temperature=0.9, seed=3)),
        ("F no filter", SamplingParams(seed=4)),
        ("G penalties", SamplingParams(presence_penalty=0.5, frequency_penalty=0.7, top_p=0.8, seed=5)),
        ("H bias against ' the'", SamplingParams(logit_bias={the: -30.0}, top_k=20, seed=6)),
        ("I min_tokens", SamplingParams(min_tokens=most_tokens, stop_token_ids=stop, temperature=0.6, seed=7)),
        ("J top-k above 1024", SamplingParams(top_k=2000, top_p=0.95, temperature=0.7, seed=8)),
        ("K logprobs", SamplingParams(logprobs=2, top_k=10, seed=9)),
        ("L words of small letters alone", SamplingParams(allowed_token_ids=words, min_p=0.02, seed=10)),
    )
    # Some ask for fewer tokens, so that they leave while others run.
    requests = [
        Request(
            name,
            encode_prompt(tokenizer, PROMPTS[index % len(PROMPTS)]),
            params,
            most_tokens if index % 3 else max(2, most_tokens // 2),
        )
        for index, (name, params) in enumerate(wanted)
    ]
    by_turns = SamplingParams(temperature=0.8, top_k=30, seed=11)
    grammar = words_by_turns(words, tokenizer.get_vocab_size(), vocab_size)
    prompt = encode_prompt(tokenizer, PROMPTS[0])
    return [*requests, Request("M a grammar: words by turns", prompt, by_turns, most_tokens, grammar)]


def words_by_turns(words: list[int], known: int, vocab_size: int) -> Grammar:
    """A grammar that allows words alone and anything but words, by turns, in the layout of xgrammar and llguidance."""
    is_word = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.int64)
    is_word[words] = 1
    is_other = 1 - is_word
    is_other[known:] = 0
    packed = [(bits.view(-1, 32) << torch.arange(32)).sum(1) for bits in (is_word, is_other)]
    turns = [words_of_32.to(torch.int32) for words_of_32 in packed]  # the bits of the sum stay
    return lambda token_ids: turns[len(token_ids) % 2]


def make_strangers(tokenizer: Tokenizer, most_tokens: int) -> list[Request]:
    """Requests that are nobody's concern: their texts are not compared."""
    wanted = (
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=0, logprobs=5),
        SamplingParams(top_k=3, frequency_penalty=-1.0),
        SamplingParams(top_p=0.5, suppress_token_ids=[END_OF_TEXT_ID], seed=2),
    )
    prompts = ("A class that", "Raised when", "The file", "See also the")
    return [
        Request(f"{place} stranger", encode_prompt(tokenizer, prompt), params, max(1, most_tokens - 5 * place))
        for place, (prompt, params) in enumerate(zip(prompts, wanted, strict=True))
    ]


def make_schedules(requests: list[Request], strangers: list[Request]) -> list[Schedule]:
    """Ways to serve the requests; the first is the one that all others are compared with."""
    mixed = list(requests)
    for place, stranger in enumerate(strangers):
        mixed.insert(4 * place, stranger)
    return [
        Schedule("alone", [[Arrival(0, request)] for request in requests], 1),
        Schedule("all at once", [[Arrival(0, request) for request in requests]], len(requests)),
        Schedule(
            "joining and leaving",
            [[Arrival(STEPS_BETWEEN_ARRIVALS * place, request) for place, request in enumerate(requests)]],
            FEW_ROWS,
        ),
        Schedule("shuffled", [[Arrival(0, request) for request in reversed(requests)]], len(requests), shuffle=1),
        Schedule("from a graph", [[Arrival(0, request) for request in requests]], len(requests), is_static=True),
        Schedule(
            "among strangers", [[Arrival(place, request) for place, request in enumerate(mixed)]], len(mixed) // 2
        ),
    ]


def profiled() -> AbstractContextManager[Any]:
    """Counts what is asked of an emulated NPU; no other device counts."""
    if not is_emulated_npu("npu"):
        return nullcontext()
    import hostcann

    return hostcann.profile()


class CountedSampler(Sampler):
    """A sampler that notes how many kernels each of its steps launches on the emulated NPU."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[int] = []

    def __call__(self, logits: Tensor, batch: SamplingBatch, **masks: Any) -> SamplerOutput:  # type: ignore[override]
        """Samples as `Sampler` does."""
        with profiled() as counted:
            output = super().__call__(logits, batch, **masks)
        assert counted is not None
        self.launches.append(counted.totals.launches)
        return output


class GraphSampler:
    """What an engine calls like a `Sampler`: a step with room for all that some requests ask for, replayed on an NPU.

    Args:
        requests: what may be in a batch.
        most_rows: how many of them at once.
        model: whose logits are sampled.
    """

    def __init__(self, requests: list[Request], most_rows: int, model: LanguageModel) -> None:
        self.launches: list[int] = []
        weights, params = model.embedding.weight, [request.params for request in requests]
        tokens = max(len(request.prompt_ids) + request.most_tokens for request in requests)
        self.step = StaticStep(
            most_rows,
            model.config.vocab_size,
            weights.dtype,
            weights.device,
            largest_k=max(1, *(one.top_k or 1 for one in params)),
            addends=max(len(one.logit_bias) + len(one.suppress_token_ids) + len(one.stop_token_ids) for one in params),
            history=tokens,
            bitmask=True,
            logprobs=max(one.logprobs or 0 for one in params),
        )
        self.replay = self.step.run
        if weights.device.type == "npu":
            self.step.run()  # what is looked up or allocated once is no part of the graph
            torch.npu.synchronize()
            graph = torch.npu.NPUGraph()
            with torch.npu.graph(graph):
                self.step.run()
            self.replay = graph.replay

    def __call__(self, logits: Tensor, batch: SamplingBatch, **masks: Any) -> SamplerOutput:
        """Samples as `Sampler` does; a whole engine would let its model write the step's logits."""
        with profiled() as counted:
            self.step.logits[: len(batch)].copy_(logits)
            self.step.prepare(batch, **masks)
            self.replay()
        if counted is not None:
            self.launches.append(counted.totals.launches)
        token_ids = self.step.token_ids[: len(batch)].clone()
        batch.append(token_ids)
        rows, found = list(range(len(batch))), self.step.logprobs
        asking = [row for row in rows if batch.host.logprobs[row] >= 0]
        logprobs = None if found is None or not asking else Logprobs(asking, *(value[asking] for value in found[1:]))
        return SamplerOutput(token_ids, self.step.status[: len(batch)], logprobs)


class Served(NamedTuple):
    """What became of a schedule."""

    answers: Answers  # by the request's name
    timeline: list[list[str]]  # of each step, the name of the request in each row
    launches: list[int]  # of each step's sampling, on the emulated NPU; elsewhere nothing counts them


def serve(model: LanguageModel, schedule: Schedule, progress: tqdm[None]) -> Served:
    """Serves the requests in one way, with the device and the type of the model."""
    is_counted = is_emulated_npu(model.embedding.weight.device.type)
    sampler: Sampler | GraphSampler = CountedSampler() if is_counted else Sampler()
    if schedule.is_static:
        requests = [arrival.request for wave in schedule.waves for arrival in wave]
        sampler = GraphSampler(requests, schedule.most_rows, model)
    is_counting = is_counted and isinstance(sampler, CountedSampler | GraphSampler)
    served = Served({}, [], sampler.launches if is_counting else [])
    for wave in schedule.waves:
        engine = Engine(model, sampler, schedule.most_rows, schedule.shuffle)
        for answer in engine.serve(wave, progress.update):
            served.answers[answer.request.name] = answer
        served.timeline.extend(engine.timeline)
    return served


def routes_of(model: LanguageModel, requests: list[Request]) -> Counter[str]:
    """How many of the requests take which route of the sampling layer."""
    engine = Engine(model, Sampler(), len(requests))
    for request in requests:
        engine.batch.add(request.params, request.prompt_ids)
    explained = Sampler().explain(engine.batch, model.embedding.weight.dtype)
    return Counter(row.route.value for row in explained)


@torch.inference_mode()
def rows_equal_when_batched(model: LanguageModel, requests: list[Request]) -> int:
    """How many rows of logits have the same bits whether the model computes all prompts at once or one at a time."""
    shortest = min(len(request.prompt_ids) for request in requests)
    prompts = torch.tensor(
        [request.prompt_ids[:shortest] for request in requests], device=model.embedding.weight.device
    )
    together, _ = model(prompts)
    return sum(torch.equal(model(prompt[None])[0][0], row) for prompt, row in zip(prompts, together, strict=True))


def difference(answer: Answer, expected: Answer, logits_must_agree: bool) -> str | None:
    """Says how an answer differs from the one that it must equal; None where it does not, or where it may.

    Args:
        answer: from any schedule and device.
        expected: of the same request.
        logits_must_agree: whether both were computed with the same routines. Where they were not, the sampling layer
            answers for a token only if all logits up to it are equal bit for bit.
    """
    pairs = zip(answer.token_ids, expected.token_ids, strict=False)
    other = next((place for place, (got, wanted) in enumerate(pairs) if got != wanted), None)
    if other is not None:
        same_logits = answer.logits_digests[: other + 1] == expected.logits_digests[: other + 1]
        if not (same_logits or logits_must_agree):
            return None
        return f"another token {other} of {len(expected.token_ids)}, from {'equal' if same_logits else 'other'} logits"
    if len(answer.token_ids) != len(expected.token_ids):
        return f"{len(answer.token_ids)} tokens instead of {len(expected.token_ids)}"
    if any(status != 0 for status in answer.statuses):
        return f"statuses {answer.statuses}"
    if len(answer.logprobs) != len(expected.logprobs):
        return f"{len(answer.logprobs)} logprobs instead of {len(expected.logprobs)}"
    for (got, _), (wanted, _) in zip(answer.logprobs, expected.logprobs, strict=True):
        if not math.isclose(got, wanted, abs_tol=LOGPROB_TOLERANCE):
            return f"a logprob of {got} instead of {wanted}"
    return None


def compare(answers: Answers, expected: Answers, logits_must_agree: bool) -> bool:
    """Prints how the answers of a schedule agree with those that they must equal; returns whether they do."""
    found = {name: difference(answers[name], one, logits_must_agree) for name, one in expected.items()}
    same = sum(answers[name].token_ids == one.token_ids for name, one in expected.items())
    print(f"{same} of {len(expected)} texts are the same, token by token")
    for name, text in found.items():
        if text is not None:
            print(f"    DIFFERS: {name}: {text}")
    return not any(found.values())


def show_texts(tokenizer: Tokenizer, answers: Answers) -> None:
    """Prints what each request got."""
    print("\nTexts; where the model ended one stands a bar (|).")
    for name, answer in answers.items():
        texts = decode_texts(tokenizer, answer.request.prompt_ids + answer.token_ids)
        text = " | ".join(" ".join(text.split()) for text in texts)
        print(textwrap.fill(text, TEXT_WIDTH, initial_indent=f"  {name}: ", subsequent_indent="      "))
        if answer.logprobs:
            numbers = ", ".join(f"{logprob:.2f} ({rank})" for logprob, rank in answer.logprobs[:6])
            print(f"      logprobs of its tokens, with their ranks: {numbers}, ...")


def show_launches(launches: list[int]) -> None:
    """Prints what a step of sampling launches: more where requests have joined, left or moved, and are planned anew."""
    if launches:
        print(f"    sampling launches {statistics.median(launches):g} kernels a step, {max(launches)} at most")


def show_timeline(timeline: list[list[str]]) -> None:
    """Prints who had which row of the batch in each step: the last row moves where one leaves."""
    print("\nRows of the batch while requests join and leave, step by step:")
    for place in range(max(map(len, timeline))):
        print("  row", place, "".join(names[place][0] if place < len(names) else "." for names in timeline))


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Serve requests alone and in batches, and compare their texts.")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the model and its logits")
    return parse_with_devices(parser, 32, "how many tokens a request gets at most", least=2)


def main() -> int:
    """Serves the requests in each way on each device; returns the exit status."""
    arguments = parse_arguments()
    devices: list[str] = arguments.device
    prepare(devices)
    model, tokenizer = load_or_train()
    requests = make_requests(tokenizer, model.config.vocab_size, arguments.tokens)
    check_length(model, max(len(request.prompt_ids) for request in requests) + arguments.tokens)
    schedules = make_schedules(requests, make_strangers(tokenizer, arguments.tokens))
    expected: Answers = {}
    agree = True
    for device in devices:
        model = model.to(device=device, dtype=DTYPES[arguments.dtype])
        counts = ", ".join(f"{count} by {route}" for route, count in routes_of(model, requests).most_common())
        emulated = ", EMULATED" if is_emulated_npu(device) else ""
        print(f"\n{device}{emulated}, {arguments.dtype} logits; routes of the requests: {counts}", flush=True)
        equal = rows_equal_when_batched(model, requests)
        print(f"  the model, given all prompts at once: {equal} of {len(requests)} rows have the bits they have alone")
        logits_must_agree = texts_must_agree(devices[0], device)
        for schedule in schedules:
            most_tokens = sum(arrival.request.most_tokens for wave in schedule.waves for arrival in wave)
            with tqdm(
                total=most_tokens, desc=f"{device} {schedule.name}", unit="token", leave=False, disable=None
            ) as progress:
                served = serve(model, schedule, progress)
            print(f"  {schedule.name:<20}", end="")
            if not expected:
                expected = served.answers
                print(f"{len(expected)} texts, with which all others are compared")
                show_launches(served.launches)
                continue
            agree &= compare(served.answers, expected, logits_must_agree)
            show_launches(served.launches)
            if schedule.most_rows == FEW_ROWS and device == devices[-1]:
                show_timeline(served.timeline)
    show_texts(tokenizer, expected)
    print("\nThe texts are THE SAME in every batch and on every device." if agree else "\nThe texts DIFFER.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
