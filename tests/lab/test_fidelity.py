"""The fidelity page: its rows, their errors, and how the page shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.cli import main
from pmemlab.errors import LabError
from pmemlab.model.devices import device_names, load_device
from pmemlab.model.devices.memory_device import MemoryDevice
from pmemlab.model.fidelity import Row, Section, command, sections
from pmemlab.model.fidelity.bandwidth import bandwidth_section, predict_left_out
from pmemlab.model.fidelity.page import markdown, summary
from pmemlab.report.documents import read_folder

CLONE = Path(__file__).parents[2]
PAGE = CLONE / "lab" / "FIDELITY.md"

NEAR = Row("near", published=100, predicted=115, unit="s", aim_percent=15)
FAR = Row("far", published=0.8, predicted=0.6799, unit="s", aim_percent=15, note="a|b")
KNOWN = Row("known", published=1512.8, predicted=3000, unit="s")
SECTION = Section("Times", "What was timed.", (NEAR, FAR, KNOWN), ("Why it is far.",))


@given(published=st.floats(1e-3, 1e6), predicted=st.floats(-1e6, 1e6))
def test_an_error_is_relative_to_the_published_figure(published: float, predicted: float) -> None:
    row = Row("", published, predicted, "s")
    assert published * (1 + row.error_percent / 100) == pytest.approx(predicted, abs=1e-6)


def test_an_aim_is_reached_up_to_and_including_its_limit() -> None:
    assert NEAR.reached is True
    assert replace(NEAR, predicted=85).reached is True
    assert FAR.reached is False
    assert KNOWN.reached is None
    assert SECTION.missed == (FAR,)


@pytest.mark.parametrize(
    ("published", "predicted"), [(0, 1), (-1, 1), (float("nan"), 1), (1, float("inf"))]
)
def test_a_row_whose_error_is_undefined_is_refused_by_name(
    published: float, predicted: float
) -> None:
    with pytest.raises(LabError, match="that one"):
        Row("that one", published, predicted, "s")


def test_the_summary_covers_all_figures_of_the_curves_and_not_their_medians() -> None:
    section = bandwidth_section()
    assert all(row.reached is None for row in section.rows)
    figures = [
        figure
        for name in device_names()
        if isinstance(device := load_device(name), MemoryDevice)
        for figure in predict_left_out(device.file)
        if figure.left_out != "figure"
    ]
    worst = max(figures, key=lambda figure: abs(figure.error))
    first = summary([section, SECTION])
    assert first.startswith("1 of 2 figures are within their aim. ")
    assert f"Of {len(figures):,} published figures" in first
    assert f"{worst.error:+.0%} ({worst.device}, " in first


def test_the_page_shows_each_figure_its_error_and_what_was_missed() -> None:
    lines = markdown([SECTION]).splitlines()
    assert "1 of 2 figures are within their aim." in lines
    assert "| near | 100 | 115 | s | +15.0 % | ±15 % | yes |  |" in lines
    assert "| far | 0.8 | 0.6799 | s | -15.0 % | ±15 % | **no** | a\\|b |" in lines
    assert "| known | 1,513 | 3,000 | s | +98.3 % |  |  |  |" in lines
    assert "Why it is far." in lines


def test_the_command_prints_the_sections_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "make_sections", lambda **_: (SECTION,))
    page = tmp_path / "page.md"
    assert main(["model", "fidelity", "--write", str(page)]) == 0
    assert page.read_text() == markdown([SECTION])
    printed = capsys.readouterr().out
    assert "a|b" in printed
    assert "Why it is far." in printed
    assert summary([SECTION]) in printed


@pytest.mark.parametrize(
    ("page", "problem"), [("none/page.md", "there is no folder"), (".", "is a folder; give a file")]
)
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_predicted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
    problem: str,
) -> None:
    monkeypatch.setattr(command, "make_sections", lambda **_: pytest.fail("was predicted"))
    assert main(["model", "fidelity", "--write", str(tmp_path / page)]) == 2
    assert problem in capsys.readouterr().err


def test_the_report_reads_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "make_sections", lambda **_: (SECTION,))
    assert main(["model", "fidelity", "--json", str(tmp_path / "fidelity.json")]) == 0
    (read,) = read_folder(tmp_path).fidelity
    assert read.title == SECTION.title
    assert [(row.name, row.published, row.predicted) for row in read.rows] == [
        (row.name, row.published, row.predicted) for row in SECTION.rows
    ]


@pytest.mark.long
def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text() == markdown(sections.make_sections())


def test_every_aim_that_the_committed_page_misses_is_explained_below_its_table() -> None:
    for part in PAGE.read_text().split("\n## ")[1:]:
        if "| **no** |" in part:
            assert not part.rstrip().splitlines()[-1].startswith("|"), part.splitlines()[0]
