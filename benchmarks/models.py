"""Models at the sizes that people use, with random weights: a step of training and decoding, time and memory.

    python benchmarks/models.py [--device ocl] [--only GPT-2] [--steps 3] [--markdown FILE]
    python benchmarks/models.py --only ResNet-50 --minutes 30

Needs transformers. Beside the device stand torch's CPU as shipped and with a heap that keeps its memory, each in a
process of its own, one after the other; seconds are the least of the steps after the first. Memory is the most that the
process held at once beyond what it held before the model, of which the device's process keeps compiled kernels too; and
what the device's allocator gave out at most. Losses of the first step are compared.

With `--minutes` one model trains on the device so long, and a line each minute tells of time and memory: neither may
grow. The exit status is 1 if memory of the last half is more than 2 % above that of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], float]

_PAGE = os.sysconf("SC_PAGE_SIZE")
# For the heap that keeps its memory: nothing is mapped by itself, nothing given back.
_WARM = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 62), "MALLOC_TOP_PAD_": str(64 << 20)}
SIDES = ("cpu", "cpu, warm heap", "device")


@dataclass(frozen=True)
class Work:
    """`make(device)` returns a step, which returns a number that is the same on every device but for rounding."""

    name: str
    make: Callable[[str], Step]


def resnet() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    return model, {"pixel_values": torch.randn(4, 3, 224, 224), "labels": torch.randint(1000, (4,))}


def bert() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertForMaskedLM

    words = torch.randint(30522, (4, 128))
    model = BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return model, {"input_ids": words, "labels": words}


def gpt2() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    words = torch.randint(50257, (2, 256))
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return model, {"input_ids": words, "labels": words}


def llama() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Of half a billion parameters: grouped heads, a large vocabulary whose embedding is the last layer too."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    words = torch.randint(151936, (1, 128))
    return LlamaForCausalLM(config), {"input_ids": words, "labels": words}


Source = Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]


def training(source: Source, dtype: torch.dtype = torch.float32) -> Callable[[str], Step]:
    def make(device: str) -> Step:
        torch.manual_seed(0)
        model, inputs = source()
        model = model.to(device, dtype).train()
        moved = {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        def step() -> float:
            optimizer.zero_grad()
            loss: torch.Tensor = model(**moved).loss
            loss.backward()
            optimizer.step()
            return float(loss)

        return step

    return make


def decoding(source: Source, dtype: torch.dtype = torch.float32, count: int = 32) -> Callable[[str], Step]:
    """So many words, one after the other, behind 64; the number is the sum of the last word's logits' magnitudes."""

    def make(device: str) -> Step:
        torch.manual_seed(0)
        model, inputs = source()
        model = model.to(device, dtype).eval()
        words = inputs["input_ids"][:1].to(device)

        @torch.no_grad()
        def step() -> float:
            given = model(input_ids=words[:, :64], use_cache=True)
            for at in range(64, 64 + count):
                word = words[:, at : at + 1]
                given = model(input_ids=word, past_key_values=given.past_key_values, use_cache=True)
            return float(given.logits.float().abs().mean())

        return step

    return make


WORKS = [
    Work("ResNet-50, training, 4 of 224x224", training(resnet)),
    Work("BERT-base, training, 4 of 128 words", training(bert)),
    Work("GPT-2 small, training, 2 of 256 words", training(gpt2)),
    Work("GPT-2 small, 32 words decoded", decoding(gpt2)),
    Work("Llama of 0.5 B, bfloat16, training, 128 words", training(llama, torch.bfloat16)),
    Work("Llama of 0.5 B, bfloat16, 32 words decoded", decoding(llama, torch.bfloat16)),
    Work("Llama of 0.5 B, float16, 32 words decoded", decoding(llama, torch.float16)),
]


def resident(most: bool = False) -> int:
    """Bytes that the process holds now, or has held at most."""
    if not most:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def measure(work: Work, device: str, steps: int) -> dict[str, Any]:
    """In this process."""
    warnings.simplefilter("ignore")
    module = torch.get_device_module(device)
    torch.ones(1, device=device).sum().item()  # opens it
    before = resident()
    step = work.make(device)
    begin = time.perf_counter()
    first = step()
    compiling = time.perf_counter() - begin
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        module.synchronize()
        seconds.append(time.perf_counter() - begin)
    given = 0 if device == "cpu" else module.max_memory_allocated()
    memory = {"resident": resident(most=True) - before, "allocated": given}
    return {"seconds": min(seconds), "first": compiling, "number": first, **memory}


def elsewhere(work: Work, side: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own; what went wrong is "error"."""
    device = options.device if side == "device" else "cpu"
    command = [sys.executable, __file__, "--measure", work.name, "--device", device, "--steps", str(options.steps)]
    more = _WARM if side == SIDES[1] else {}
    if device == "cpu":
        more["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = subprocess.run(command, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"error": f"status {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Of the table: seconds, ratios, memory in GB, and how far the numbers of the first step are apart."""
    wrong = [f"{side}: {each['error']}" for side, each in found.items() if "error" in each]
    if wrong:
        return [name, "; ".join(wrong), *[""] * 7]
    shipped, warm, device = (found[side] for side in SIDES)
    apart = abs(device["number"] - shipped["number"]) / abs(shipped["number"])
    return [
        name,
        f"{shipped['seconds']:.2f}",
        f"{warm['seconds']:.2f}",
        f"{device['seconds']:.2f}",
        f"{shipped['seconds'] / device['seconds']:.2f}",
        f"{warm['seconds'] / device['seconds']:.2f}",
        f"{shipped['resident'] / 1e9:.2f}",
        f"{device['resident'] / 1e9:.2f} ({device['allocated'] / 1e9:.2f})",
        f"{apart:.0e}",
    ]


HEAD = ["", "CPU, s", "warm heap, s", "device, s", "CPU / device", "warm / device", "CPU, GB", "device, GB", "apart"]


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def soak(work: Work, device: str, minutes: float) -> int:
    """Trains so long. Returns the exit status."""
    warnings.simplefilter("ignore")
    module = torch.get_device_module(device)
    step = work.make(device)
    for _ in range(3):
        step()
    begin, steps, held = time.monotonic(), 0, [float(resident())]
    while (passed := time.monotonic() - begin) < 60 * minutes:
        number, steps = step(), steps + 1
        if passed > 60 * len(held):
            held.append(resident())
            given = module.memory_allocated() / 1e6
            print(
                f"{len(held) - 1:3} min  {steps:6} steps  loss {number:.4f}  {held[-1] / 1e6:.0f} MB  ({given:.0f} MB)",
                flush=True,
            )
    half = len(held) // 2
    growth = max(held[half:]) / max(held[: half + 1]) - 1
    print(f"{steps} steps, memory {100 * growth:+.1f} % in the second half")
    return int(growth > 0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="those whose names contain this")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--minutes", type=float, help="train the first of them so long")
    parser.add_argument("--markdown", type=Path, help="where the table is written too")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        (work,) = (work for work in WORKS if work.name == options.measure)
        print(json.dumps(measure(work, options.device, options.steps)))
        return
    works = [work for work in WORKS if options.only in work.name]
    if not works:
        parser.error(f"no model's name contains {options.only!r}")
    if options.minutes:
        sys.exit(soak(works[0], options.device, options.minutes))
    rows = []
    for work in works:
        rows.append(row(work.name, {side: elsewhere(work, side, options) for side in SIDES}))
        print("  ".join(rows[-1]), flush=True)
    print(table(rows))
    if options.markdown:
        from harness.machine import processor

        cores, day = len(os.sched_getaffinity(0)), time.strftime("%Y-%m-%d")
        about = f"{processor()}, {cores} cores, torch {torch.__version__}, device {options.device}; {day}"
        options.markdown.write_text(f"<!-- python benchmarks/models.py -->\n\n{about}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
