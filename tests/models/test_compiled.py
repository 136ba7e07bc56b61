"""Networks that people use, through `torch.compile`: what they give is what they give without, and in generation with a
static cache each token is one call of a recorded program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from agreement import assert_near
from test_transformers import SIZES, WHISPER, WORDS, make
from torch import nn

from torchgraft import plans

pytestmark = pytest.mark.no_fallback

Given = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Graphs of one test are not guards of the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def encoder() -> tuple[nn.Module, Given]:
    """As MiniLM is one: words, of which some are padding, to means of their last hidden states."""
    bert = make("bert").bert
    present = torch.ones(3, 12, dtype=torch.long)
    present[1, 7:] = 0

    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=words, attention_mask=present).last_hidden_state
            weights = present.unsqueeze(-1).to(hidden.dtype)
            return (hidden * weights).sum(1) / weights.sum(1)

    return Means(), (torch.randint(3, WORDS, (3, 12)), present)


def vision() -> tuple[nn.Module, Given]:
    import transformers

    return transformers.ViTModel(transformers.ViTConfig(**SIZES, image_size=32, patch_size=8)), (
        torch.randn(2, 3, 32, 32),
    )


def speech() -> tuple[nn.Module, Given]:
    import transformers

    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in WHISPER.items()}
    config = transformers.WhisperConfig(d_model=32, **sizes, vocab_size=WORDS, max_source_positions=50, pad_token_id=0)
    return transformers.WhisperModel(config).encoder, (torch.randn(2, 80, 100),)


def first(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
    return tensor


@pytest.mark.thorough
@pytest.mark.quick(network=encoder)
@pytest.mark.parametrize("network", [encoder, vision, speech], ids=lambda f: f.__name__)
def test_encoders(device: str, network: Callable[[], tuple[nn.Module, Given]]) -> None:
    model, given = network()
    model = model.eval().to(device)
    inputs = [x.to(device) for x in given]
    compiled = torch.compile(model)
    with torch.no_grad():
        expected = first(model(*inputs)).cpu()
        before = plans.stats().compiled_replays
        for _ in range(4):
            assert_near(first(compiled(*inputs)), expected, 1e-5)
    assert plans.stats().compiled_replays > before


@pytest.mark.quick(kind="llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_training(device: str, kind: str) -> None:
    """Losses and gradients of three steps."""
    model, words = make(kind).to(device), torch.randint(3, WORDS, (2, 10), device=device)
    losses = {}
    for way, call in (("eager", model), ("compiled", torch.compile(model))):
        losses[way] = []
        for _ in range(3):
            model.zero_grad()
            loss = call(input_ids=words, labels=words).loss
            loss.backward()
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            losses[way].append((loss.detach().cpu(), torch.cat(gradients).cpu()))
    for (loss, gradient), (wanted_loss, wanted) in zip(losses["compiled"], losses["eager"], strict=True):
        torch.testing.assert_close(loss, wanted_loss, rtol=1e-5, atol=1e-6)
        assert (gradient - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.thorough
@pytest.mark.quick(kind="llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_generation_with_a_static_cache(device: str, kind: str) -> None:
    model, words = make(kind).eval().to(device), torch.randint(3, WORDS, (2, 6), device=device)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    expected = model.generate(words, disable_compile=True, **options)
    model.forward = torch.compile(model.forward)
    before = plans.stats().compiled_replays
    for _ in range(2):
        assert torch.equal(model.generate(words, disable_compile=True, **options), expected)
    assert plans.stats().compiled_replays - before >= 10
