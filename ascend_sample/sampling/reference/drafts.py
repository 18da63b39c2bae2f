"""The rules by which drafts that were drawn from known distributions are judged, in float64: one request, word by word.

Slow, and independent of everything else: what tests compare everything else with. Targets and proposals are given as
distributions; what a target's is, `ascend_sample.sampling.reference.distribution` says.

Source: docs/drafts.md, section "Drafts that were drawn"; Leviathan et al., "Fast Inference from Transformers via
    Speculative Decoding", ICML 2023, algorithm 1; Sun et al., "Block Verification Accelerates Speculative Decoding",
    2024, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def point_mass(draft: int, vocab_size: int) -> Floats:
    """Returns the distribution of a draft that was not drawn: nothing else can come of it.

    A draft beyond the vocabulary has its mass there too, so that nothing is left within.
    """
    return np.asarray(np.arange(vocab_size) == draft, np.float64)


def chances(rule: str, targets: Floats, drafts: Sequence[int], proposals: Floats) -> list[float]:
    """Returns, for each draft, what its uniform number has to be below.

    Args:
        rule: "standard" or "block".
        targets: [drafts + 1, vocab_size], the target's distribution at the place of each draft and behind the last.
        drafts: ids that are not negative.
        proposals: [drafts, vocab_size], what each draft was drawn from.

    Example:
        >>> targets = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
        >>> proposals = np.array([[0.75, 0.25], [0.25, 0.75]])
        >>> chances("standard", targets, [0, 0], proposals)
        [0.6666666666666666, 2.0]
        >>> [round(chance, 3) for chance in chances("block", targets, [0, 0], proposals)]
        [0.2, 1.0]
    """
    ratios = [_ratio(*each) for each in zip(targets[:-1], drafts, proposals, strict=True)]
    if rule == "standard":
        return ratios
    joint, found = 1.0, []
    for after, ratio in enumerate(ratios, start=1):
        joint = _joined(joint, ratio)
        if after == len(ratios):
            found.append(joint)
            continue
        rest = float(np.maximum(joint * targets[after] - proposals[after], 0).sum())
        found.append(rest / (rest + 1 - joint) if rest + 1 - joint > 0 else 1.0)
    return found


def count_accepted(rule: str, found: Sequence[float], uniforms: Sequence[float]) -> int:
    """Returns how many drafts stay: by the rule standard until one is rejected, by block up to the last that is not."""
    stays = [uniform < chance for uniform, chance in zip(uniforms, found, strict=True)]
    if rule == "standard":
        return [*stays, False].index(False)
    return max((after for after, one in enumerate(stays, start=1) if one), default=0)


def chances_of_counts(rule: str, found: Sequence[float]) -> list[float]:
    """Returns the probability that no draft stays, one, two, ..., all: exactly, for uniform numbers."""
    each = [min(chance, 1.0) for chance in found]
    if rule == "standard":
        return [float(np.prod(each[:count]) * (1 - np.array([*each, 0.0])[count])) for count in range(len(each) + 1)]
    return [float([1.0, *each][count] * np.prod(1 - np.array(each[count:]))) for count in range(len(each) + 1)]


def rest_after(rule: str, targets: Floats, drafts: Sequence[int], proposals: Floats, accepted: int) -> Floats:
    """Returns the distribution of the token that follows the accepted drafts."""
    if accepted == len(drafts):
        return np.asarray(targets[accepted])
    joint = 1.0
    if rule == "block":
        for target, draft, proposal in zip(targets, drafts[:accepted], proposals, strict=False):
            joint = _joined(joint, _ratio(target, draft, proposal))
    rest = np.maximum(joint * targets[accepted] - proposals[accepted], 0)
    total = rest.sum()
    if total == 0:  # they are equal: nothing is rejected
        return np.asarray(targets[accepted])
    return np.asarray(rest / total)


def _ratio(target: Floats, draft: int, proposal: Floats) -> float:
    """Returns p / q of a draft."""
    if draft >= len(target) or target[draft] == 0:
        return 0.0
    return float(target[draft] / proposal[draft]) if proposal[draft] > 0 else float("inf")


def _joined(joint: float, ratio: float) -> float:
    """Returns the joint ratio of drafts with one more; what was impossible stays so."""
    return min(joint * ratio, 1.0) if joint > 0 else 0.0
