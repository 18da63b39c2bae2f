"""Generates text with `top_k_top_p_sample` on a CPU and on an NPU, and compares the two, token by token.

    python examples/demo.py
    python examples/demo.py --prompts "The iterator" "Raised when" --tokens 64 --seed 7

A small language model, trained here on the documentation in Python's standard library, continues each prompt on each
device with the same k, p and exponential noise q. Without an NPU the device `npu:0` is emulated by hostcann, which
returns what the operator's documentation describes and says nothing about speed.

Two things are compared, and exit status 1 says that one of them failed:

- the operator: the logits that the first device's model produced are given to every device's operator. The same
  numbers go in, so the same ids must come out, on every kind of device;
- the texts, for which each device computes its own logits. They must be equal where the NPU is emulated, because both
  sides then multiply matrices with the same routines. Matrix products of a real NPU round in other ways, and after one
  other token a text goes its own way: there, the number of equal tokens is only reported.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from ascend_sample import top_k_top_p_sample, which_backend  # isort: skip  the first to import torch, safely

import torch
from language_model import END_OF_TEXT_ID, LanguageModel, decode_texts, encode_prompt, load_or_train
from torch import Tensor

from ascend_sample._options import whole_number
from ascend_sample.parity.environment import is_emulated_npu, obstacle_of

PROGRAM = Path(sys.argv[0]).stem  # this one, or an example that has its devices from here
LOGITS_TYPE = torch.bfloat16
TEXT_WIDTH = 100
NO_TOP_K = -1
NO_TOP_P = 1.0
# Rows take these in turn. With top-p alone the operator draws nearly uniformly from the nucleus, so p is small there.
SETTINGS = ((40, 0.9), (12, NO_TOP_P), (NO_TOP_K, 0.3), (NO_TOP_K, NO_TOP_P))
PROMPTS = ("Return a list of all the", "The default value is", "This method is called when the", "If the argument is")


class Generation(NamedTuple):
    """What one device generated."""

    token_ids: Tensor  # int64 [batch, prompt and new tokens], on the CPU
    logits: list[Tensor]  # of each step, [batch, vocab_size], on the CPU
    new_tokens: int
    seconds: float


class Request(NamedTuple):
    """What every device is given, on the CPU."""

    prompts: list[list[int]]
    k: Tensor  # int32 [batch]
    p: Tensor  # float32 [batch]
    steps: int
    seed: int
    vocab_size: int

    def noise(self) -> Iterator[Tensor]:
        """Yields q for each step, float32 [batch, vocab_size], drawn on the CPU: the same for every device."""
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.steps):
            yield torch.empty(len(self.prompts), self.vocab_size).exponential_(generator=generator)


@torch.inference_mode()
def generate(model: LanguageModel, device: str, request: Request) -> Generation:
    """Continues every prompt on one device, with a model that is there.

    The prompts start together. Once the shortest is read, each step feeds one token to every row: the next one of its
    prompt while there is one, then the one that was sampled. So no row needs padding.
    """
    shortest = min(map(len, request.prompts))
    longest = max(map(len, request.prompts))
    prompts = torch.tensor([prompt + [END_OF_TEXT_ID] * (longest - len(prompt)) for prompt in request.prompts])
    is_prompt = (torch.arange(longest) < torch.tensor([[len(prompt)] for prompt in request.prompts])).to(device)
    prompts, k, p = prompts.to(device), request.k.to(device), request.p.to(device)
    token_ids = prompts[:, :shortest]
    logits_of_steps = []
    began = time.perf_counter()
    new, cache = token_ids, None
    for noise in request.noise():
        logits, cache = model(new, cache)
        logits = logits[:, -1]
        logits_of_steps.append(logits)
        sampled = top_k_top_p_sample(logits, k, p, noise.to(device)).logits_select_idx
        position = token_ids.shape[1]
        if position < longest:
            sampled = torch.where(is_prompt[:, position], prompts[:, position], sampled)
        new = sampled[:, None]
        token_ids = torch.cat((token_ids, new), dim=1)
    token_ids = token_ids.cpu()  # waits for the device
    seconds = time.perf_counter() - began
    return Generation(
        token_ids=token_ids,
        logits=[logits.cpu() for logits in logits_of_steps],
        new_tokens=token_ids.numel() - sum(map(len, request.prompts)),
        seconds=seconds,
    )


@torch.inference_mode()
def sample_logits(logits_of_steps: list[Tensor], device: str, request: Request) -> Tensor:
    """Samples from given logits on one device; returns the ids, int64 [batch, steps], on the CPU."""
    k, p = request.k.to(device), request.p.to(device)
    ids = [
        top_k_top_p_sample(logits.to(device), k, p, noise.to(device)).logits_select_idx
        for logits, noise in zip(logits_of_steps, request.noise(), strict=True)
    ]
    return torch.stack(ids, dim=1).cpu()


def cann_is_installed() -> bool:
    """Whether the dynamic linker finds a CANN, a real one or hostcann's."""
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return False
    return True


def prepare(devices: list[str]) -> None:
    """Sees that torch can use all devices; makes `npu` available where it is one of them, and prints what it is.

    Raises:
        SystemExit: torch cannot use a device, or torch_npu is not installed.
        RuntimeError: there is no CANN, and hostcann was not built.
    """
    if any(device.startswith("npu") for device in devices):
        prepare_npu()
    for device in devices:
        if obstacle := obstacle_of(device, PROGRAM):
            refuse(obstacle)


def prepare_npu() -> None:
    """See `prepare`."""
    try:
        importlib.metadata.version("torch_npu")  # ascend_sample hides the module itself as long as there is no CANN
    except importlib.metadata.PackageNotFoundError:
        refuse(f"{PROGRAM}: --device npu needs torch_npu. Install it (torch_npu==2.13.0), or pass --device cpu.")
    if not cann_is_installed():
        try:
            import hostcann
        except ModuleNotFoundError:
            refuse(f"{PROGRAM}: --device npu needs CANN or hostcann. Run pip install ./hostcann, or pass --device cpu.")
        hostcann.activate()
    import torch_npu  # registers the device

    if is_emulated_npu("npu"):
        description = (
            "The NPU is EMULATED on this host by hostcann: there is no Ascend hardware behind npu:0. The real "
            "torch_npu runs on it, and the results are those that the operator's documentation describes; the speed "
            "says nothing about an NPU."
        )
    else:
        description = f"The NPU is a real device: {torch_npu.npu.get_device_name(0)}."
    print(textwrap.fill(description, TEXT_WIDTH), end="\n\n", flush=True)


def refuse(message: str) -> NoReturn:
    """Ends the program because of what it was asked for: with status 2, since 1 means that devices differ."""
    print(message, file=sys.stderr)
    raise SystemExit(2)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Generate text on a CPU and an NPU and compare it, token by token.")
    parser.add_argument("--prompts", nargs="+", default=PROMPTS, help="beginnings of texts")
    parser.add_argument("--seed", type=whole_number(0, 2**64 - 1), default=0, help="of the noise that draws the tokens")
    parser.add_argument("--retrain", action="store_true", help="train the language model although it is cached")
    return parse_with_devices(parser, 48, "how many tokens to add to the longest prompt")


def parse_with_devices(parser: argparse.ArgumentParser, tokens: int, text: str, least: int = 1) -> argparse.Namespace:
    """Reads a command line that has `--tokens`, by default so many, and `--device` as well.

    Raises:
        SystemExit: `--tokens` is below the least.
    """
    parser.add_argument("--tokens", type=int, default=tokens, help=text)
    parser.add_argument("--device", nargs="+", default=["cpu", "npu:0"], help="all are compared with the first")
    arguments = parser.parse_args()
    if arguments.tokens < least:
        refuse(f"{PROGRAM}: --tokens must be >= {least}, got {arguments.tokens}. Leave it out for {tokens}.")
    return arguments


def check_length(model: LanguageModel, length: int) -> None:
    """Raises SystemExit where a text of so many tokens would be longer than the model's context."""
    if length > model.config.context_size:
        refuse(
            f"{PROGRAM}: the longest prompt and --tokens must fit the context of {model.config.context_size} tokens, "
            f"got {length}. Ask for fewer."
        )


def make_request(arguments: argparse.Namespace, model: LanguageModel, prompts: list[list[int]]) -> Request:
    """Gives each prompt its k and p.

    Raises:
        SystemExit: the text would become longer than the model's context.
    """
    length = max(map(len, prompts)) + arguments.tokens
    check_length(model, length)
    settings = [SETTINGS[row % len(SETTINGS)] for row in range(len(prompts))]
    return Request(
        prompts=prompts,
        k=torch.tensor([k for k, _ in settings], dtype=torch.int32),
        p=torch.tensor([p for _, p in settings]),
        steps=length - min(map(len, prompts)),
        seed=arguments.seed,
        vocab_size=model.config.vocab_size,
    )


def describe_setting(k: int, p: float) -> str:
    """Says in words what `k` and `p` do to a row."""
    top_k = f"top-k {k}" if k != NO_TOP_K else "no top-k"
    top_p = f"top-p {p:.2g}" if p != NO_TOP_P else "no top-p"
    return f"{top_k}, {top_p}"


def equal_tokens(left: Generation, right: Generation, prompts: list[list[int]]) -> int:
    """Counts, over all rows, the new tokens that are equal before the first of the row that is not."""
    equal_so_far = (left.token_ids == right.token_ids).long().cumprod(dim=1)
    return int(equal_so_far.sum()) - sum(map(len, prompts))


def main() -> int:
    """Runs the demo; returns the exit status."""
    arguments = parse_arguments()
    devices: list[str] = arguments.device
    prepare(devices)
    model, tokenizer = load_or_train(retrain=arguments.retrain)
    request = make_request(arguments, model, [encode_prompt(tokenizer, prompt) for prompt in arguments.prompts])
    generations = {}
    for device in devices:
        model = model.to(device=device, dtype=LOGITS_TYPE)
        generate(model, device, request._replace(steps=2))  # the first calls on a device pay for its start
        generations[device] = generate(model, device, request)

    print("\nTexts; where the model ended one and began another stands a bar (|).")
    for row, prompt in enumerate(arguments.prompts):
        print(f"\n[{row}] {describe_setting(int(request.k[row]), float(request.p[row]))}: {prompt!r}")
        for device, generation in generations.items():
            texts = decode_texts(tokenizer, generation.token_ids[row].tolist())
            text = " | ".join(" ".join(text.split()) for text in texts)
            print(textwrap.fill(text, TEXT_WIDTH, initial_indent=f"  {device:<6} ", subsequent_indent=" " * 9))

    print(f"\nspeed, model and sampling, {len(request.prompts)} rows of {LOGITS_TYPE} logits [{request.vocab_size}]:")
    for device, generation in generations.items():
        emulated = " (EMULATED: not a measure of any NPU)" if is_emulated_npu(device) else ""
        backend = which_backend(torch.empty(0, dtype=LOGITS_TYPE, device=device)).backend
        rate = generation.new_tokens / generation.seconds
        print(f"  {device:<6} {rate:7.0f} tokens/s, sampled by the {backend} backend{emulated}")
    agree = [compare(devices[0], device, generations, request) for device in devices[1:]]
    return 0 if all(agree) else 1


def compare(first: str, second: str, generations: dict[str, Generation], request: Request) -> bool:
    """Prints how two devices agree; returns whether they do as far as they must."""
    print(f"\nagreement of {second} with {first}:")
    logits = generations[first].logits
    equal = sample_logits(logits, first, request) == sample_logits(logits, second, request)
    operator_agrees = bool(equal.all())
    print(f"  operator, given the same logits: {int(equal.sum())} of {equal.numel()} ids are equal", end="")
    print("" if operator_agrees else ". MISMATCH: `python -m ascend_sample verify` tells what kind it is")

    bitwise = all(torch.equal(a, b) for a, b in zip(logits, generations[second].logits, strict=True))
    same, total = equal_tokens(generations[first], generations[second], request.prompts), generations[first].new_tokens
    print(f"  texts, each from the device's own logits: {same} of {total} tokens are equal ", end="")
    print(f"(the logits are {'equal bit for bit' if bitwise else 'not equal in every bit'})")
    texts_agree = same == total
    if texts_agree:
        print("  The tokens MATCH.")
    elif texts_must_agree(first, second):
        print("  The tokens DO NOT MATCH.")
    else:
        print("  The texts part where rounding in the devices' matrix products changed a token, which is no error.")
    return operator_agrees and (texts_agree or not texts_must_agree(first, second))


def texts_must_agree(first: str, second: str) -> bool:
    """Whether both devices compute logits with the routines of this host's CPU."""
    on_this_host = {"cpu", "npu"} if is_emulated_npu("npu") else {"cpu"}
    return {first.partition(":")[0], second.partition(":")[0]} <= on_this_host


if __name__ == "__main__":
    sys.exit(main())
