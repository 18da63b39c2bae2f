"""A small language model of real English, trained where it is used: a source of logits like a language model's.

`load_or_train()` returns the model and its tokenizer. The text is the documentation in Python's standard library, so
nothing is downloaded.
"""

from .cache import load_or_train
from .model import Cache, LanguageModel, ModelConfig
from .tokenizer import END_OF_TEXT, END_OF_TEXT_ID, decode_texts, encode_prompt

__all__ = [
    "END_OF_TEXT",
    "END_OF_TEXT_ID",
    "Cache",
    "LanguageModel",
    "ModelConfig",
    "decode_texts",
    "encode_prompt",
    "load_or_train",
]
