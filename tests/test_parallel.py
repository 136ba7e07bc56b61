"""What torch builds on collectives: trained in several processes on the device, networks are what one process on the
CPU makes of them. What each process does is in parallel_checks.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import parallel_checks
import pytest
from processes import environment_of
from ranks import Said, run_checks

CHECKS = Path(parallel_checks.__file__)
EXAMPLE = CHECKS.parents[1] / "examples/train_ddp.py"


@pytest.fixture(autouse=True)
def _device(device: str) -> None:
    if device in ("npy", "cxx", "c"):
        pytest.skip("other processes find a device that is installed")


def asked(session: pytest.Session, count: int) -> list[str]:
    """The checks that this run is to do in so many processes."""
    calls = [getattr(item, "callspec", None) for item in session.items if item.path == Path(__file__)]
    return [call.params["check"] for call in calls if call is not None and call.params.get("said") == count]


@pytest.fixture(scope="module", params=[2, 3, 4], ids=["two", "three", "four"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """For each check, what each rank said; nothing, where it did not fail."""
    count: int = request.param
    return run_checks(count, CHECKS, asked(request.session, count), tmp_path_factory.mktemp("ranks"))


@pytest.mark.quick(said=2)
@pytest.mark.parametrize("check", parallel_checks.check)
def test_in_each_process(said: Said, check: str) -> None:
    assert "".join(said[check]) == ""


Losses = dict[tuple[str, int], tuple[float, float]]


def run_example(processes: int, *options: str | Path, launcher: tuple[str, ...] = ()) -> tuple[str, Losses]:
    """What it prints, and the losses: by network and step those of all processes and of one."""
    name = parallel_checks.DEVICE
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), *launcher] if processes else []
    done = subprocess.run(
        [sys.executable, *launch, EXAMPLE, "--device", name, "--steps", "8", *options],
        # Without the first variable torchrun gives processes that it starts anew the addresses of those that have
        # died. The port is that of the one process without torchrun: whichever is free.
        env=environment_of(True, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", MASTER_PORT="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("digits ", "text "))]
    return done.stdout, {(name, int(step)): (float(loss), float(alone)) for name, step, loss, alone in rows}


def assert_as_alone(losses: Losses) -> None:
    assert list(losses) == [(name, step) for name in ("digits", "text") for step in range(8)]
    for loss, alone in losses.values():
        assert loss == pytest.approx(alone, abs=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [0, 2])
def test_the_example(processes: int) -> None:
    """Started as the README says, and without torchrun."""
    _, losses = run_example(processes, launcher=("--standalone",))
    assert_as_alone(losses)


@pytest.mark.thorough
def test_training_goes_on_after_a_process_has_died(tmp_path: Path) -> None:
    """Torchrun starts all of them anew, and they go on from the last checkpoint; later with another number."""
    said, first = run_example(
        2, "--checkpoint", tmp_path, "--fail-at", "6", launcher=("--standalone", "--max-restarts", "1")
    )
    assert_as_alone(first)
    lives = said.split("digits: step,")[1:]
    assert [life.split("digits ")[1].split()[0] for life in lives] == ["0", "5"]
    for folder in tmp_path.glob("text/*"):  # as if it had ended before
        (folder / ".metadata").unlink()
    _, other = run_example(4, "--checkpoint", tmp_path, launcher=("--standalone",))
    assert min(step for name, step in other if name == "digits") == 5
    assert {**first, **other}.keys() == first.keys()
    for key, (loss, _) in other.items():
        assert loss == pytest.approx(first[key][0], abs=2e-3)
