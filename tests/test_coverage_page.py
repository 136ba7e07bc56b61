"""The page of a conformance run, in a headless Chromium: what it shows, and that it works on a phone and on a desk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser
import pytest

from torchgraft.testing.conformance import report
from torchgraft.testing.conformance.runner import read_results

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESK = (390, 844), (1280, 900)
LONG = "nn.functional.an_op_whose_name.is_wider_than_a_phone"

STORED, COMPILED = (
    list(read_results(Path(__file__).parent / "conformance" / f"{name}.jsonl.gz").values())
    for name in ("pocl", "pocl-compiled")
)
CHECK = {"samples": 3, "failed": 0, "fallbacks": 0, "refused": 0}
# What the stored run has not, since it has been short of disasters.
MADE_UP: list[dict[str, Any]] = [
    {"case": f"{LONG}[float32]", "status": "ran", "checks": {"values": CHECK}, "way": "native", "seconds": 1.5},
    {
        "case": "wrong_op[float32]",
        "status": "ran",
        "checks": {"values": {**CHECK, "failed": 1, "message": "</script><b>" + "unbreakable" * 40}},
        "fell_back": {"aten::made_up": 1},
        "seconds": 99.0,
    },
    {
        "case": "of_a_library[float32]",
        "status": "ran",
        "checks": {"values": {**CHECK, "by": {"kernels": 1, "operators": 2}}},
        "way": "native",
    },
    {"case": "wrong_op[bool]", "status": "SIGSEGV", "checks": {}, "message": "it died"},
]
RECORDS = [*STORED, *MADE_UP, *report.compiled(COMPILED)]
OPS = {report.split(record["case"])[0] for record in RECORDS}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    try:
        with browser.chromium() as running:
            yield running
    except RuntimeError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "coverage.html"
    file.write_text(report.html([*STORED, *MADE_UP], "A test", COMPILED))
    return file.as_uri()


@pytest.fixture(params=[PHONE, DESK], ids=["phone", "desk"])
def page(request: pytest.FixtureRequest, chromium: Browser, address: str) -> Iterator[Page]:
    """The page, which must ask for nothing else and leave the console empty."""
    width, height = request.param
    opened = chromium.new_page(viewport={"width": width, "height": height})
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda asked: said.append(asked.url) if asked.url != address else None)
    opened.goto(address)
    yield opened
    opened.close()
    assert not said


def names(page: Page) -> list[str]:
    return page.locator("#ops .name").all_inner_texts()


def choose(page: Page, **wanted: str) -> None:
    for field, value in wanted.items():
        page.select_option(f"#{field}", value)


def shown(page: Page) -> tuple[int, int]:
    """How many ops and cases the page says are left."""
    words = page.inner_text("#count").split()
    return int(words[0]), int(words[4])


@pytest.mark.thorough
def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    page.fill("#search", "o")
    for summary in page.locator("#ops summary").all()[-20:]:
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    beyond = "[...document.querySelectorAll('body *')].filter(each => each.getBoundingClientRect().right > innerWidth)"
    assert page.evaluate(f"{beyond}.map(each => each.outerHTML)") == []


def test_long_names_wrap(page: Page) -> None:
    heights = {}
    for name in (LONG, "wrong_op"):
        page.fill("#search", f"{name}[")
        assert names(page) == [name]
        box = page.locator("#ops .name").bounding_box()
        assert box
        heights[name] = box["height"]
    on_a_phone = page.viewport_size == {"width": PHONE[0], "height": PHONE[1]}
    assert (heights[LONG] > 1.5 * heights["wrong_op"]) == on_a_phone


def test_totals_stand_on_top(page: Page) -> None:
    legend = [each.split() for each in page.locator("#legend button").all_inner_texts()]
    counted = {name: int(count) for _, name, count in legend}
    figures = report.figures(RECORDS)
    assert {name: counted.get(name, 0) for name in report.OWN} == figures.ways
    assert counted["wrong"] == sum(report.state(record) == "wrong" for record in RECORDS) > 20 and counted["crash"] == 1
    rows = [
        row.inner_text().replace(", compiled", ",compiled").split() for row in page.locator("#dtypes tbody tr").all()
    ]
    assert [row[:2] for row in rows] == [
        *([dtype.replace(" ", ""), str(each.run)] for dtype, each in report.by_dtype(RECORDS).items()),
        ["all", str(figures.run)],
    ]
    assert rows[-1][3] == f"{100 * figures.native / figures.run:.2f}"
    first = page.locator("#ops details").first.bounding_box()
    last = page.locator("#dtypes tr").last.bounding_box()
    assert first and last and last["y"] < first["y"]


def test_an_op_is_a_row_that_opens_to_its_cases(page: Page) -> None:
    assert sorted(names(page)) == sorted(OPS)
    assert shown(page) == (len(OPS), len(RECORDS))
    page.fill("#search", "wrong_op")
    assert page.locator("#ops summary span:not(:empty)").all_inner_texts() == ["wrong_op", "✗", "✗✗"]
    page.click("#ops summary")
    cases = page.locator("#ops .case")
    cases.last.wait_for()
    assert cases.count() == 2
    assert "on the CPU: aten::made_up" in cases.first.inner_text()
    assert "failed: values: </script><b>unbreakable" in cases.first.inner_text()
    assert "it died" in cases.last.inner_text()


def test_operators_have_a_sign(page: Page) -> None:
    page.fill("#search", "of_a_library")
    assert page.locator("#ops summary span:not(:empty)").all_inner_texts() == ["of_a_library", "◆"]
    page.click("#ops summary")
    case = page.locator("#ops .case")
    case.wait_for()
    assert "◆ operators" in case.inner_text()
    assert "forward: 1 by kernels or views, 2 by operators" in case.inner_text()


def test_what_is_compiled_stands_beside_the_same_dtype(page: Page) -> None:
    page.fill("#search", "native_layer_norm[float16")
    cells = page.locator("#ops summary span").all()[1:]
    assert len(cells) == page.locator("#head span").count() - 1
    (cell,) = [cell for cell in cells if cell.locator("b[title^='float16:']").count()]
    assert cell.locator("b").inner_text() == "●"
    assert cell.locator("sup").get_attribute("title") == "float16, compiled: wrong"


def test_search(page: Page) -> None:
    for text, found in {
        "ADDMM": ["addmm", "addmm.decomposed"],
        "wrong_op[bool]": ["wrong_op"],
        "aten::made_up": ["wrong_op"],
        "it died": ["wrong_op"],
        "no such op": [],
    }.items():
        page.fill("#search", text)
        assert [name for name in names(page) if "sparse" not in name] == found
    page.press("#search", "Enter")  # sends nothing anywhere
    page.fill("#search", "")
    assert len(names(page)) == len(OPS)


@pytest.mark.thorough
def test_filters(page: Page) -> None:
    def expect(**wanted: str) -> None:
        found = [
            each
            for each in RECORDS
            if wanted.get("dtype") in (None, report.split(each["case"])[1])
            and wanted.get("state") in (None, report.state(each))
            and wanted.get("gradients") in (None, report.gradients(each))
        ]
        assert found and shown(page) == (len({report.split(each["case"])[0] for each in found}), len(found))

    choose(page, dtype="complex64")
    expect(dtype="complex64")
    choose(page, state="fallback")
    expect(dtype="complex64", state="fallback")
    choose(page, dtype="", state="", gradients="fallback")
    expect(gradients="fallback")
    choose(page, gradients="")
    crash = page.locator("#legend button", has_text="crash")
    crash.click()
    assert names(page) == ["wrong_op"] and crash.get_attribute("aria-pressed") == "true"
    crash.click()
    expect()


@pytest.mark.thorough
def test_order(page: Page) -> None:
    assert names(page) == sorted(OPS)
    page.click("#direction")
    assert names(page) == sorted(OPS, reverse=True)
    page.click("#direction")
    choose(page, order="state")
    assert names(page)[0] == "wrong_op"
    choose(page, order="seconds")
    assert names(page)[:2] == ["wrong_op", LONG]
    choose(page, order="samples")
    samples = dict.fromkeys(OPS, 0)
    for record in RECORDS:
        samples[report.split(record["case"])[0]] += sum(check["samples"] for check in record["checks"].values())
    assert [samples[name] for name in names(page)] == sorted(samples.values(), reverse=True)
