"""Top-k, top-p and exponential sampling of language-model logits on Ascend NPUs and CPUs.

Importing it never needs an NPU, CANN or torch_npu, and never imports a torch_npu that cannot load.
"""

from ascend_sample import _environment

_environment.import_torch()

from ascend_sample import _extension  # noqa: E402  torch comes first

_extension.load_core()
_extension.load_npu_if_imported()

from ascend_sample.backend import Route, use_backend, which_backend  # noqa: E402
from ascend_sample.ops import (  # noqa: E402
    TopKTopPSample,
    TopKTopPSampleV2,
    apply_top_k_top_p,
    top_k_top_p_sample,
    top_k_top_p_sample_v2,
)

__version__ = "0.1.0"
__all__ = [
    "Route",
    "TopKTopPSample",
    "TopKTopPSampleV2",
    "__version__",
    "apply_top_k_top_p",
    "top_k_top_p_sample",
    "top_k_top_p_sample_v2",
    "use_backend",
    "which_backend",
]
