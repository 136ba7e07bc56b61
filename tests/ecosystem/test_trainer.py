"""The Trainer of transformers runs on the device by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import devices, library

pytestmark = pytest.mark.no_fallback


def trainer(folder: Path, dropout: float = 0.0, **options: Any) -> Any:
    """A Trainer of a small network with random weights."""
    library("accelerate")
    transformers = library("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "bert",
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    examples = [{"input_ids": torch.randint(0, 64, (12,)), "labels": number % 2} for number in range(32)]
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=4,
        logging_steps=1,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    return transformers.Trainer(
        transformers.AutoModelForSequenceClassification.from_config(config),
        arguments,
        train_dataset=examples,
        eval_dataset=examples[:8],
    )


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] + [trainer.evaluate()["eval_loss"]]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"optim": "adamw_torch_fused"}, 1e-5),
        pytest.param(
            {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}, 1e-5, marks=pytest.mark.thorough
        ),
        pytest.param({"bf16": True}, 5e-3, marks=pytest.mark.thorough),
        pytest.param({"fp16": True}, 1e-3, marks=pytest.mark.thorough),
        pytest.param({"bf16_full_eval": True}, 5e-3, marks=pytest.mark.thorough),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_training(tmp_path: Path, device: str, options: dict[str, Any], error: float) -> None:
    """And evaluation."""
    here = trainer(tmp_path, **options)
    assert here.args.device.type == torch.device(device).type
    here.train()
    assert devices(here.model) == {torch.device(device).type}
    precise = {name: value for name, value in options.items() if name not in ("bf16", "fp16")}
    there = trainer(tmp_path, use_cpu=True, **precise)
    there.train()
    assert devices(there.model) == {"cpu"}
    torch.testing.assert_close(losses(here), losses(there), rtol=error, atol=error)


@pytest.mark.thorough
def test_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path, device: str) -> None:
    """With dropout, so with the device's random numbers."""
    whole = trainer(tmp_path, dropout=0.2, save_steps=2)
    whole.train()
    expected = losses(whole)
    resumed = trainer(tmp_path, dropout=0.2, save_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses(resumed) == expected
