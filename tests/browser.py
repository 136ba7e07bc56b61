"""A headless Chromium, for the pages that are tested in one and the pictures that are taken with one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = "there is no Chromium here to show the page in: `make browser` provides one"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, or the one that playwright has installed.

    Raises:
        RuntimeError: if there is neither.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise RuntimeError(MISSING) from error
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=next(filter(None, map(shutil.which, NAMES)), None),
                args=["--no-sandbox"] if os.geteuid() == 0 else [],  # root has to say so
            )
        except Error as error:
            raise RuntimeError(f"{MISSING} ({error.message.splitlines()[0]})") from error
        yield browser
        browser.close()
