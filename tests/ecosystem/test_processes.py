"""Libraries train in two processes on the device what they train in two on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import library
from processes import environment_of
from ranks import free_port

pytestmark = pytest.mark.thorough  # importing the libraries takes long, and each process does

ACCELERATE = """
import json, sys, torch, accelerate
from torch import nn
from libraries import classifier, examples

accelerator = accelerate.Accelerator(cpu=sys.argv[1] == "cpu", mixed_precision=sys.argv[2])
module, inputs = classifier(), torch.utils.data.TensorDataset(*examples())
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
batches = torch.utils.data.DataLoader(inputs, batch_size=4)
module, optimizer, batches = accelerator.prepare(module, optimizer, batches)
losses = []
for _ in range(2):
    for x, classes in batches:
        loss = nn.functional.cross_entropy(module(x), classes)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
accelerator.save_state(sys.argv[3])
accelerator.wait_for_everyone()
accelerator.load_state(sys.argv[3])
accelerator.print(json.dumps([accelerator.num_processes, accelerator.device.type, losses]))
accelerator.end_training()
"""

TRAINER = """
import json, sys, torch
from transformers import AutoConfig, AutoModelForSequenceClassification, Trainer, TrainingArguments

small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
torch.manual_seed(0)
model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **small, **still))
examples = [{"input_ids": torch.randint(0, 64, (12,)), "labels": number % 2} for number in range(16)]
quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": 1, "save_steps": 2}
chosen = {"use_cpu": sys.argv[1] == "cpu", "bf16": sys.argv[2] == "bf16"}
arguments = TrainingArguments(sys.argv[3], max_steps=3, per_device_train_batch_size=4, **quiet, **chosen)
trainer = Trainer(model, arguments, train_dataset=examples, eval_dataset=examples)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
losses.append(trainer.evaluate()["eval_loss"])
if arguments.process_index == 0:
    print(json.dumps([arguments.world_size, arguments.device.type, losses]))
"""

LIGHTNING = """
import json, sys, torch, lightning
from torch import nn
from libraries import classifier, examples

losses = []

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = classifier()

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        losses.append(self.all_gather(loss.detach()).mean().item())
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-1)

names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
given = {"accelerator": sys.argv[1], "devices": 2, "precision": {"no": "32-true", "bf16": "bf16-mixed"}[sys.argv[2]]}
trainer = lightning.Trainer(max_epochs=2, **dict.fromkeys(names, False), **given)
trainer.fit(Classifier(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*examples()), batch_size=4))
if trainer.global_rank == 0:
    print(json.dumps([trainer.world_size, trainer.strategy.root_device.type, losses]))
"""

TORCHRUN = ("torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}")
LAUNCH = ("accelerate.commands.accelerate_cli", "launch", "--num_processes", "2", "--main_process_port", "{port}")


def trained(program: Path, launcher: tuple[str, ...], where: str, precision: str, folder: Path) -> tuple[Any, ...]:
    """How many processes there were, on which device, and the losses."""
    launch = [part.format(port=free_port()) for part in launcher]
    done = subprocess.run(
        [sys.executable, *(["-m", *launch] if launch else []), program, where, precision, folder],
        env=environment_of(True, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return tuple(json.loads(line))


@pytest.mark.parametrize(
    ("name", "text", "launcher", "precision", "error"),
    [
        ("accelerate", ACCELERATE, LAUNCH, "no", 1e-4),
        ("accelerate", ACCELERATE, TORCHRUN, "bf16", 2e-2),
        ("transformers", TRAINER, TORCHRUN, "no", 1e-4),
        ("lightning.pytorch", LIGHTNING, (), "no", 1e-4),  # it starts the second process itself
        ("lightning.pytorch", LIGHTNING, TORCHRUN, "bf16", 2e-2),
    ],
    ids=["accelerate launch", "accelerate", "Trainer", "Lightning", "Lightning in torchrun"],
)
def test_two_processes(
    device: str, tmp_path: Path, name: str, text: str, launcher: tuple[str, ...], precision: str, error: float
) -> None:
    library(name)
    ours = torch.device(device).type
    program = tmp_path / "program.py"
    program.write_text(text)
    count, where, losses = trained(program, launcher, ours, precision, tmp_path / "device")
    assert (count, where) == (2, ours)
    count, where, expected = trained(program, TORCHRUN, "cpu", precision, tmp_path / "cpu")
    assert (count, where) == (2, "cpu")
    assert losses == pytest.approx(expected, rel=error, abs=error)
