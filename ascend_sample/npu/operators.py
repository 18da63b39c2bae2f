"""The operators of CANN that are one of this project's: what each takes and gives, where it runs, which CANN has it.

Written from CANN's public documents. Needs neither torch, cffi nor a CANN.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MOST_ELEMENTS: Final = (2**32 - 1) // 5
"""Of logits; beyond it the operators' own 32-bit arithmetic overflows, as read in their public sources: the last part
of their workspace begins behind 5 numbers for each logit."""

MOST_ROWS: Final = 5120
"""Of aclnnTopKTopPSample, whose kernel has room for 128 of each vector core and writes beyond it: the smallest of its
SoCs have 40 of them."""


class Result(NamedTuple):
    """One result of an operator.

    Attributes:
        name: as in the operator's schema.
        dtype: as torch names it; None: that of the operator's first tensor.
        is_per_row: whether it has shape [batch], else [batch, vocab_size].
        option: the argument that asks for it; None where it is always there.
        is_written_in_part: whether the operator leaves what is behind the kept entries as it is.
    """

    name: str
    dtype: str | None
    is_per_row: bool = False
    option: str | None = None
    is_written_in_part: bool = False

    def new_empty(self, logits: Any, shape: Sequence[int]) -> Any:
        """Returns a tensor of its dtype beside the logits."""
        import torch  # deferred: importing this module must not need it

        return logits.new_empty(shape, dtype=None if self.dtype is None else getattr(torch, self.dtype))


@dataclass(frozen=True)
class AclnnOperator:
    """One operator of CANN."""

    name: str  # the C function of its second phase
    supported_soc: re.Pattern[str]  # what the names of the SoCs that have a kernel of it begin with
    devices: str  # those SoCs in words
    dtypes: tuple[str, ...]  # the dtypes that its logits may have, as torch names them
    found_in: str  # which CANN has it, a sentence for errors
    results: tuple[Result, ...]  # what it gives, in order
    reference: str  # the module of this package that has the operator's specification in code
    kernel: str  # what CANN names the files of its kernels after
    takes_any_k: bool = True  # k <= 0 skips top-k; otherwise it is undefined on a device
    bounds_k: bool = False  # a k that is not between 1 and vocab_size is undefined on a device
    companion: str | None = None  # a C function without which its kernel is one that has to be left alone
    checks_unwanted: bool = False  # the shape of a result that is not asked for, to which nothing is written
    most_rows: int | None = None  # for how many its kernel has room, where that is bounded

    @property
    def phase_1(self) -> str:
        """Returns the name of the C function of its first phase."""
        return f"{self.name}GetWorkspaceSize"

    @property
    def phase_2(self) -> str:
        """Returns the name of the C function of its second phase."""
        return self.name

    def takes(self, dtype: object) -> bool:
        """Tells whether its logits may have the given dtype of torch."""
        return str(dtype).removeprefix("torch.") in self.dtypes

    def obstacle_of(self, dtype: object) -> str | None:
        """Returns why its logits cannot have the given dtype of torch, or None where they can."""
        return None if self.takes(dtype) else f"{self.name} takes {' and '.join(self.dtypes)} logits, not {dtype}"


# ``Ascend910B`` without a number is a chip of the first Atlas training series, which has no kernel of them.
SAMPLE: Final = AclnnOperator(
    name="aclnnTopKTopPSample",
    supported_soc=re.compile(r"Ascend910B\d|Ascend910_93"),
    devices="Atlas A2 (Ascend910B1 to B4) and A3 (Ascend910_93)",
    dtypes=("float16", "bfloat16"),
    found_in="It is documented for CANN 8.3 and later",
    results=(
        Result("logits_select_idx", "int64", is_per_row=True),
        Result("logits_top_kp_select", "float32", option="is_need_logits"),
    ),
    reference="ascend_sample.reference",
    kernel="top_k_top_p_sample",
    takes_any_k=False,
    checks_unwanted=True,
    most_rows=MOST_ROWS,
)
SAMPLE_V2: Final = AclnnOperator(
    name="aclnnTopKTopPSampleV2",
    supported_soc=re.compile(r"Ascend910B\d|Ascend910_93|Ascend950"),
    devices="Atlas A2 (Ascend910B1 to B4), A3 (Ascend910_93) and Ascend 950",
    dtypes=("float16", "bfloat16", "float32"),
    found_in="It comes with CANN 9.0 or later: the documentation of 8.5 has aclnnTopKTopPSample alone",
    results=(
        *SAMPLE.results,
        Result("logits_idx", "int64", option="is_need_sample_result", is_written_in_part=True),
        Result("logits_sort_masked", "float32", option="is_need_sample_result"),
    ),
    reference="ascend_sample.reference_v2",
    kernel="top_k_top_p_sample_v2",
)
APPLY: Final = AclnnOperator(
    name="aclnnApplyTopKTopP",
    supported_soc=SAMPLE_V2.supported_soc,
    devices=SAMPLE_V2.devices,
    dtypes=SAMPLE_V2.dtypes,
    found_in="It is served from CANN 9.0 on: the kernel of 8.5 misplaces what it keeps of 16-bit rows",
    results=(Result("filtered", None),),
    reference="ascend_sample.reference_apply",
    kernel="apply_top_k_top_p_with_sorted",
    bounds_k=True,
    companion=SAMPLE_V2.name,
)
OPERATORS: Final = {"top_k_top_p_sample": SAMPLE, "top_k_top_p_sample_v2": SAMPLE_V2, "apply_top_k_top_p": APPLY}
"""By the name of our function."""
