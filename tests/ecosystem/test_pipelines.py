"""Pipelines and models that are loaded go to the device, with no device named or by its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import devices, library

pytestmark = [pytest.mark.no_fallback, pytest.mark.thorough]


@pytest.fixture(scope="module")
def transformers() -> Any:
    return library("transformers")


@pytest.fixture
def tokenizer(transformers: Any) -> Any:
    tokenizers = library("tokenizers")
    words = "[UNK] [PAD] [CLS] [SEP] [MASK] the a cat dog runs sleeps".split()
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", eos_token="[SEP]"
    )


SMALL = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("options", [{}, {"device": 0}, {"device": -1}, {"device": "{name}"}])
def test_classification(transformers: Any, tokenizer: Any, device: str, options: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model("bert", **SMALL)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    sentences = ["the cat runs", "a dog"]
    make = transformers.pipeline
    expected = make("text-classification", model=model, tokenizer=tokenizer, device="cpu")(sentences)
    name = torch.device(device).type
    if "device" in options and isinstance(options["device"], str):
        options = {"device": name}
    pipeline = make("text-classification", model=model, tokenizer=tokenizer, **options)
    there = "cpu" if options.get("device") == -1 else name
    assert pipeline.device.type == there
    assert devices(pipeline.model) == {there}
    for got, wanted in zip(pipeline(sentences), expected, strict=True):
        assert got["label"] == wanted["label"]
        assert got["score"] == pytest.approx(wanted["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("places", "inputs"),
    [
        ("auto", "{name}"),
        (0, "{name}"),
        ({"transformer": 0, "lm_head": "cpu"}, "{name}"),
        ({"transformer": "cpu", "lm_head": 0}, "cpu"),
    ],
)
def test_models_that_are_loaded(
    transformers: Any, tokenizer: Any, device: str, places: Any, inputs: str, tmp_path: Path
) -> None:
    library("accelerate")
    config = transformers.AutoConfig.for_model(
        "gpt2", vocab_size=16, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=places)
    name = torch.device(device).type
    assert devices(loaded) - {"meta"} == {name}
    ids = torch.tensor([[5, 7, 9]])
    got = loaded(ids.to(inputs.format(name=name))).logits.cpu()
    torch.testing.assert_close(got, model(ids).logits, rtol=1e-5, atol=1e-5)
    pipeline = transformers.pipeline("text-generation", model=loaded, tokenizer=tokenizer)
    assert pipeline.device.type == inputs.format(name=name)
    assert pipeline("the cat", max_new_tokens=3)[0]["generated_text"].startswith("the cat")


def test_sentence_transformers(transformers: Any, tokenizer: Any, device: str, tmp_path: Path) -> None:
    library("sentence_transformers")
    modules = library("sentence_transformers.sentence_transformer.modules")
    transformers.BertModel(transformers.BertConfig(**SMALL)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    from sentence_transformers import SentenceTransformer

    def model(**options: Any) -> Any:
        return SentenceTransformer(modules=[modules.Transformer(str(tmp_path)), modules.Pooling(32)], **options)

    here = model()
    assert devices(here) == {torch.device(device).type}
    sentences = ["the cat", "a dog runs"]
    assert abs(here.encode(sentences) - model(device="cpu").encode(sentences)).max() < 1e-5
