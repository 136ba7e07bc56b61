"""Networks for text: a decoder with a cache, an encoder for masked words, a recurrent language model."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_learns_alike, assert_near, assert_same_output, momentum
from torch import nn

pytestmark = pytest.mark.no_fallback

WORDS = 50


# ---- A decoder as of GPT-2 and Llama ----

Cache = list[tuple[torch.Tensor, torch.Tensor]]


def rotate(x: torch.Tensor, first: int) -> torch.Tensor:
    """Rotary places (Su et al., arXiv:2104.09864)."""
    half = x.size(-1) // 2
    rates = 10000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(first, first + x.size(-2), device=x.device), rates)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.RMSNorm(width)])
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in [(width, 96), (width, 96), (96, width)]
        )

    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None, cache: Cache) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        first = 0 if past is None else past[0].size(2)
        q, k = rotate(q, first), rotate(k, first)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        cache.append((k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.join(seen.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Logits of the next word; the cache is replaced by the longer one."""
        x, longer = self.words(words), Cache()
        for number, block in enumerate(self.blocks):
            x = block(x, cache[number] if cache else None, longer)
        if cache is not None:
            cache[:] = longer
        return F.linear(self.norm(x), self.words.weight)


def next_word(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


@torch.no_grad()
def decode(model: nn.Module, words: torch.Tensor, count: int, cached: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest words, and the logits of the last."""
    cache: Cache = []
    logits = model(words, cache) if cached else model(words)
    for _ in range(count):
        new = logits[:, -1].argmax(-1, keepdim=True)
        words = torch.cat([words, new], 1)
        logits = model(new, cache) if cached else model(words)
    return words, logits[:, -1]


def test_decoder(device: str) -> None:
    model, words = Decoder(), torch.randint(0, WORDS, (3, 12))
    assert_same_output(device, model, words)
    assert_learns_alike(device, model, next_word, words)


def test_decoding_with_a_cache(device: str) -> None:
    model, words = Decoder().eval(), torch.randint(0, WORDS, (2, 5))
    expected, logits = decode(model, words, 10, False)
    there = copy.deepcopy(model).to(device)
    for cached in (True, False):
        got, last = decode(there, words.to(device), 10, cached)
        assert torch.equal(got.cpu(), expected)
        assert_near(last, logits, 1e-4)


def test_sampling(device: str) -> None:
    """The likeliest words of many, drawn by chance."""
    model = Decoder().to(device).eval()
    words = torch.randint(0, WORDS, (2, 5), device=device)
    with torch.no_grad():
        logits = model(words)[:, -1]
        logits = logits / logits.std()
        best = logits.topk(10).values[:, -1:]
        chances = logits.masked_fill(logits < best, -float("inf")).softmax(-1)
        drawn = torch.multinomial(chances, 500, replacement=True)
    assert (chances.gather(1, drawn) > 0).all()
    assert all(len(set(row)) > 1 for row in drawn.tolist())


# ---- An encoder (Devlin et al., arXiv:1810.04805) ----


class Encoder(nn.Module):
    def __init__(self, width: int = 32, places: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width, padding_idx=0), nn.Embedding(places, width)
        self.parts, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.guess = nn.Sequential(nn.Linear(width, width), nn.GELU("tanh"), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, words: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.size(1), device=words.device)
        x = self.norm(self.words(words) + self.places(places) + self.parts(parts))
        x = self.layers(x, src_key_padding_mask=words == 0)
        return F.linear(self.guess(x), self.words.weight, self.bias)


def test_encoder(device: str) -> None:
    model, words = Encoder(), torch.randint(3, WORDS, (3, 14))
    words[1, 9:], words[2, 5:] = 0, 0
    parts = (torch.arange(14) > 6).long().expand(3, -1)
    hidden = (torch.rand(3, 14) < 0.3) & (words != 0)
    hidden[:, 0] = True
    labels = torch.where(hidden, words, -100)
    words = words.masked_fill(hidden, 2)

    def masked(model: nn.Module, words: torch.Tensor, parts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(words, parts).transpose(1, 2), labels, ignore_index=-100)

    assert_learns_alike(device, model, masked, words, parts, labels)
    model.eval()
    with torch.no_grad():
        expected = model(words, parts)
        got = copy.deepcopy(model).to(device)(words.to(device), parts.to(device))
    there = words != 0
    assert_near(got[there.to(device)], expected[there], 1e-5)


# ---- A recurrent language model (Zaremba et al., arXiv:1409.2329) ----


class Recurrent(nn.Module):
    def __init__(self, kind: str, width: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        cell = nn.LSTM if kind == "lstm" else nn.GRU
        self.layers = cell(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(words))[0])


def clipped(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    own = list(parameters)
    optimizer = momentum(own)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(own, 0.2)

    optimizer.register_step_pre_hook(clip)
    return optimizer


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent(device: str, kind: str) -> None:
    model, words = Recurrent(kind), torch.randint(0, WORDS, (4, 11))

    assert_same_output(device, model, words)
    assert_learns_alike(device, model, next_word, words, optimizer=clipped)


def test_sentences_of_several_lengths(device: str) -> None:
    """Packed, with the state carried from one part of a text to the next."""
    model, lengths = nn.LSTM(8, 12, bidirectional=True), torch.tensor([7, 5, 2])
    x = torch.randn(7, 3, 8)

    def read(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        y, state = model(packed)
        y, state = model(packed, state)
        return torch.cat([nn.utils.rnn.pad_packed_sequence(y)[0].flatten(), state[0].flatten()])

    expected = read(model, x)
    expected.square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model = copy.deepcopy(model).to(device)
    model.zero_grad()
    got = read(model, x.to(device))
    assert_near(got, expected, 1e-5)
    got.square().sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert_near(parameter.grad, gradient, 1e-4)
