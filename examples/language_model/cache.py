"""Keeps the trained model and its vocabulary in one file, whose name says what they were made from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from model_cache import cache_directory, load_or_make
from tokenizers import Tokenizer

from . import corpus
from .model import LanguageModel, ModelConfig
from .tokenizer import encode_documents, train_tokenizer
from .training import Report, TrainingConfig, split_documents, train

# The modules that decide what a cached file holds: with any of them changed, it would be stale.
DECIDING_MODULES = ("corpus.py", "model.py", "muon.py", "tokenizer.py", "training.py")


STEPS_VARIABLE = "LANGUAGE_MODEL_STEPS"
"""Trains for so many steps instead, where the texts do not matter: in tests."""


def cache_key(model_config: ModelConfig, training_config: TrainingConfig) -> str:
    """Returns a hash of all that the trained model depends on: the text, the code and the configuration."""
    digest = hashlib.sha256(corpus.fingerprint().encode())
    configuration = [dataclasses.asdict(model_config), dataclasses.asdict(training_config)]
    digest.update(json.dumps([configuration, torch.__version__, sys.version_info[:2]]).encode())
    for name in DECIDING_MODULES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]


def load_or_train(
    progress: bool = True,
    retrain: bool = False,
    directory: Path | None = None,
    model_config: ModelConfig | None = None,
    training_config: TrainingConfig | None = None,
) -> tuple[LanguageModel, Tokenizer]:
    """Returns the language model and its tokenizer; trains them when they are not cached yet.

    Args:
        progress: whether to say what is done and show a progress bar, on standard error.
        retrain: whether to train although a cached model exists.
        directory: where to keep the file; `cache_directory("language_model")` by default.
        model_config: the model's shape.
        training_config: how to train; as usual by default, for `LANGUAGE_MODEL_STEPS` steps where that is set.

    Returns:
        The model, in float32 on the CPU and in evaluation mode, and the tokenizer.

    Example:
        >>> model, tokenizer = load_or_train()
        >>> logits, _ = model(torch.tensor([encode_prompt(tokenizer, "Return the")]))
    """
    model_config = model_config or ModelConfig()
    steps = int(os.environ.get(STEPS_VARIABLE, TrainingConfig.steps))
    training_config = training_config or TrainingConfig(steps=steps)
    directory = directory or cache_directory("language_model")
    path = directory / f"model-{cache_key(model_config, training_config)}.pt"
    checkpoint = load_or_make(path, lambda: _train_checkpoint(model_config, training_config, progress), retrain)
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are not used
        model = LanguageModel(model_config)
    model.load_state_dict(checkpoint["weights"])
    if progress:
        _print_report(model, Report(**checkpoint["report"]))
    return model.eval(), Tokenizer.from_str(checkpoint["tokenizer"])


def _train_checkpoint(model_config: ModelConfig, training_config: TrainingConfig, progress: bool) -> dict[str, Any]:
    if progress:
        print("language model: collecting the standard library's documentation", file=sys.stderr)
    training_documents, validation_documents = split_documents(corpus.collect_documents(), training_config)
    tokenizer = train_tokenizer(training_documents, model_config.vocab_size)
    model, report = train(
        model_config,
        training_config,
        torch.tensor(encode_documents(tokenizer, training_documents)),
        torch.tensor(encode_documents(tokenizer, validation_documents)),
        progress,
    )
    return {"weights": model.state_dict(), "tokenizer": tokenizer.to_str(), "report": report._asdict()}


def _print_report(model: LanguageModel, report: Report) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"language model: {parameters / 1e6:.1f} M parameters, trained on {report.training_tokens:,} tokens in "
        f"{report.seconds:.0f} s\nits perplexity on {report.validation_tokens:,} tokens of unseen text is "
        f"{report.perplexity:.0f}; token frequencies alone would give {report.unigram_perplexity:.0f}",
        file=sys.stderr,
        flush=True,
    )
