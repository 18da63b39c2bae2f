"""Parity between a device's operator and the reference: `python -m ascend_sample verify`.

`run` draws batches from `cases` (whose logits come from `families`, in the layouts of `operands`), `compare` judges the
results by the float64 `row_model`, `probe` asks which reading of the operator the device
has, `report` counts and prints.
"""

from .compare import Comparison, Kind, Result, Verdict, compare
from .environment import default_device, obstacle_of
from .report import Report
from .run import add_device_argument, add_verify_arguments, run_verify, verify
from .subjects import SUBJECTS

__all__ = [
    "SUBJECTS",
    "Comparison",
    "Kind",
    "Report",
    "Result",
    "Verdict",
    "add_device_argument",
    "add_verify_arguments",
    "compare",
    "default_device",
    "obstacle_of",
    "run_verify",
    "verify",
]
