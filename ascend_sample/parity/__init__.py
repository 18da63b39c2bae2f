"""Parity between a device's operator and the reference: `python -m ascend_sample verify`.

`run` draws batches from `cases` (whose logits come from `families`, in the layouts of `operands`), `compare` judges the
results by the float64 `row_model`, `probe` asks which reading of the operator the device
has, `report` counts and prints.
"""

from .compare import Comparison, Kind, Result, Verdict, compare
from .report import Report
from .run import DEVICES, NO_NPU, add_verify_arguments, has_npu, run_verify, verify
from .subjects import SUBJECTS

__all__ = [
    "DEVICES",
    "NO_NPU",
    "SUBJECTS",
    "Comparison",
    "Kind",
    "Report",
    "Result",
    "Verdict",
    "add_verify_arguments",
    "compare",
    "has_npu",
    "run_verify",
    "verify",
]
