"""Functions in C on the runtime's streams, memory and graphs: torchgraft/functions.h."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import Script

from torchgraft.driver_table import HEADER

SOURCE = r"""
#define TORCHGRAFT_FUNCTIONS
#include "torchgraft/functions.h"
#include <stdio.h>
#include <string.h>

typedef struct { long count; float factor; } work;

static const char* scale(tg_stream stream, void* const* addresses, uint32_t count, const void* data) {
  const work* of = data;
  const float* x = addresses[0];
  float *y = addresses[1], *squares = addresses[2];
  if (stream == NULL) return "there is no stream";
  if (count != 3) return "there are three tensors";
  if (of->factor != of->factor) return "the factor is no number";
  for (long i = 0; i < of->count; ++i) squares[i] = x[i] * x[i];
  for (long i = 0; i < of->count; ++i) y[i] = of->factor * squares[i];
  return NULL;
}

/* y = factor x^2; 1 on failure. */
TORCHGRAFT_SHOWN int scaled_squares(int device, const float* x, float* y, long count, float factor) {
  void* squares = torchgraft_scratch(device, count * sizeof(float));
  if (squares == NULL) return 1;
  void* addresses[] = {(void*)x, y, squares};
  work of = {count, factor};
  return torchgraft_submit(device, "scaled_squares", scale, addresses, 3, &of, sizeof of) != NULL;
}
TORCHGRAFT_SHOWN void* stream_of(int device) { return torchgraft_stream(device); }
TORCHGRAFT_SHOWN const char* error(void) { return torchgraft_error(); }
TORCHGRAFT_SHOWN void* scratch(int device, unsigned long long bytes) { return torchgraft_scratch(device, bytes); }
"""

# A device in C, whose memory is the host's, so that the function above can be its maker's.
HEAD = """
import ctypes, sys, threading
import torch, torchgraft, c_driver
torchgraft.register("cxx", [torchgraft.SharedLibrary(c_driver.library())])
lib = torchgraft.load_library(sys.argv[1])
lib.stream_of.restype = lib.scratch.restype = ctypes.c_void_p
lib.scratch.argtypes = [ctypes.c_int, ctypes.c_uint64]
lib.error.restype = ctypes.c_char_p

def scaled_squares(x, factor, device=0):
    y = torch.empty_like(x)
    address = lambda t: ctypes.c_void_p(t.data_ptr())
    if lib.scaled_squares(device, address(x), address(y), ctypes.c_long(x.numel()), ctypes.c_float(factor)):
        raise RuntimeError(lib.error().decode())
    return y
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("functions"), SOURCE)


def build(folder: Path, source: str, *flags: str) -> Path:
    (folder / "functions.c").write_text(source)
    out = folder / "functions.so"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", "-shared", *flags]
    subprocess.run([*command, f"-I{HEADER.parents[1]}", "-o", out, folder / "functions.c"], check=True)
    return out


def check(script: Script, library: Path, body: str) -> None:
    script(HEAD.replace("sys.argv[1]", repr(str(library))) + body)


def test_results_and_profile(script: Script, library: Path) -> None:
    check(
        script,
        library,
        """
for n in (1, 7, 1000):
    x = torch.randn(n)
    torch.testing.assert_close(scaled_squares(x.to("cxx"), 2.5).cpu(), 2.5 * x * x)
assert lib.stream_of(0)
before = lib.stream_of(0)
with torch.Stream(device="cxx"):
    assert lib.stream_of(0) not in (None, before)
    torch.testing.assert_close(scaled_squares(x.to("cxx"), 3).cpu(), 3 * x * x)
with torch.profiler.profile() as profile:
    scaled_squares(x.to("cxx"), 1)
    torch.cxx.synchronize()
assert any(event.name == "scaled_squares" for event in profile.events()), [e.name for e in profile.events()]
""",
    )


def test_a_graph_runs_it_at_each_replay(script: Script, library: Path) -> None:
    check(
        script,
        library,
        """
x = torch.randn(100, device="cxx")
scaled_squares(x, 2)
graph = torch.cxx.Graph()
with torch.cxx.graph(graph):
    y = scaled_squares(x + 1, 2)
    z = scaled_squares(y, 3) - 1
    others = torch.full((100,), float("nan"), device="cxx")  # in memory that was scratch, for all that is known
for _ in range(3):
    x.copy_(torch.randn(100))
    y.zero_()
    graph.replay()
    y_expected = 2 * (x.cpu() + 1) ** 2
    torch.testing.assert_close(y.cpu(), y_expected)
    torch.testing.assert_close(z.cpu(), 3 * y_expected**2 - 1)

# Work that is given to the stream itself would be done once, and never again: the capture fails.
try:
    with torch.cxx.graph(torch.cxx.Graph()):
        assert lib.stream_of(0) is None and b"native handle" in lib.error(), lib.error()
except RuntimeError as error:
    assert "native handle cannot be captured" in str(error), error
else:
    raise SystemExit("no error")
assert lib.stream_of(0)
""",
    )


def test_mistakes(script: Script, library: Path, tmp_path: Path) -> None:
    plain = build(tmp_path, "int nothing(void) { return 0; }")
    check(
        script,
        library,
        f"""
def refused(call, kind, *texts):
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise SystemExit(f"no {{kind}}")

x = torch.randn(5, device="cxx")
nan = float("nan")
refused(lambda: scaled_squares(x, nan), RuntimeError, "cxx:0", "scaled_squares failed: the factor is no number")
torch.testing.assert_close(scaled_squares(x, 2).cpu(), 2 * x.cpu() ** 2)
refused(lambda: scaled_squares(x, 1, device=7), RuntimeError, "there is no device 7 of 'cxx'")
assert lib.scratch(0, 1 << 60) is None
assert b"memory" in lib.error(), lib.error()
assert lib.stream_of(-1) is None and b"no device -1" in lib.error()
# A graph whose function fails when it is replayed is the replay's error.
graph = torch.cxx.Graph()
with torch.cxx.graph(graph):
    scaled_squares(x, float("nan"))
refused(graph.replay, RuntimeError, "the factor is no number")
assert (x + 1).cpu().shape == (5,)
refused(lambda: torchgraft.load_library({str(plain)!r}), ValueError, "does not use torchgraft/functions.h")
refused(lambda: torchgraft.load_library("/nonexistent.so"), OSError, "nonexistent")
# Each thread has an error, and scratch, of its own.
failures = []
def work(factor):
    try:
        for _ in range(200):
            if factor != factor:
                refused(lambda: scaled_squares(x, factor), RuntimeError, "the factor is no number")
            else:
                torch.testing.assert_close(scaled_squares(x, factor).cpu(), factor * x.cpu() ** 2)
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work, args=(factor,)) for factor in (2.0, float("nan"), 3.0, 5.0)]
for t in threads: t.start()
for t in threads: t.join()
assert not failures, failures
""",
    )


def test_a_library_for_a_later_version(script: Script, tmp_path: Path) -> None:
    newer = SOURCE.replace('#include "torchgraft/functions.h"', '#include "functions.h"')
    text = (HEADER.parent / "functions.h").read_text()
    assert text.count("TORCHGRAFT_FUNCTIONS_VERSION 1u") == 1
    text = text.replace("TORCHGRAFT_FUNCTIONS_VERSION 1u", "TORCHGRAFT_FUNCTIONS_VERSION 2u")
    (tmp_path / "functions.h").write_text(text)
    (tmp_path / "driver.h").write_text(HEADER.read_text())
    library = build(tmp_path, newer)
    with pytest.raises(AssertionError, match="was built with the header of a later torchgraft"):
        check(script, library, "")


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    (tmp_path / "one.cpp").write_text('#define TORCHGRAFT_FUNCTIONS\n#include "torchgraft/functions.h"\n')
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run(["c++", *flags, f"-I{HEADER.parents[1]}", tmp_path / "one.cpp"], check=True)
