"""Models trained on the device as on the CPU, without a fallback: alone, in threads, fed by a DataLoader, and refused
after a fork."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchgraft

pytestmark = pytest.mark.no_fallback


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, letters: int = 32, width: int = 48, length: int = 24) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.place(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(self.letter(x) + places)))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def letters() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 32, (4, 24)), torch.randint(0, 32, (4, 24))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 1, 12, 12), torch.randint(0, 10, (16,))


Data = tuple[torch.Tensor, torch.Tensor]


def train(
    model: nn.Module, data: Data, make: Callable[..., torch.optim.Optimizer], steps: int, device: str
) -> list[float]:
    """Losses of `steps` steps on one batch."""
    model = model.to(device)
    x, y = (t.to(device) for t in data)
    optimizer = make(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output.flatten(0, -2), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adam, tensor by tensor": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("make", "data"), [(Transformer, letters), (convolutional, images)], ids=["transformer", "convolutional"]
)
def test_losses_agree_with_the_cpu(
    device: str, make: Callable[[], nn.Module], data: Callable[[], Data], optimizer: str
) -> None:
    model, batch = make(), data()
    expected = train(copy.deepcopy(model), batch, OPTIMIZERS[optimizer], 6, "cpu")
    actual = train(model, batch, OPTIMIZERS[optimizer], 6, device)
    assert expected[-1] < expected[0]
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=2e-4, atol=2e-5)


def test_gradients_agree_with_the_cpu(device: str) -> None:
    for model, (x, y) in ((Transformer(), letters()), (convolutional(), images())):
        mine = copy.deepcopy(model).to(device)
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        F.cross_entropy(mine(x.to(device)).flatten(0, -2), y.to(device).flatten()).backward()
        for (name, expected), actual in zip(model.named_parameters(), mine.parameters(), strict=True):
            assert actual.grad is not None and expected.grad is not None, name
            torch.testing.assert_close(
                actual.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_two_threads_train_two_models(device: str) -> None:
    jobs = [(Transformer(), letters()), (convolutional(), images()), (Transformer(), letters())]
    make = OPTIMIZERS["adamw"]
    expected = [train(copy.deepcopy(model), data, make, 8, "cpu") for model, data in jobs]
    actual: list[list[float] | BaseException] = [[] for _ in jobs]

    def work(number: int) -> None:
        model, data = jobs[number]
        try:
            with torch.Stream(device=device) if number == 2 else torch.enable_grad():
                actual[number] = train(model, data, make, 8, device)
        except BaseException as error:
            actual[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    for mine, theirs in zip(actual, expected, strict=True):
        if isinstance(mine, BaseException):
            raise mine
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=5e-4, atol=5e-5)


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index)) ** 2


def test_data_loader_with_workers_and_pinned_memory(device: str) -> None:
    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, pin_memory=True)
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch.is_pinned()
            seen.append(batch.to(device, non_blocking=True).sum(1))
        torch.testing.assert_close(torch.cat(seen).cpu(), 3 * torch.arange(40.0) ** 2)


def test_a_forked_child_is_refused(device: str) -> None:
    torch.ones(2, device=device).sum().item()

    def child(connection: torch.multiprocessing.connection.Connection) -> None:
        try:
            torch.ones(2, device=device)
            connection.send("no error")
        except RuntimeError as error:
            connection.send(str(error))

    context = torch.multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    assert here.poll(60), "the forked child hangs"
    assert "fork" in here.recv()
    process.join(60)
    assert process.exitcode == 0


def test_a_bad_index_is_reported_and_the_device_goes_on(device: str) -> None:
    table = torch.randn(10, 4, device=device)
    for call, error in (  # those that torch's CPU raises
        (lambda i: F.embedding(i, table), IndexError),
        (lambda i: table.index_select(0, i), IndexError),
        (lambda i: table.gather(0, i[:, None]), RuntimeError),
    ):
        for bad in (10, -11):
            with pytest.raises(error):
                call(torch.tensor([1, bad], device=device)).cpu()
            assert call(torch.tensor([1, 2], device=device)).isfinite().all().item()


def test_nothing_fell_back(device: str) -> None:
    torchgraft.reset_fallback_report()
    train(Transformer(), letters(), OPTIMIZERS["adamw"], 1, device)
    assert torchgraft.fallback_report().calls == 0
