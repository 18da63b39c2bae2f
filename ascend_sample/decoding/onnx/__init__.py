"""An encoder-decoder becomes two ONNX graphs, and the same searches go over them with onnxruntime.

`export_onnx` writes the encoder, which ends with each layer's keys and values of the memory, and one step of the
decoder, which takes the rows of its cache by a beam index inside the graph. `OnnxModel` is a `StepModel` of the two
files: whatever decodes a torch model decodes it too.

Needs the extra `ascend_sample[onnx]`.
Source: docs/onnx.md.
"""

from __future__ import annotations

from ascend_sample.decoding.onnx.export import export_onnx
from ascend_sample.decoding.onnx.runtime import OnnxCache, OnnxModel

__all__ = ["OnnxCache", "OnnxModel", "export_onnx"]
