"""A published model, loaded and run as its users do: sentence-transformers' all-MiniLM-L6-v2."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torchgraft

pytestmark = [pytest.mark.no_fallback, pytest.mark.thorough]

EXAMPLE = Path(__file__).parents[2] / "examples/sentence_embeddings.py"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, which imports the library: that takes seconds, so not when tests are only collected."""
    spec = importlib.util.spec_from_file_location("sentence_embeddings", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(example: ModuleType, device: str) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    return {where: SentenceTransformer(example.packaged_model(), device=where) for where in (device, "cpu")}


def test_the_weights_are_the_published_ones(example: ModuleType) -> None:
    """The package that has them is not by the model's makers."""
    weights = Path(example.packaged_model()) / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == WEIGHTS


def test_embeddings(example: ModuleType, models: dict[str, Any], device: str) -> None:
    sentences = [*example.SENTENCES[:4], "", "one " * 300]  # nothing at all, and more than the model reads
    for options in ({}, {"normalize_embeddings": True}, {"batch_size": 3}, {"precision": "int8"}):
        got, expected = (models[where].encode(sentences, **options) for where in (device, "cpu"))
        assert got.shape == expected.shape == (len(sentences), 384)
        if "precision" in options:  # steps of 1/127 of the range, on whose borders rounding decides
            assert abs(got.astype(int) - expected.astype(int)).max() <= 1
        else:
            assert abs(got - expected).max() < 1e-6


def test_embeddings_stay_on_the_device(example: ModuleType, models: dict[str, Any], device: str) -> None:
    embeddings = models[device].encode(example.SENTENCES, convert_to_tensor=True)
    assert embeddings.device.type == torch.device(device).type
    alike = models[device].similarity(embeddings, embeddings)
    assert alike.device == embeddings.device
    torch.testing.assert_close(alike.diagonal().cpu(), torch.ones(len(embeddings)))


def test_half_precision(example: ModuleType, device: str) -> None:
    from sentence_transformers import SentenceTransformer

    half = SentenceTransformer(example.packaged_model(), device=device, model_kwargs={"dtype": torch.float16})
    full = SentenceTransformer(example.packaged_model(), device="cpu")
    alike = half.similarity(half.encode(example.SENTENCES), full.encode(example.SENTENCES)).diagonal()
    assert (alike > 0.999).all()


def test_the_example(example: ModuleType, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    torchgraft.reset_fallback_report()
    example.main(["--device", device, "--query", "Who makes music?"])
    printed = capsys.readouterr().out
    assert printed.index("cello") < printed.index("largest difference")
    assert "ops that fell back to the CPU: 0" in printed
