"""The report in a real browser: on a desktop, on a phone, without colours, by a screen reader."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from report_results import RUN, write_results

pytest.importorskip("matplotlib", reason="matplotlib draws figures; pip install 'pmemlab[report]'")
pytest.importorskip("selenium", reason="Selenium controls the browser; make setup")

from chromium import Browser, Window, missing

from pmemlab.report.command import write_page
from pmemlab.scenarios.metrics import ResultsFile

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DESK = Window(1280, 900)
PHONE = Window(360, 740, phone=True)
# Rates, step times, hit rates and prices; two figures for memory mode (sizes of DRAM, and runs);
# three for checkpoints (saves, loads, and the time that training waits).
FIGURES = 9
SHOWN_SVG = "[...document.querySelectorAll('svg.figure')].filter(s => s.getClientRects().length)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_results(tmp_path_factory.mktemp("results"))
    write_page(folder, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(running: Browser) -> Browser:
    """The browser, without the console output and the requests of earlier tests."""
    running.console()
    running.requests()
    return running


def drawn_marks(browser: Browser) -> list[int]:
    """Returns, per visible figure, the number of its shapes that take up room on the page."""
    counts: list[int] = browser.evaluate(
        f"{SHOWN_SVG}.map(s => [...s.querySelectorAll('path, use')].filter("
        "p => { const r = p.getBoundingClientRect(); return r.width > 1 && r.height > 1 }).length)"
    )
    return counts


@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
def test_every_figure_is_drawn_without_a_console_message(
    browser: Browser, page: Path, window: Window
) -> None:
    browser.open(page, window)
    marks = drawn_marks(browser)
    assert len(marks) == FIGURES
    assert all(count >= 3 for count in marks)
    assert browser.evaluate("document.querySelectorAll('figure').length") == FIGURES
    assert browser.console() == []


def test_the_page_loads_nothing_but_itself(browser: Browser, page: Path) -> None:
    browser.open(page, DESK)
    assert browser.requests() == [page.absolute().as_uri()]
    assert browser.evaluate("document.scripts.length") == 0
    policy = "document.querySelector('meta[http-equiv=Content-Security-Policy]').content"
    assert browser.evaluate(policy).startswith("default-src 'none'")


def test_the_browser_reports_requests_and_errors_of_a_broken_page(
    browser: Browser, tmp_path: Path
) -> None:
    """Otherwise the two tests above would pass on any page."""
    page = tmp_path / "broken.html"
    page.write_text("<img src='missing.png'><script>console.error('no'); nothing()</script>")
    browser.open(page, DESK)
    assert any("missing.png" in address for address in browser.requests())
    console = browser.console()
    assert any('"no"' in line for line in console)
    assert any("Uncaught" in line for line in console)


@pytest.mark.parametrize("width", [320, 360, 430, 680, 681, 800, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, Window(width, 800, phone=width < 500))
    assert_nothing_outside(browser, width)


@pytest.mark.parametrize("width", [320, 1280])
def test_long_names_are_broken_and_do_not_widen_the_page(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    long = "a-device-with-a-very-long-name-and-no-space-in-it" * 2
    modelled = replace(RUN, kind="modelled", devices=(long, long), scenario=long, storage_type=long)
    with ResultsFile(tmp_path) as results:
        results.append([modelled, replace(modelled, name="step_ms.compute", unit="ms")])
    write_page(tmp_path, tmp_path / "report.html")
    browser.open(tmp_path / "report.html", Window(width, 800, phone=width < 500))
    assert_nothing_outside(browser, width)


def assert_nothing_outside(browser: Browser, width: int) -> None:
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        f"{SHOWN_SVG}.flatMap(s => [...s.querySelectorAll('text')].filter(t => {{"
        "const r = t.getBoundingClientRect(); return r.left < -1 || r.right > innerWidth + 1 })"
        ".map(t => t.textContent))"
    )
    assert outside == []


@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
def test_letters_in_figures_are_large_enough(browser: Browser, page: Path, window: Window) -> None:
    browser.open(page, window)
    smallest = browser.evaluate(
        f"Math.min(...{SHOWN_SVG}.flatMap(s => [...s.querySelectorAll('text')].map("
        "t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)))"
    )
    assert smallest >= 10.5


@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
def test_no_two_texts_of_a_figure_overlap(browser: Browser, page: Path, window: Window) -> None:
    browser.open(page, window)
    overlaps = browser.evaluate(
        f"{SHOWN_SVG}.flatMap(s => {{ const t = [...s.querySelectorAll('text')].map("
        "t => [t.textContent, t.getBoundingClientRect()]); const found = [];"
        "t.forEach(([a, p], i) => t.slice(i + 1).forEach(([b, q]) => {"
        "const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);"
        "const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);"
        "if (x > 2 && y > 5) found.push(a + ' | ' + b) })); return found })"
    )
    assert overlaps == []


def test_measured_and_modelled_bars_differ_without_colours(browser: Browser, page: Path) -> None:
    """Compares the shades of the samples in the first figure's legend."""
    from PIL import Image

    browser.open(page, DESK)
    boxes = browser.evaluate(
        f"(() => {{ const s = {SHOWN_SVG}[0]; s.scrollIntoView();"
        "return ['measured', 'modelled: paced', 'modelled: predicted'].map(name => {"
        "const text = [...s.querySelectorAll('text')].find(t => t.textContent == name);"
        "const r = text.getBoundingClientRect(); return [r.left, (r.top + r.bottom) / 2] }) })()"
    )
    browser.see_no_colours()
    picture = Image.open(io.BytesIO(browser.screenshot())).convert("L")
    shades = []
    for left, middle in boxes:
        # The sample lies to the left of its name.
        sample = picture.crop(
            (round(left) - 25, round(middle) - 4, round(left) - 9, round(middle) + 4)
        )
        shades.append(sum(sample.tobytes()) / (sample.width * sample.height))
    measured, paced, predicted = shades
    assert measured < 110 < paced < predicted - 10 < 245


def test_a_screen_reader_gets_each_figure_once_and_its_numbers_as_tables(
    browser: Browser, page: Path
) -> None:
    browser.open(page, DESK)
    names = browser.accessibility_names("image")
    assert len(names) == FIGURES
    assert all(len(sentence) > 40 for sentence in names)
    assert "the longest is DRAM on this computer with 14,820 (measured)" in names[0]
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tables = browser.accessibility_names("table")
    assert len(tables) >= FIGURES
    assert all(tables)  # each has its caption
    without_heads = (
        "[...document.querySelectorAll('table')].filter("
        "t => !t.querySelector('th[scope=col]') || !t.querySelector('th[scope=row]')).length"
    )
    assert browser.evaluate(without_heads) == 0
    assert browser.evaluate("document.documentElement.lang") == "en"
    levels = browser.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => h.tagName)")
    assert levels[0] == "H1"
    assert set(levels[1:]) == {"H2"}


def test_ids_are_unique_and_every_reference_has_its_element(browser: Browser, page: Path) -> None:
    browser.open(page, DESK)
    assert browser.evaluate(
        "(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
        "return ids.length == new Set(ids).size })()"
    )
    lost = browser.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"], use')]"
        ".filter(e => !document.getElementById(e.getAttribute('href').slice(1))).length"
        " + [...document.querySelectorAll('[style*=\"url(#\"], [clip-path]')].filter(e => {"
        "const all = (e.getAttribute('style') || '') + (e.getAttribute('clip-path') || '');"
        "return [...all.matchAll(/url\\(#([^)]+)\\)/g)].some(m => !document.getElementById(m[1]))"
        "}).length"
    )
    assert lost == 0
