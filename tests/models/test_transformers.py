"""Networks of the library transformers, small and with random weights: trained, and generating text in its ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agreement import assert_learns_alike, assert_near
from torch import nn

pytestmark = pytest.mark.no_fallback

WORDS = 100
WHISPER = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LLAMA = {**SIZES, "vocab_size": WORDS, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "vocab_size": WORDS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}
    | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "llama": LLAMA,
    "mixtral": {**LLAMA, "num_local_experts": 4},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS}
    | {"dropout_rate": 0.0, "decoder_start_token_id": 0},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": WORDS, "state_size": 8},
}


def make(kind: str) -> Any:
    import transformers

    automatic = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    configuration = transformers.AutoConfig.for_model(kind, **CONFIGURATIONS[kind])
    return automatic.get(kind, transformers.AutoModelForCausalLM).from_config(configuration)


@pytest.mark.parametrize("kind", CONFIGURATIONS)
@pytest.mark.quick(kind="mamba")
def test_training(device: str, kind: str) -> None:
    def loss(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(input_ids=words, labels=words).loss
        return value

    assert_learns_alike(device, make(kind), loss, torch.randint(3, WORDS, (2, 10)), error=1e-3)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "without a cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "no repetition": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize(
    ("kind", "way"), [*(("llama", way) for way in WAYS), ("gpt2", "greedy"), ("gpt2", "beams"), ("t5", "beams")]
)
def test_generation(device: str, kind: str, way: str) -> None:
    model, words = make(kind).eval(), torch.randint(3, WORDS, (2, 6))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0} | WAYS[way]
    present = torch.ones_like(words)
    present[1, :2] = 0  # padded on the left
    expected = model.generate(words, attention_mask=present, **options)
    got = model.to(device).generate(words.to(device), attention_mask=present.to(device), **options)
    assert got.device.type == torch.device(device).type
    assert torch.equal(got.cpu(), expected)


def test_sampling(device: str) -> None:
    model, words = make("llama").eval().to(device), torch.randint(3, WORDS, (2, 6), device=device)
    drawn = model.generate(words, max_new_tokens=6, do_sample=True, top_k=20, top_p=0.95, min_p=0.01, pad_token_id=0)
    assert drawn.shape[1] <= 12
    assert torch.equal(drawn[:, :6], words)
    assert ((drawn >= 0) & (drawn < WORDS)).all()


def test_vision_and_speech(device: str) -> None:
    import transformers

    vision = {**SIZES, "image_size": 32, "patch_size": 8}
    clip = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**SIZES, "vocab_size": WORDS, "eos_token_id": 2}, vision_config=vision, projection_dim=16
        )
    ).eval()
    whisper = transformers.WhisperModel(
        transformers.WhisperConfig(
            d_model=32,
            **{f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in WHISPER.items()},
            vocab_size=WORDS,
            max_source_positions=50,
            max_target_positions=20,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    ).eval()
    words, pictures, sound = torch.randint(3, WORDS, (2, 8)), torch.randn(2, 3, 32, 32), torch.randn(2, 80, 100)
    results = []
    with torch.no_grad():
        for where in ("cpu", device):
            w, p, s = words.to(where), pictures.to(where), sound.to(where)
            heard = whisper.to(where)(s, decoder_input_ids=w).last_hidden_state
            results.append((clip.to(where)(w, p).logits_per_image, heard))
    for expected, got in zip(*results, strict=True):
        assert_near(got, expected, 1e-4)
