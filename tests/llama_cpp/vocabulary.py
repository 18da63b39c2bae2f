"""A vocabulary of single letters for llama.cpp, which reads DRY's breakers as texts."""

from __future__ import annotations

import string
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import llama_cpp

SPECIAL: Final = ("<unk>", "<s>", "</s>")
LETTERS: Final = string.ascii_uppercase + string.digits
"""None of them occurs in `SPECIAL`."""
FIRST: Final = len(SPECIAL)
"""The id of the first letter."""
SIZE: Final = FIRST + len(LETTERS)

# The types of values and of tokens in a GGUF file: docs/gguf.md of ggml.
INT32, FLOAT32, BOOL, STRING, ARRAY = 5, 6, 7, 8, 9
NORMAL, UNKNOWN, CONTROL = 1, 2, 3
GGUF_VERSION: Final = 3


@llama_cpp.llama_log_callback
def _no_log(level: int, text: bytes, data: object) -> None:
    """Takes what llama.cpp says about the file."""


class Vocabulary:
    """A vocabulary without a model: id `FIRST` + n is the n-th letter."""

    def __init__(self, folder: Path) -> None:
        path = folder / "letters.gguf"
        path.write_bytes(_gguf())
        llama_cpp.llama_log_set(_no_log, None)
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self._model, f"llama.cpp cannot read {path}"
        self.pointer = llama_cpp.llama_model_get_vocab(self._model)

    def __enter__(self) -> Vocabulary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_model_free(self._model)

    def text(self, ids: Sequence[int]) -> bytes:
        """The text of some letters."""
        return "".join(LETTERS[token - FIRST] for token in ids).encode()


def _gguf() -> bytes:
    tokens = [*SPECIAL, *LETTERS]
    types = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * len(LETTERS)]
    pairs = [
        _key("general.architecture", STRING) + _string("llama"),
        _key("tokenizer.ggml.model", STRING) + _string("llama"),
        _key("tokenizer.ggml.tokens", ARRAY) + struct.pack("<IQ", STRING, SIZE) + b"".join(map(_string, tokens)),
        _key("tokenizer.ggml.scores", ARRAY) + struct.pack(f"<IQ{SIZE}f", FLOAT32, SIZE, *[0.0] * SIZE),
        _key("tokenizer.ggml.token_type", ARRAY) + struct.pack(f"<IQ{SIZE}i", INT32, SIZE, *types),
        _key("tokenizer.ggml.add_space_prefix", BOOL) + struct.pack("<?", False),
    ]
    no_tensors = 0
    return b"GGUF" + struct.pack("<IQQ", GGUF_VERSION, no_tensors, len(pairs)) + b"".join(pairs)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _key(name: str, kind: int) -> bytes:
    return _string(name) + struct.pack("<I", kind)
