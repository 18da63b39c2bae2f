"""The language model of the examples, and the demo from its command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.support.user_process import EXAMPLES, TRAINING_LIMIT_SECONDS, run_as_user

pytest.importorskip("tokenizers", reason="the demo's subword vocabulary needs the tokenizers package")

import demo
import language_model
from language_model import corpus, training
from language_model.cache import cache_key
from model_cache import load_or_make

TINY_MODEL = language_model.ModelConfig(
    vocab_size=512, context_size=32, width=32, layers=2, heads=2, feed_forward_width=64
)
NOBODY = 65534
TINY_TRAINING = training.TrainingConfig(steps=6, batch_size=2, warmup_steps=2)


@pytest.fixture
def tiny_corpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A few hundred documents in the place of the whole standard library."""
    documents = [
        f"The value of item {index} is returned.\n\nRaise an error if the {word} of the iterator was called before."
        for index in range(200)
        for word in ("method", "argument")
    ]
    monkeypatch.setattr(corpus, "collect_documents", lambda: documents)
    monkeypatch.setattr(corpus, "fingerprint", lambda: "tiny")
    return documents


@pytest.fixture
def tiny_model() -> language_model.LanguageModel:
    torch.manual_seed(3)
    return language_model.LanguageModel(TINY_MODEL).eval()


def test_cached_logits_equal_uncached(tiny_model: language_model.LanguageModel) -> None:
    tiny_model = tiny_model.double()  # so that nothing but a mistake can differ by more than 1e-10
    ids = torch.randint(TINY_MODEL.vocab_size, (3, 20))
    expected, _ = tiny_model(ids)
    pieces, cache = [], None
    for piece in ids.split([7, 1, 1, 5, 6], dim=1):
        logits, cache = tiny_model(piece, cache)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, rtol=0, atol=1e-10)
    assert cache is not None
    assert [keys.shape for keys, _ in cache] == [(3, 2, 20, 16)] * TINY_MODEL.layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_runs_on_each_device_in_each_type(
    tiny_model: language_model.LanguageModel, device: str, dtype: torch.dtype
) -> None:
    ids = torch.randint(TINY_MODEL.vocab_size, (2, 8))
    expected, _ = tiny_model(ids)
    model = tiny_model.to(device=device, dtype=dtype)
    _, cache = model(ids[:, :6].to(device))
    logits, _ = model(ids[:, 6:].to(device), cache)
    assert logits.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(logits.float().cpu(), expected[:, 6:], rtol=tolerance, atol=tolerance)


def test_training_is_deterministic_and_cached(tiny_corpus: list[str], tmp_path: Path) -> None:
    def load(directory: str, retrain: bool = False) -> tuple[dict[str, torch.Tensor], str]:
        model, tokenizer = language_model.load_or_train(
            progress=False,
            retrain=retrain,
            directory=tmp_path / directory,
            model_config=TINY_MODEL,
            training_config=TINY_TRAINING,
        )
        assert not model.training
        return model.state_dict(), tokenizer.to_str()

    random_state = torch.get_rng_state()
    trained, tokenizer = load("first")
    assert torch.equal(torch.get_rng_state(), random_state)  # the caller's random numbers stay as they were
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    name = f"model-{cache_key(TINY_MODEL, TINY_TRAINING)}"
    assert files == [f"{name}.lock", f"{name}.pt"]

    written = (tmp_path / "first" / f"{name}.pt").stat().st_mtime_ns
    for other, other_tokenizer in (load("first"), load("second"), load("first", retrain=True)):
        assert other_tokenizer == tokenizer
        assert trained.keys() == other.keys()
        assert all(torch.equal(trained[key], other[key]) for key in trained)
    assert (tmp_path / "first" / f"{name}.pt").stat().st_mtime_ns > written  # by the last one, which trained again


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_file_of_which_a_part_is_missing_is_made_anew(
    part: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, made = tmp_path / "made.pt", {"weights": {"w": torch.arange(100.0)}}
    load_or_make(path, lambda: made)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    assert load_or_make(path, lambda: made) is made
    assert f"{path} cannot be read, and is made anew: " in capsys.readouterr().err
    assert torch.equal(load_or_make(path, dict)["weights"]["w"], made["weights"]["w"])


def test_others_read_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # nobody may walk to the folder
    path, before = Path("made.pt"), os.umask(0o022)
    try:
        load_or_make(path, lambda: {"number": 7})
    finally:
        os.umask(before)
    tmp_path.chmod(0o555)
    user = os.geteuid()
    try:
        if user == 0:  # whom no right is denied
            os.seteuid(NOBODY)
        assert load_or_make(path, dict) == {"number": 7}
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)


@pytest.mark.long
@pytest.mark.timeout(TRAINING_LIMIT_SECONDS + 60)
def test_demo_generates_the_same_text_on_both_devices(npu: str) -> None:
    printed = run_as_user(str(EXAMPLES / "demo.py"), seconds=TRAINING_LIMIT_SECONDS)
    assert "The tokens MATCH." in printed
    texts = [
        [line[9:] for line in printed.splitlines() if line.startswith(f"  {device} ") and "/s" not in line]
        for device in ("cpu  ", "npu:0")
    ]
    assert len(texts[0]) == 4
    assert texts[0] == texts[1]


def test_demo_tells_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    request = demo.Request(
        prompts=[[0, 5], [0, 7, 9]],
        k=torch.tensor([4, demo.NO_TOP_K], dtype=torch.int32),
        p=torch.tensor([0.5, demo.NO_TOP_P]),
        steps=3,
        seed=0,
        vocab_size=16,
    )
    token_ids = torch.tensor([[0, 5, 1, 2, 3], [0, 7, 9, 4, 6]])
    logits = [torch.randn(2, 16).bfloat16() for _ in range(request.steps)]
    same = demo.Generation(token_ids, logits, new_tokens=5, seconds=1.0)
    changed = token_ids.clone()
    changed[0, 3] = 8  # its third token: the one before is equal, the one after no longer counts
    generations = {"cpu": same, "cpu:0": same, "cpu:1": same._replace(token_ids=changed)}
    assert demo.compare("cpu", "cpu:0", generations, request)
    assert "5 of 5 tokens are equal (the logits are equal bit for bit)\n  The tokens MATCH." in capsys.readouterr().out
    assert not demo.compare("cpu", "cpu:1", generations, request)
    assert "3 of 5 tokens are equal (the logits are equal bit for bit)\n  The tokens DO NOT" in capsys.readouterr().out
