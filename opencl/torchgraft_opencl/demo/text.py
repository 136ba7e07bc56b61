"""A small GPT that learns Python from the source of Python's own standard library, one character at a time."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from torchgraft_opencl.demo.task import Batch, Task

BATCH = 16
CONTEXT = 64
WIDTH = 160
HEADS = 5
LAYERS = 3

# The printable part of ASCII and the newline; whatever else occurs becomes a question mark.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))


def encode(text: str) -> torch.Tensor:
    """Characters to numbers."""
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
    table = torch.full((128,), ALPHABET.index("?"))
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    return table[codes]


def decode(tokens: list[int]) -> str:
    """Numbers to characters."""
    return "".join(ALPHABET[token] for token in tokens)


def standard_library() -> str:
    """The source of the modules at the top of the running Python's standard library, in alphabetical order."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "".join(file.read_text(encoding="utf-8", errors="replace").expandtabs(4) for file in files)


class Block(nn.Module):
    """A layer of the transformer: attention to what came before, then a small network at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attention = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attention.transpose(1, 2).reshape(batch, length, WIDTH))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """About a million parameters. The matrix that embeds characters also turns the result back into characters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.characters(tokens) + self.positions(positions))
        return F.linear(self.norm(x), self.characters.weight)

    @torch.no_grad()
    def sample(self, prompt: str, count: int, temperature: float = 0.6) -> str:
        """Continues a prompt of at least CONTEXT characters by `count` more."""
        window = encode(prompt)[-CONTEXT:].unsqueeze(0).to(self.characters.weight.device)
        written = []
        for _ in range(count):
            logits = self(window)[:, -1] / temperature
            # The largest of logits with Gumbel noise is a sample of their softmax.
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_min(1e-20)))
            following = (logits + noise).argmax(dim=-1, keepdim=True)
            window = torch.cat((window[:, 1:], following), dim=1)
            written.append(following)
        return decode(torch.cat(written, dim=1)[0].tolist())


class Text(Task):
    """Nine tenths of the text are trained on, the last tenth is held out."""

    name = "text"
    clip = 1.0

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed)
        text = standard_library()
        tokens = encode(text)
        border = len(tokens) * 9 // 10
        self.training, self.held_out = tokens[:border], tokens[border:]
        self.prompt = text[border : border + CONTEXT]
        self.steps = steps

    def make_model(self) -> GPT:
        torch.manual_seed(self.seed)
        return GPT()

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05, fused=True)

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        warm_up = max(1, self.steps // 10)

        def rate(step: int) -> float:
            return min((step + 1) / warm_up, 1 - 0.95 * (step - warm_up) / max(1, self.steps - warm_up))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def training_batches(self) -> Iterator[Batch]:
        return self._batches(self.training, self.steps, self.seed)

    def held_out_batches(self) -> Iterator[Batch]:
        return self._batches(self.held_out, 10, self.seed + 1)

    def show(self, model: nn.Module, length: int) -> str:
        assert isinstance(model, GPT)
        torch.manual_seed(self.seed)
        return self.prompt + model.sample(self.prompt, length)

    @staticmethod
    def _batches(tokens: torch.Tensor, count: int, seed: int) -> Iterator[Batch]:
        choose = torch.Generator().manual_seed(seed)
        for _ in range(count):
            starts = torch.randint(len(tokens) - CONTEXT - 1, (BATCH, 1), generator=choose)
            windows = tokens[starts + torch.arange(CONTEXT + 1)]
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
