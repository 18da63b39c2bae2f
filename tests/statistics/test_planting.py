"""A fault that sits where nothing comes by is noticed by name, and not as a gate that has no power."""

from __future__ import annotations

import pytest
import segment_faults
import torch
from draws import counts_of
from faults import around_noise, around_operator, shared_lanes
from planted import PLAIN, SEGMENTS
from planting import Planter, planted

from ascend_sample.sampling import SamplingRoute
from ascend_sample.sampling.draws import placed_noise
from ascend_sample.sampling.draws.segmented import draw_from_segments, lanes_of, whole_segments
from ascend_sample.sampling.edits import row_edits as edits
from ascend_sample.sampling.step import device_routes


def unchanged(values: torch.Tensor, parameters: object, noise: torch.Tensor) -> tuple[object, ...]:
    return values, parameters, noise


def test_a_fault_that_is_called() -> None:
    right = placed_noise.exponential_noise
    with planted(around_noise(shared_lanes)):
        assert placed_noise.exponential_noise is not right
        counts_of(PLAIN, 10, on="second operator")
    assert placed_noise.exponential_noise is right


@pytest.mark.parametrize("on", ["native", "torch"])
def test_a_fault_that_nothing_calls(on: str) -> None:
    with (
        pytest.raises(AssertionError, match=r"nothing called what was planted in row_edits\.edited"),
        planted(lambda planter: planter.replace(edits, "edited", edits.edited)),
    ):
        counts_of(PLAIN, 10, on=on)


def test_a_fault_of_which_one_half_is_called() -> None:
    def both(planter: Planter) -> None:
        around_noise(shared_lanes)(planter)
        planter.replace(edits, "edited", edits.edited)

    with pytest.raises(AssertionError, match=r"planted in row_edits\.edited$"), planted(both):
        counts_of(PLAIN, 10, on="second operator")


def test_one_place_of_a_site_is_enough() -> None:
    with planted(around_operator(unchanged)):  # type: ignore[arg-type]
        counts_of(PLAIN, 10, on="second operator")


def test_what_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(device_routes.FusedV2):
        """A refactoring: what `_draw` did is done elsewhere."""

    monkeypatch.setitem(device_routes.ROUTES, SamplingRoute.FUSED_V2, Renamed)
    with (
        pytest.raises(AssertionError, match=r"Renamed\._draw is to be overridden, and there is none"),
        planted(around_operator(unchanged)),  # type: ignore[arg-type]
    ):
        pass
    monkeypatch.delattr(placed_noise, "exponential_noise")
    with (
        pytest.raises(AssertionError, match=r"placed_noise\.exponential_noise is to be replaced, and there is none"),
        planted(lambda planter: planter.replace(placed_noise, "exponential_noise", len)),
    ):
        pass


def test_nothing_is_planted() -> None:
    with pytest.raises(AssertionError, match="planted nowhere"), planted(lambda planter: None):
        pass


def test_the_draw_with_sums_is_the_layers_own_where_they_are_right() -> None:
    torch.manual_seed(1)
    weights = whole_segments(500, SEGMENTS.vocab_size, torch.device("cpu")).exponential_()
    noise = torch.empty(500, lanes_of(SEGMENTS.vocab_size)).exponential_()
    expected = draw_from_segments(weights.clone(), SEGMENTS.vocab_size, noise)
    assert len(set(expected.tolist())) > 300
    drawn = segment_faults.draw_with_sums(weights, SEGMENTS.vocab_size, noise, lambda sums, vocab_size: sums)
    assert torch.equal(drawn, expected)
