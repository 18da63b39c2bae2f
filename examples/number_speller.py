"""A small encoder-decoder that spells numbers in English, trained here in half a minute: digits in, words out.

Each number is spelled in one of three ways, by chance, so that a trained model gives all three, and each about its
probability:

    405   four hundred and five  0.5     four hundred five  0.3     four zero five  0.2
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ascend_sample  # noqa: F401  # isort: skip  imports torch safely

import torch
from model_cache import cache_directory, load_or_make
from schedule import Schedule
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from ascend_sample.decoding import Decoder, DecoderConfig, EncoderDecoder

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
)
ONES += "eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
START, END, PADDING = 0, 1, 2
WORDS = ["<start>", "<end>", "<padding>", *ONES.split(), *TENS.split(), "hundred", "thousand", "and"]
WORD_IDS = {word: number for number, word in enumerate(WORDS)}
MOST_DIGITS = 4
DIGIT_PADDING = 10
WAYS = {"with and": 0.5, "without and": 0.3, "digit by digit": 0.2}


@dataclasses.dataclass(frozen=True)
class SpellerConfig(Schedule):
    """The model's shape and how it is trained."""

    hidden_size: int = 64
    heads: int = 4
    encoder_layers: int = 1
    decoder_layers: int = 2


def below_thousand(number: int, joint: list[str]) -> list[str]:
    """The words of 1 to 999."""
    hundreds, rest = divmod(number, 100)
    words = [WORDS[3 + hundreds], "hundred"] if hundreds else []
    if hundreds and rest:
        words += joint
    if rest >= 20:
        tens, rest = divmod(rest, 10)
        words.append(TENS.split()[tens - 2])
    return [*words, WORDS[3 + rest]] if rest else words


def spell(number: int, way: str) -> str:
    """A number from 0 to 9999 in words.

    Example:
        >>> [spell(2034, way) for way in WAYS]
        ['two thousand and thirty four', 'two thousand thirty four', 'two zero three four']
    """
    if way == "digit by digit" or number == 0:
        return " ".join(WORDS[3 + int(digit)] for digit in str(number))
    joint = ["and"] if way == "with and" else []
    thousands, rest = divmod(number, 1000)
    words = [*below_thousand(thousands, joint), "thousand"] if thousands else []
    if thousands and 0 < rest < 100:
        words += joint
    return " ".join(words + below_thousand(rest, joint))


def spellings(number: int) -> dict[str, float]:
    """All spellings of a number and their probabilities; some ways may agree."""
    found: dict[str, float] = {}
    for way, probability in WAYS.items():
        words = spell(number, way)
        found[words] = found.get(words, 0.0) + probability
    return found


def encode_numbers(numbers: Sequence[int]) -> dict[str, Tensor]:
    """What the encoder takes: digits int64 [batch, longest], the ones first, and their counts, int64 [batch]."""
    texts = [str(number)[::-1] for number in numbers]
    counts = torch.tensor([len(text) for text in texts])
    digits = torch.full((len(texts), int(counts.max())), DIGIT_PADDING)
    for row, text in enumerate(texts):
        digits[row, : len(text)] = torch.tensor([int(digit) for digit in text])
    return {"digits": digits, "counts": counts}


def decode_words(tokens: Sequence[int]) -> str:
    """The words of generated tokens, up to the end."""
    tokens = list(tokens)
    return " ".join(WORDS[token] for token in (tokens[: tokens.index(END)] if END in tokens else tokens))


class DigitEncoder(nn.Module):
    """torch's encoder over digits, whose place decides what they are worth."""

    def __init__(self, config: SpellerConfig) -> None:
        super().__init__()
        self.digits = nn.Embedding(DIGIT_PADDING + 1, config.hidden_size)
        self.places = nn.Embedding(MOST_DIGITS, config.hidden_size)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size, config.heads, 4 * config.hidden_size, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, config.encoder_layers, nn.LayerNorm(config.hidden_size), enable_nested_tensor=False
        )

    def forward(self, digits: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Digits int64 [batch, longest] and counts int64 [batch] to a memory, and the counts."""
        places = torch.arange(digits.shape[1], device=digits.device)
        vectors = self.digits(digits) + self.places(places)
        return self.layers(vectors, src_key_padding_mask=places >= counts[:, None]), counts


def make_model(config: SpellerConfig) -> EncoderDecoder:
    """An untrained model."""
    decoder = DecoderConfig(len(WORDS), config.hidden_size, config.heads, config.decoder_layers, initial_steps=16)
    return EncoderDecoder(DigitEncoder(config), Decoder(decoder))


def draw_number(generator: random.Random) -> int:
    """Small numbers are as frequent as large ones."""
    return generator.randrange(10 ** generator.randint(1, MOST_DIGITS))


def is_unseen(number: int) -> bool:
    """A tenth of the numbers, which the model is never trained on."""
    return hashlib.sha256(str(number).encode()).digest()[0] < 26


def draw_batch(generator: random.Random, size: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Numbers to train on: the encoder's inputs, what the decoder reads and what it should say, [size, longest]."""
    numbers: list[int] = []
    while len(numbers) < size:
        number = draw_number(generator)
        if not is_unseen(number):
            numbers.append(number)
    ways = generator.choices(list(WAYS), list(WAYS.values()), k=size)
    rows = [
        torch.tensor([START, *(WORD_IDS[word] for word in spell(number, way).split()), END])
        for number, way in zip(numbers, ways, strict=True)
    ]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
    return encode_numbers(numbers), tokens[:, :-1], tokens[:, 1:]


def train(config: SpellerConfig, progress: bool) -> EncoderDecoder:
    """Draws all at random, from the seed of the configuration."""
    generator = random.Random(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = make_model(config)
    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, config.rate)
    for _ in tqdm(range(config.steps), desc="training the speller", disable=None if progress else True):
        encoder, read, wanted = draw_batch(generator, config.batch_size)
        logits = model(read, **encoder)
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def load_or_train(
    config: SpellerConfig | None = None, progress: bool = True, directory: Path | None = None
) -> EncoderDecoder:
    """Returns the model in evaluation mode; trains it when it is not cached yet, and says so on standard error."""
    config = config or SpellerConfig()
    digest = hashlib.sha256(json.dumps([dataclasses.asdict(config), torch.__version__]).encode())
    digest.update(Path(__file__).read_bytes())
    path = (directory or cache_directory("number_speller")) / f"model-{digest.hexdigest()[:16]}.pt"

    def make() -> dict[str, object]:
        start = time.perf_counter()
        weights = train(config, progress).state_dict()
        return {"weights": weights, "seconds": time.perf_counter() - start}

    checkpoint = load_or_make(path, make)
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are not used
        model = make_model(config)
    model.load_state_dict(checkpoint["weights"])
    if progress:
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"speller: {count:,} parameters, trained in {checkpoint['seconds']:.0f} s", file=sys.stderr, flush=True)
    return model.eval()
