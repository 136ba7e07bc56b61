"""Replays of graphs beside the same lines run eagerly, and beside torch's CPU, in one run.

python benchmarks/graphs.py [--device ocl] [--only decoding] [--rounds 9]

Host: until the calls have returned, a call, several after each other without a wait. Whole: a call and a wait for its
result. Times are medians of rounds in which eager calls, replays and the CPU take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """`make(device)` prepares the data and returns what is called, the same each time."""

    name: str
    make: Callable[[str], Call]


def chain(length: int, size: int) -> Callable[[str], Call]:
    def make(device: str) -> Call:
        x = torch.ones(size).to(device)

        def call() -> torch.Tensor:
            y = x
            for _ in range(length):
                y = y + 1
            return y

        return call

    return make


class Attention(nn.Module):
    """Causal self-attention of one new token, with keys and values of the earlier ones in memory that stays."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, heads, length, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, length, width // heads))

    def forward(self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        self.keys.index_copy_(2, place, key)
        self.values.index_copy_(2, place, value)
        mixed = nn.functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Decoder(nn.Module):
    """A small GPT that writes one token at a time."""

    def __init__(self, layers: int = 6, width: int = 192, heads: int = 6, length: int = 128, tokens: int = 512) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.attentions = nn.ModuleList(Attention(width, heads, length) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, tokens)
        self.register_buffer("places", torch.arange(length))

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.token(token) + self.position(place)
        mask = (self.places <= place)[None, None, None]
        for layer, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * layer](x), place, mask)
            x = x + self.feeds[layer](self.norms[2 * layer + 1](x))
        return self.head(x)


def decoding(device: str, compile: Callable[[nn.Module], nn.Module] = lambda model: model) -> Call:
    torch.manual_seed(0)
    model = compile(Decoder().eval().to(device))
    token, place = torch.zeros(1, 1, dtype=torch.long).to(device), torch.zeros(1, dtype=torch.long).to(device)

    @torch.no_grad()
    def step() -> None:
        token.copy_(model(token, place).argmax(-1))
        place.add_(1).remainder_(128)

    return step


def training(network: Callable[[], nn.Module], *shape: int) -> Callable[[str], Call]:
    def make(device: str) -> Call:
        torch.manual_seed(0)
        model = network().to(device)
        capturable = {} if device == "cpu" else {"capturable": True}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **capturable)
        x, y = torch.randn(*shape).to(device), torch.randint(10, shape[:1]).to(device)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return make


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def cases() -> Iterator[Case]:
    for length in (10, 200):
        for size in (64, 4096, 65536):
            yield Case(f"{length} additions of {size}", chain(length, size))
    yield Case("decoding, a token", decoding)
    yield Case("MLP, a step of training", training(mlp, 32, 64))
    yield Case("CNN, a step of training", training(cnn, 16, 1, 8, 8))


def captured(call: Call, device: str) -> Call:
    module = torch.get_device_module(device)
    with module.stream(module.Stream()):
        for _ in range(3):
            call()
    module.synchronize()
    graph = module.Graph()
    with module.graph(graph):
        result = call()
    # The graph does not keep what it reads and writes.
    return lambda kept=(call, result): graph.replay()


def seconds_of(call: Call, wait: Call, calls: int, each: bool) -> tuple[float, float]:
    """Until the calls have returned, and until their results are there, for one call."""
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
        if each:
            wait()
    returned = time.perf_counter()
    wait()
    return (returned - begin) / calls, (time.perf_counter() - begin) / calls


def measure(case: Case, device: str, rounds: int) -> list[float]:
    """Microseconds: eager host and whole, graph host and whole, CPU."""
    module = torch.get_device_module(device)
    eager, on_cpu = case.make(device), case.make("cpu")
    for _ in range(5):
        eager()
        on_cpu()
    replay = captured(case.make(device), device)
    for _ in range(5):
        replay()
    calls = max(3, min(50, int(0.02 / seconds_of(eager, module.synchronize, 3, True)[1])))
    found: list[list[float]] = [[] for _ in range(5)]
    for _ in range(rounds):
        for place, call in ((0, eager), (2, replay)):
            found[place].append(seconds_of(call, module.synchronize, calls, False)[0])
            found[place + 1].append(seconds_of(call, module.synchronize, calls, True)[1])
        found[4].append(seconds_of(on_cpu, lambda: None, calls, False)[1])
    return [statistics.median(times) * 1e6 for times in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    heads = ("eager host", "eager whole", "graph host", "graph whole", "CPU", "eager / graph", "CPU / graph")
    print("| Microseconds a call | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * len(heads))
    for case in cases():
        if arguments.only not in case.name:
            continue
        times = measure(case, arguments.device, arguments.rounds)
        ratios = times[1] / times[3], times[4] / times[3]
        cells = [case.name, *(f"{time:.1f}" for time in times), *(f"{ratio:.2f}" for ratio in ratios)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
