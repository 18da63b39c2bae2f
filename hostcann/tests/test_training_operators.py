"""What training asks of hostcann: derivatives, and the operators of lists by which optimizers update all parameters.

The same ATen kernels run on both sides, so results are compared bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hostcann

pytest.importorskip("torch_npu", reason="needs torch_npu and a CANN", exc_type=ImportError)

SIZES = ((3, 5), (7,), ())


def tensors(seed: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(size, generator=generator) + 0.5).to(device) for size in SIZES]


Lists = tuple[list[Tensor], list[Tensor], list[Tensor]]
NUMBERS = [1.5, -2.0, 3.0]


def of_lists(
    form: str, names: str, *arguments: object, lists: int = 1, **options: object
) -> dict[str, Callable[[Lists], Any]]:
    """torch._foreach_NAME by the name of CANN's operator, of so many lists and then the arguments."""
    return {
        f"aclnnForeach{name.title()}{form}": lambda all_lists, name=name: getattr(torch, f"_foreach_{name}")(
            *all_lists[:lists], *arguments, **options
        )
        for name in names.split()
    }


FOREACH: dict[str, Callable[[Lists], Any]] = {
    **of_lists("", "abs exp log neg reciprocal sigmoid sign sqrt tanh norm"),
    **of_lists("ListV2", "add sub", lists=2, alpha=0.5),
    **of_lists("List", "mul div maximum minimum pow", lists=2),
    **of_lists("List", "lerp", lists=3),
    **of_lists("ScalarV2", "add sub mul div maximum minimum pow", 1.5),
    **of_lists("ScalarList", "add sub mul div maximum minimum pow", NUMBERS),
    **of_lists("ScalarV2", "addcmul addcdiv", lists=3, value=1.5),
    **of_lists("ScalarList", "addcmul addcdiv", torch.tensor(NUMBERS), lists=3),
    **of_lists("Scalar", "lerp", 0.25, lists=2),
    "aclnnForeachPowScalarAndTensor": lambda lists: torch._foreach_pow(1.5, lists[0]),
    "aclnnForeachCopy": lambda lists: (torch._foreach_copy_(lists[0], lists[1]), lists[0])[1],
}


def test_lists_of_tensors() -> None:
    for operator, function in FOREACH.items():
        expected = function(tuple(tensors(seed, "cpu") for seed in range(3)))  # type: ignore[arg-type]
        lists = tuple(tensors(seed, "npu") for seed in range(3))
        with hostcann.profile() as counted:
            found = function(lists)  # type: ignore[arg-type]
        assert operator in counted.launches
        for got, want in zip(found, expected, strict=True):
            assert got.device.type == "npu"
            torch.testing.assert_close(
                got.cpu(), want, rtol=0, atol=0, msg=lambda text, name=operator: f"{name}: {text}"
            )


def test_scaled_gradients_in_mixed_precision() -> None:
    """Steps of a scaler on both devices: one with a gradient that is not finite is left out, and halves the scale."""
    states = []
    for device in ("npu", "cpu"):
        parameters = [torch.nn.Parameter(tensor) for tensor in tensors(0, device)]
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=1)
        for largest in (1.0, float("inf"), 2.0):
            with torch.autocast(device, torch.float16):
                loss = sum((parameter * largest).sum() for parameter in parameters)
            scaler.scale(loss).backward()
            with hostcann.profile() as counted:
                scaler.step(optimizer)
                scaler.update()
            for operator in ("aclnnForeachNonFiniteCheckAndUnscale", "aclnnAmpUpdateScale"):
                assert device == "cpu" or counted.launches[operator] == 1
            optimizer.zero_grad()
        assert scaler.get_scale() == 16.0
        states.append([parameter.detach().cpu() for parameter in parameters])
    torch.testing.assert_close(*states, rtol=0, atol=0)


def _embedding(x: Tensor) -> Tensor:
    return F.embedding(torch.tensor([[2, 0], [2, 1]], device=x.device), x, padding_idx=0)


def _loss(x: Tensor) -> Tensor:
    targets = torch.tensor([1, 3, -100, 0], device=x.device)
    return F.cross_entropy(x, targets, weight=torch.arange(1.0, 6.0, device=x.device), reduction="sum")


DERIVATIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "aclnnTanhBackward": torch.tanh,
    "aclnnSigmoidBackward": torch.sigmoid,
    "aclnnThresholdBackward": torch.relu,
    "aclnnSiluBackward": F.silu,
    "aclnnGeluBackward": F.gelu,
    "aclnnSoftmaxBackward": lambda x: torch.softmax(x, 0),
    "aclnnLogSoftmaxBackward": lambda x: torch.log_softmax(x, 1),
    "aclnnEmbeddingDenseBackward": _embedding,
    "aclnnNLLLossBackward": _loss,
    "aclnnMseLossBackward": lambda x: F.mse_loss(x, x.detach().flip(0), reduction="none"),
    "aclnnLayerNormBackward": lambda x: F.layer_norm(x, (5,), x[0], x[1]),
}


def test_derivatives() -> None:
    for operator, function in DERIVATIVES.items():
        values = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
        gradients = []
        for device in ("npu", "cpu"):
            x = values.to(device).requires_grad_()
            with hostcann.profile() as counted:
                result = function(x)
                (result * torch.arange(result.numel(), device=device).reshape(result.shape)).sum().backward()
            assert x.grad is not None
            gradients.append(x.grad.cpu())
            assert device == "cpu" or operator in counted.launches, counted.launches
        torch.testing.assert_close(*gradients, rtol=0, atol=0, msg=lambda text, name=operator: f"{name}: {text}")


def test_binary_cross_entropy_and_its_derivative(subtests: pytest.Subtests) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, targets, weight = (torch.randn(4, 5, generator=generator) for _ in range(3))
    for weights, reduction in itertools.product(
        ({}, {"weight": weight, "pos_weight": weight[0].abs()}), ("mean", "sum")
    ):
        results = []
        for device in ("npu", "cpu"):
            x = logits.detach().to(device).requires_grad_()
            on_device = {name: values.to(device) for name, values in weights.items()}
            loss = F.binary_cross_entropy_with_logits(x, targets.to(device), reduction=reduction, **on_device)
            loss.backward()
            assert x.grad is not None
            results.append((loss.detach().cpu(), x.grad.cpu()))
        with subtests.test(weights=list(weights), reduction=reduction):
            torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_dropout_drops_the_same_in_both_directions() -> None:
    dtype = torch.bfloat16
    torch.npu.manual_seed(5)
    x = torch.ones(31, 333, dtype=dtype, device="npu", requires_grad=True)
    with hostcann.profile() as counted:
        first, second = F.dropout(x, 0.25), F.dropout(x, 0.25)
    assert counted.launches["aclnnDropoutGenMaskV2"] == counted.launches["aclnnDropoutDoMask"] == 2
    first.sum().backward()
    torch.npu.manual_seed(5)
    assert torch.equal(F.dropout(x, 0.25), first)
    assert not torch.equal(first, second)
    assert x.grad is not None
    assert torch.equal(x.grad, first)
    kept = first.detach().cpu() != 0
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.02)
    assert set(first.unique().tolist()) == {0.0, torch.tensor(1 / 0.75, dtype=dtype).item()}
    assert torch.equal(F.dropout(x, 0.25, training=False), x)
    assert not F.dropout(x, 1.0).any()


def _gradients(device: str, inputs: list[Tensor], attend: Callable[..., Tensor]) -> list[Tensor]:
    """What comes out of attention and, with weights on its elements, its derivatives by query, key and value."""
    leaves = [x.detach().to(device).requires_grad_() for x in inputs]
    attended = attend(*leaves)
    weights = torch.linspace(-1, 1, attended.numel()).reshape(attended.shape).to(attended)
    (attended * weights).sum().backward()
    return [attended.detach().cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)]


def _query_key_value(dtype: torch.dtype = torch.float32, key_heads: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 6, 16), (2, key_heads, 8, 16), (2, key_heads, 8, 16))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def test_the_derivatives_of_attention(subtests: pytest.Subtests) -> None:
    mask = torch.ones(6, 8, dtype=torch.bool).tril(2)
    for kind, dtype in itertools.product(("plain", "causal", "masked", "grouped"), (torch.float32, torch.bfloat16)):

        def attend(q: Tensor, k: Tensor, v: Tensor, kind: str = kind) -> Tensor:
            masked = mask.to(q.device) if kind == "masked" else None
            options = {"is_causal": kind == "causal", "enable_gqa": kind == "grouped"}
            return F.scaled_dot_product_attention(q, k, v, attn_mask=masked, **options)

        inputs = _query_key_value(dtype, key_heads=2 if kind == "grouped" else 4)
        with hostcann.profile() as counted:
            found = _gradients("npu", inputs, attend)
        assert counted.launches["aclnnFlashAttentionScoreGrad"] == 1
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        with subtests.test(kind=kind, dtype=dtype):
            torch.testing.assert_close(found, _gradients("cpu", inputs, attend), rtol=tolerance, atol=tolerance)


def test_the_derivatives_of_attention_that_drops_probabilities() -> None:
    """With the identity for a value attention shows its probabilities, so also which were dropped."""

    def with_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.npu.manual_seed(9)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)

    def with_kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT / 4).softmax(-1) * kept) @ v

    q, k, v = _query_key_value()
    identity = torch.eye(8, 16).expand_as(v)
    kept = (with_dropout(q.npu(), k.npu(), identity.npu()).cpu()[..., :8] != 0) / 0.75
    assert kept.unique().numel() == 2
    found, expected = _gradients("npu", [q, k, v], with_dropout), _gradients("cpu", [q, k, v], with_kept)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
