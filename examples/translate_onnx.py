"""From a trained model to ONNX and back: the same beam search drives torch and onnxruntime, with the same n-best.

    python examples/translate_onnx.py
    python examples/translate_onnx.py 7 405 1999 --beams 8 --nbest 4 --directory speller

A small encoder-decoder, trained here, translates numbers into words; each number has up to three translations. It is
exported as two ONNX graphs: the encoder, which ends with the keys and values of its memory, and a step of the decoder,
which takes the rows of its cache by the beam index inside the graph. Then the n-best lists of both are compared, those
of the numbers that are shown and those of numbers that the model has never seen. Exit status 1 says that they differ.

Needs the extra: pip install 'ascend_sample[onnx]'
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from number_speller import (  # isort: skip  imports torch safely
    END,
    MOST_DIGITS,
    START,
    SpellerConfig,
    decode_words,
    draw_number,
    encode_numbers,
    is_unseen,
    load_or_train,
    spellings,
)

import torch

from ascend_sample._options import whole_number
from ascend_sample.decoding import StepModel, beam_search
from ascend_sample.decoding.onnx import OnnxModel, export_onnx

NUMBERS = [405, 1999, 2034]
MOST_WORDS = 16
BATCHES = (9, 1, 4, 7)  # what is compared comes in batches of these sizes in turn
TOLERANCE = 1e-4


class Hypothesis(NamedTuple):
    """One of the n best."""

    words: str
    tokens: list[int]
    score: float


def translate(model: StepModel, numbers: Sequence[int], beams: int, nbest: int) -> list[list[Hypothesis]]:
    """The n best of each number."""
    found = beam_search(
        model,
        torch.full((len(numbers), 1), START),
        encoder=encode_numbers(numbers),
        max_new_tokens=MOST_WORDS,
        num_beams=beams,
        num_return_sequences=nbest,
        finished="in_beam",
        eos_token_id=END,
    )
    rows = zip(found.to_lists(), found.sequences_scores.tolist(), strict=True)
    hypotheses = [Hypothesis(decode_words(tokens), tokens, score) for tokens, score in rows]
    return [hypotheses[row : row + nbest] for row in range(0, len(hypotheses), nbest)]


def export(model: torch.nn.Module, directory: Path) -> None:
    """Write the graphs, for numbers of any count and length."""
    start = time.perf_counter()
    export_onnx(model, directory, encode_numbers([123, 45]), {"digits": {1: "digits"}})
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in sorted(directory.iterdir()))
    print(f"exported in {time.perf_counter() - start:.0f} s: {sizes}", file=sys.stderr, flush=True)


def agree(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    """Whether two lists have the same tokens in the same order, and nearly the same scores."""
    return [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other] and all(
        abs(mine.score - theirs.score) <= TOLERANCE for mine, theirs in zip(one, other, strict=True)
    )


def show(numbers: Sequence[int], by_torch: list[list[Hypothesis]], by_onnx: list[list[Hypothesis]]) -> None:
    """Both lists of each number, and how often the training data has each translation."""
    for number, mine, theirs in zip(numbers, by_torch, by_onnx, strict=True):
        print(f"\n{number}{'':>{44 - len(str(number))}}   torch  onnxruntime  probability  in the data")
        for one, other in zip(mine, theirs, strict=True):
            words = one.words if one.words == other.words else f"{one.words} / {other.words}"
            share = spellings(number).get(one.words)
            probability = torch.tensor(one.score).exp()
            print(
                f"  {words:42} {one.score:8.4f}  {other.score:11.4f}  {probability:11.3f}  "
                f"{'-' if share is None else share}"
            )


def unseen_numbers(count: int) -> list[int]:
    """Numbers that were kept from the training."""
    generator = random.Random(1)
    found: list[int] = []
    while len(found) < count:
        number = draw_number(generator)
        if is_unseen(number):
            found.append(number)
    return found


def compare(model: StepModel, runtime: StepModel, count: int, beams: int, nbest: int) -> bool:
    """Whether both give the same lists for many numbers, which is printed, too."""
    numbers = unseen_numbers(count)
    same = right = 0
    batch = 0
    while numbers:
        size = BATCHES[batch % len(BATCHES)]
        now, numbers = numbers[:size], numbers[size:]
        for number, mine, theirs in zip(
            now, translate(model, now, beams, nbest), translate(runtime, now, beams, nbest), strict=True
        ):
            same += agree(mine, theirs)
            right += mine[0].words in spellings(number)
        batch += 1
    print(f"\n{count} numbers that the model has not seen, in {batch} batches of 1 to {max(BATCHES)}:")
    print(f"  the same {nbest} best, in the same order, by torch and by onnxruntime: {same}")
    print(f"  the best one is right: {right}")
    return same == count


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers, count = whole_number(0, 10**MOST_DIGITS - 1), whole_number(1)
    parser.add_argument("numbers", nargs="*", type=numbers, default=NUMBERS, help=f"default: {NUMBERS}")
    parser.add_argument("--beams", type=count, default=6)
    parser.add_argument("--nbest", type=count, default=3)
    parser.add_argument("--compare", type=count, default=200, metavar="COUNT", help="numbers to compare; default: 200")
    parser.add_argument("--directory", type=Path, help="where to keep the graphs; default: nowhere")
    parser.add_argument("--steps", type=count, default=SpellerConfig().steps, help="of the training")
    arguments = parser.parse_args()
    if arguments.nbest > arguments.beams:
        parser.error(f"--nbest must be at most --beams ({arguments.beams}), got {arguments.nbest}.")
    try:
        if arguments.directory:
            arguments.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--directory must be a folder, or be made one, got {error}.")
    return arguments


def main() -> int:
    """Train, export, translate, compare."""
    arguments = parse_arguments()
    torch.set_num_threads(1)  # the operators are too small to share
    model = load_or_train(SpellerConfig(steps=arguments.steps))
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        export(model, directory)
        runtime = OnnxModel(directory, threads=1)
        lists = [translate(either, arguments.numbers, arguments.beams, arguments.nbest) for either in (model, runtime)]
        show(arguments.numbers, *lists)
        shown_agree = all(map(agree, *lists))
        all_agree = compare(model, runtime, arguments.compare, arguments.beams, arguments.nbest)
    return 0 if shown_agree and all_agree else 1


if __name__ == "__main__":
    sys.exit(main())
