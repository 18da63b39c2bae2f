"""The export and the runtime agree on what the two graphs are called, take and return."""

from __future__ import annotations

import importlib
from typing import Any, Final

ENCODER_FILE: Final = "encoder.onnx"
DECODER_FILE: Final = "decoder.onnx"
DECODER_INPUTS: Final = (
    "tokens",
    "lengths",
    "self_keys",
    "self_values",
    "beam_index",
    "cross_keys",
    "cross_values",
    "memory_lengths",
    "memory_index",
)
DECODER_OUTPUTS: Final = ("logits", "new_self_keys", "new_self_values")
MEMORY_OUTPUTS: Final = ("cross_keys", "cross_values", "memory_lengths")
MAX_POSITIONS: Final = "max_positions"
"""The name under which the decoder's file says how many tokens a row may have, where a table of positions ends."""
ENCODER_FEATURES: Final = "encoder_input_features"
"""The name that `EncoderDecoderModel` gives the input of Whisper's encoder."""


def require(module: str) -> Any:
    """Imports a module that the extra installs.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = "Install the extra: pip install 'ascend_sample[onnx]'"
        raise ImportError(f"decoding.onnx: {module} must be installed, got: {error}. {remedy}") from error
