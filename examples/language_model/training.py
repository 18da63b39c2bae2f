"""Trains the language model on the corpus, in a minute or two on two cores."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from schedule import Schedule
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from .model import LanguageModel, ModelConfig
from .muon import Muon


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Schedule):
    """How a `LanguageModel` is trained."""

    steps: int = 400
    batch_size: int = 8
    learning_rate: float = 5e-3
    matrix_learning_rate: float = 0.035
    weight_decay: float = 0.1
    gradient_norm: float = 1.0
    validation_every: int = 20  # each 20th document is kept apart


class Report(NamedTuple):
    """What a training run achieved on the text that was kept apart from it."""

    perplexity: float
    unigram_perplexity: float  # of a model that knows only how frequent each token is
    training_tokens: int
    validation_tokens: int
    seconds: float


def split_documents(documents: list[str], config: TrainingConfig) -> tuple[list[str], list[str]]:
    """Returns the documents to train on and those to validate with."""
    every = config.validation_every
    training = [document for index, document in enumerate(documents) if index % every]
    return training, documents[::every]


def train(
    model_config: ModelConfig, config: TrainingConfig, training: Tensor, validation: Tensor, progress: bool
) -> tuple[LanguageModel, Report]:
    """Trains a model from scratch.

    The result depends on nothing but the arguments, the machine's arithmetic and its number of threads.

    Args:
        model_config: the model's shape; sequences of its full context are trained on.
        config: how to train.
        training: the token ids to learn, int64 [tokens].
        validation: the token ids to judge with, int64 [tokens].
        progress: whether to show a progress bar on standard error.

    Returns:
        The model, in float32 and evaluation mode, and what it achieved.
    """
    began = time.perf_counter()
    autocast = has_bfloat16_instructions()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # of the CPU alone: other devices' numbers stay as they are
        model = LanguageModel(model_config)
        optimizers = _optimizers(model, config)
        batches = _batches(training, model_config.context_size, config)
        steps = tqdm(
            range(config.steps),
            desc="training the language model",
            unit="step",
            mininterval=1 if sys.stderr.isatty() else 15,  # a log keeps every line
            disable=not progress,
        )
        with steps:
            for step in steps:
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = group["initial_lr"] * config.rate(step)
                loss = _loss(model, next(batches), autocast)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_norm)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                steps.set_postfix(loss=f"{loss.item():.2f}", refresh=False)
    model.eval()
    report = Report(
        perplexity=_perplexity(model, validation, config, autocast),
        unigram_perplexity=unigram_perplexity(training, validation, model_config.vocab_size),
        training_tokens=config.steps * config.batch_size * model_config.context_size,
        validation_tokens=len(validation),
        seconds=time.perf_counter() - began,
    )
    return model, report


def unigram_perplexity(training: Tensor, validation: Tensor, vocab_size: int) -> float:
    """Returns the perplexity of token frequencies alone: what a language model must be clearly below."""
    counts = torch.bincount(training, minlength=vocab_size).double() + 1
    return math.exp(-(counts / counts.sum()).log()[validation].mean().item())


def has_bfloat16_instructions() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by instructions of its own; others emulate it, slowly.

    Asked of the CPU and not measured, so that two runs on one machine never compute in different ways.
    """
    return any(bool(present) for name, present in torch.cpu.get_capabilities().items() if name.endswith("bf16"))


def _optimizers(model: LanguageModel, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, because AdamW alone needs many more steps; AdamW for the rest."""
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    is_matrix = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in is_matrix]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=config.matrix_learning_rate, weight_decay=config.weight_decay),
        torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _batches(tokens: Tensor, length: int, config: TrainingConfig) -> Iterator[Tensor]:
    """Yields [batch_size, length + 1] sequences without end: each pass over the text cuts it at other places."""
    window = torch.arange(length + 1)
    while True:
        offset = int(torch.randint(length, ()))
        starts = offset + length * torch.randperm((len(tokens) - 1 - offset) // length)
        for chosen in starts.split(config.batch_size):
            if len(chosen) == config.batch_size:
                yield tokens[chosen[:, None] + window]


def _loss(model: LanguageModel, sequences: Tensor, autocast: bool) -> Tensor:
    precision = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    with precision:
        logits, _ = model(sequences[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten())


@torch.no_grad()
def _perplexity(model: LanguageModel, tokens: Tensor, config: TrainingConfig, autocast: bool) -> float:
    sequences = tokens.unfold(0, model.config.context_size + 1, model.config.context_size)
    losses = [_loss(model, batch, autocast) * len(batch) for batch in sequences.split(config.batch_size)]
    return math.exp(torch.stack(losses).sum().item() / len(sequences))
