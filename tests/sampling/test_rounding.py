"""`Sampler(round_float32=True)`: what an old CANN's operator makes of float32 logits, and how far that is off."""

from __future__ import annotations

import pytest
import torch

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, SamplingRoute
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.routes import Abilities

ROWS, VOCAB_SIZE = 400, 2000


@pytest.fixture
def old_cann(npu: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An NPU whose CANN has the first operator alone."""
    ask = routes.abilities_of

    def abilities_of(device: torch.device, dtype: torch.dtype, round_float32: bool = False) -> Abilities:
        return ask(device, dtype, round_float32)._replace(fused_v2=False)

    monkeypatch.setattr(routes, "abilities_of", abilities_of)
    return npu


def requests(**changes: object) -> list[SamplingParams]:
    return [
        SamplingParams(seed=row, **{"temperature": 0.7, "top_k": 50, "top_p": 0.9} | changes) for row in range(ROWS)
    ]


def sample(device: str, params: list[SamplingParams], logits: torch.Tensor, **options: bool) -> torch.Tensor:
    batch = SamplingBatch(logits.shape[1], device)
    batch.extend(params)
    return Sampler(**options)(logits.to(device), batch).token_ids.cpu()


def routes_of(device: str, params: SamplingParams, **options: bool) -> SamplingRoute:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.add(params)
    return Sampler(**options).explain(batch, torch.float32)[0].route


def test_where_it_is_asked_for_and_serves(old_cann: str) -> None:
    params = requests()[0]
    assert routes_of(old_cann, params) is SamplingRoute.TOP_K
    assert routes_of(old_cann, params, round_float32=True) is SamplingRoute.FUSED_ROUNDED
    exact = (SamplingRoute.GREEDY, SamplingRoute.TOP_K, SamplingRoute.SORTED_SEGMENTS)
    for changes in ({"temperature": 0.0}, {"top_k": None}, {"top_k": 1500}, {"min_p": 0.1}, {"top_k": 1}):
        assert routes_of(old_cann, requests(**changes)[0], round_float32=True) in exact


def test_where_there_is_v2_nothing_is_rounded(npu: str) -> None:
    assert routes_of(npu, SamplingParams(top_k=50), round_float32=True) is SamplingRoute.FUSED_V2
    assert routes_of("cpu", SamplingParams(top_k=50), round_float32=True) is SamplingRoute.NATIVE


@pytest.mark.parametrize(("logits", "changes"), [((3, 0), {}), ((1, 3000), {"top_p": 1.0})])
def test_few_tokens_change(old_cann: str, logits: tuple[float, float], changes: dict[str, float]) -> None:
    """Weights are off by less than 1 % and p by 2^-12, so about one draw in a hundred is another one.

    Rounded as they are, logits around 3000 would be 2 apart: they are shifted first.
    """
    rows = torch.randn(ROWS, VOCAB_SIZE) * logits[0] + logits[1]
    rounded, exact = (sample(old_cann, requests(**changes), rows, round_float32=each) for each in (True, False))
    assert (rounded == exact).float().mean() > 0.97


def test_a_top_p_just_below_1_stays_on(old_cann: str) -> None:
    """float16 rounds 0.9998 to 1, which is off: then the third token, with 0.00015, would be drawn nine times."""
    logits = torch.tensor([[10.0, 9.0, 1.51, -50.0]]).repeat(60_000, 1)
    assert torch.tensor(0.9998).to(torch.float16) == 1
    batch = SamplingBatch(4, old_cann)
    batch.extend([SamplingParams(top_k=3, top_p=0.9998, seed=1)] * len(logits), positions=range(len(logits)))
    assert set(Sampler(round_float32=True)(logits.to(old_cann), batch).token_ids.tolist()) == {0, 1}


def test_statuses(old_cann: str) -> None:
    batch = SamplingBatch(3, old_cann)
    batch.extend([SamplingParams(top_k=2)] * 4)
    logits = torch.tensor([[torch.nan, 0.0, 0.0], [-torch.inf] * 3, [0.0, torch.inf, 0.0], [0.0, 1.0, 2.0]])
    output = Sampler(round_float32=True)(logits.to(old_cann), batch)
    assert output.status.tolist() == [2, 1, 3, 0]
    assert output.token_ids[1:3].tolist() == [0, 1]
    assert output.token_ids[0].item() in (1, 2)
