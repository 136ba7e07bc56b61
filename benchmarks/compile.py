"""torch.compile on the device, by inductor and by the toolkit's own compiler ("graft"), beside eager calls there, and
beside torch's CPU with and without its own inductor.

    python benchmarks/compile.py [--device ocl] [--only decoding] [--rounds 7]

Whole: a call and a wait for its results. Host: until the calls have returned, several after each other without a wait.
Times are medians of rounds in which all take turns. Launches are those of one call, before and after fusion by either.
Compiling: the first call in a new process with empty caches, and in another one with what the first has left; beside
it inductor's for the CPU, and graft's with empty caches. Each case has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from graphs import cnn, decoding, mlp, seconds_of
from torch import nn
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]
Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """`make(device, compile)` prepares the data and returns what is called, the same each time."""

    name: str
    make: Callable[[str, Compile], Call]


def step_of(model: nn.Module, loss_of: Call) -> Call:
    """A step of training; the optimiser's part is not compiled."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        loss: Any = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def training(network: Callable[[], nn.Module], *shape: int, classes: int = 10) -> Callable[[str, Compile], Call]:
    """Of a classifier."""

    def make(device: str, compile: Compile) -> Call:
        torch.manual_seed(0)
        model = network().to(device)
        x, y = torch.randn(*shape).to(device), torch.randint(classes, shape[:1]).to(device)
        return step_of(model, compile(lambda: F.cross_entropy(model(x).flatten(1), y)))

    return make


class ResNet(nn.Module):
    """ResNet-18."""

    def __init__(self) -> None:
        from transformers import ResNetConfig, ResNetForImageClassification

        super().__init__()
        sizes = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
        self.model = ResNetForImageClassification(ResNetConfig(layer_type="basic", num_labels=10, **sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


class Block(nn.Module):
    """Of a transformer, norms first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.into(self.norms[0](x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.feed(self.norms[1](x))


class Transformer(nn.Module):
    """A GPT or an encoder as BERT's."""

    def __init__(self, causal: bool, layers: int = 4, width: int = 128, tokens: int = 512, length: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(places))))


def gpt_training(device: str, compile: Compile) -> Call:
    torch.manual_seed(0)
    model = Transformer(causal=True).to(device)
    tokens = torch.randint(512, (8, 65)).to(device)
    loss_of = compile(lambda: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    return step_of(model, loss_of)


class Gated(nn.Module):
    """A block whose products take nearly all of its time: beside those, little is left to win by fusing."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.out(F.gelu(self.into(self.norms[0](x)), approximate="tanh"))
        return x + inner * self.norms[1](inner).sigmoid()


def one_by_one(block: Callable[[], nn.Module], count: int, *shape: int) -> Callable[[str, Compile], Call]:
    """Training of blocks after each other, each compiled for itself."""

    def make(device: str, compile: Compile) -> Call:
        torch.manual_seed(0)
        model = nn.Sequential(*(compile(block().to(device)) for _ in range(count)))
        x = torch.randn(*shape).to(device)
        return step_of(model, lambda: model(x).square().mean())

    return make


def encoding(device: str, compile: Compile) -> Call:
    torch.manual_seed(0)
    model = compile(Transformer(causal=False).eval().to(device))
    tokens = torch.randint(512, (4, 64)).to(device)
    return torch.no_grad()(lambda: model(tokens))


class LSTM(nn.Module):
    """A cell step by step, as one writes it who has changed it."""

    def __init__(self, width: int = 64, steps: int = 10) -> None:
        super().__init__()
        self.width, self.steps = width, steps
        self.into, self.again = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], self.width)
        for step in range(self.steps):
            i, f, g, o = (self.into(x[:, step]) + self.again(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class UNet(nn.Module):
    """One level of a diffusion model's: residual blocks with group norms around attention over pixels."""

    def __init__(self, width: int = 32, attends: bool = True) -> None:
        super().__init__()
        self.attends = attends
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(5))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.into, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def residual(self, x: torch.Tensor, number: int) -> torch.Tensor:
        inner = self.convolutions[number](F.silu(self.norms[number](x)))
        return x + self.convolutions[number + 1](F.silu(self.norms[number + 1](inner)))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.flatten(2).transpose(1, 2)[:, None] for t in self.into(self.norms[4](x)).chunk(3, 1))
        mixed = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
        return x + self.out(mixed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.residual(self.first(x), 0)
        return self.last(self.residual(self.attention(x) if self.attends else x, 2))


def denoising(side: int, attends: bool = True) -> Callable[[str, Compile], Call]:
    """Of one image. A pixel attends to all, so that a quarter of them needs a sixteenth of attention's arithmetic."""

    def make(device: str, compile: Compile) -> Call:
        torch.manual_seed(0)
        model, x = compile(UNet(attends=attends).eval().to(device)), torch.randn(1, 3, side, side).to(device)
        return torch.no_grad()(lambda: model(x))

    return make


def optimizing(device: str, compile: Compile) -> Call:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(64, 64).to(device)) for _ in range(30)]
    for parameter in parameters:
        parameter.grad = torch.randn(64, 64).to(device)
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(1e-3).to(device), capturable=device != "cpu")
    return compile(lambda: optimizer.step())


def chain(size: int) -> Callable[[str, Compile], Call]:
    def make(device: str, compile: Compile) -> Call:
        x, y = (torch.randn(size).to(device) for _ in range(2))
        work = compile(lambda x, y: ((x * 2 + y).tanh() * x.sigmoid() - y.exp().clamp(max=3)) / (x.abs() + 1))
        return lambda: work(x, y)

    return make


def of(work: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Callable[[str, Compile], Call]:
    """A function of one tensor."""

    def make(device: str, compile: Compile) -> Call:
        x, compiled = torch.randn(*shape).to(device), compile(work)
        return lambda: compiled(x)

    return make


def additions(length: int) -> Callable[[str, Compile], Call]:
    """Small ops that cannot be fused: each is seen by the caller."""

    def make(device: str, compile: Compile) -> Call:
        x = torch.ones(64).to(device)
        matrix = torch.eye(64).to(device)

        def work(x: torch.Tensor) -> torch.Tensor:
            for _ in range(length // 2):
                x = torch.mv(matrix, x) + 1
            return x

        compiled = compile(work)
        return lambda: compiled(x)

    return make


def cases() -> Iterator[Case]:
    yield Case("chain of 1,000", chain(1000))
    yield Case("chain of 1,000,000", chain(1_000_000))
    yield Case("images to NHWC, normalised", of(lambda x: (x.permute(0, 2, 3, 1) * 2 - 1).contiguous(), 8, 3, 224, 224))
    yield Case("layer norm of 50,000 rows of 24", of(lambda x: F.gelu(F.layer_norm(x, (24,))), 50_000, 24))
    yield Case("softmax of 100,000 rows of 10", of(lambda x: torch.softmax(x * 2, -1), 100_000, 10))
    yield Case("10 small ops", additions(10))
    yield Case("200 small ops", additions(200))
    yield Case("MLP, training", training(mlp, 32, 64))
    yield Case("CNN, training", training(cnn, 16, 1, 8, 8))
    yield Case("ResNet-18, training", training(ResNet, 4, 3, 64, 64))
    yield Case("LSTM, training", training(LSTM, 16, 10, 64, classes=64))
    yield Case("GPT, training", gpt_training)
    yield Case("4 gated blocks one by one, training", one_by_one(Gated, 4, 64, 256))
    yield Case("4 transformer blocks one by one, training", one_by_one(lambda: Block(128, 4, True), 4, 8, 64, 128))
    yield Case("GPT, decoding a token", decoding)
    yield Case("encoder", encoding)
    yield Case("U-Net without attention, 32 by 32", denoising(32, attends=False))
    yield Case("U-Net, 16 by 16", denoising(16))
    yield Case("U-Net, 32 by 32", denoising(32))
    yield Case("AdamW, a step", optimizing)


def launches(call: Call, device: str) -> int:
    torch.accelerator.synchronize()
    activity = getattr(ProfilerActivity, device.upper())
    with profile(activities=[ProfilerActivity.CPU, activity]) as profiled:
        call()
        torch.accelerator.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.PrivateUse1 for event in profiled.events())


#: The toolkit's own compiler.
graft: Compile = partial(torch.compile, backend="graft")


def first_call(case: Case, device: str, compile: Compile) -> float:
    """Seconds for which it compiles."""
    call = case.make(device, compile)
    begin = time.perf_counter()
    call()
    torch.accelerator.synchronize()
    return time.perf_counter() - begin


def measure(case: Case, device: str, rounds: int) -> dict[str, float]:
    """Microseconds a call."""
    variants = {
        "CPU": case.make("cpu", lambda work: work),
        "CPU compiled": case.make("cpu", torch.compile),
        "eager": case.make(device, lambda work: work),
        "compiled": case.make(device, torch.compile),
        "graft": case.make(device, graft),
    }
    wait = torch.accelerator.synchronize
    for call in variants.values():
        for _ in range(5):
            call()
    wait()
    slowest = max(seconds_of(call, wait, 3, True)[1] for call in variants.values())
    calls = max(3, min(100, int(0.05 / slowest)))
    whole: dict[str, list[float]] = {name: [] for name in variants}
    host: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            whole[name].append(seconds_of(call, wait, calls, True)[1])
            host[name].append(seconds_of(call, wait, min(calls, 20), False)[0])
    found = {name: median(times) * 1e6 for name, times in whole.items()}
    found |= {f"host {name}": median(times) * 1e6 for name, times in host.items()}
    return found | {f"launches {name}": launches(variants[name], device) for name in ("eager", "compiled", "graft")}


def in_a_process(mode: str, case: Case, device: str, rounds: int, folder: str) -> Any:
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TORCHGRAFT_CACHE_DIR": f"{folder}/kernels",
        "POCL_CACHE_DIR": f"{folder}/pocl",
    }
    command = [sys.executable, __file__, "--mode", mode, "--case", case.name, "--device", device]
    command += ["--rounds", str(rounds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(case: Case, device: str, rounds: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        cold = in_a_process("first", case, device, rounds, folder)
        warm = in_a_process("first", case, device, rounds, folder)
        by_graft = in_a_process("first graft", case, device, rounds, f"{other}/graft")
        cpu = in_a_process("first", case, "cpu", rounds, other)
        found = in_a_process("measure", case, device, rounds, folder)
    times = [found[name] for name in ("CPU", "CPU compiled", "eager", "compiled", "graft")]
    hosts = [found[f"host {name}"] for name in ("eager", "compiled", "graft")]
    ratios = [found[a] / found[b] for a, b in RATIOS]
    counts = f"{found['launches eager']} to {found['launches compiled']}, {found['launches graft']}"
    return [
        case.name,
        *(f"{value:.0f}" for value in (*times, *hosts)),
        *(f"{ratio:.2f}" for ratio in ratios),
        counts,
        *(f"{seconds:.1f}" for seconds in (cold, warm, cpu, by_graft)),
    ]


RATIOS = (("eager", "compiled"), ("eager", "graft"), ("CPU compiled", "compiled"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mode", choices=("first", "first graft", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode:
        case = next(case for case in cases() if case.name == options.case)
        found = (
            measure(case, options.device, options.rounds)
            if options.mode == "measure"
            else first_call(case, options.device, torch.compile if options.mode == "first" else graft)
        )
        print(json.dumps(found))
        return
    heads = ("CPU", "CPU compiled", "eager", "compiled", "graft", "host eager", "host compiled", "host graft")
    heads += (*map(" / ".join, RATIOS), "launches", "compiling cold s", "warm s", "CPU's s", "graft's s")
    print("| Microseconds a call | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * len(heads))
    for case in cases():
        if options.only in case.name:
            print("| " + " | ".join(row(case, options.device, options.rounds)) + " |", flush=True)


if __name__ == "__main__":
    main()
