"""Tables of results are printed whole, however narrow the output is."""

from __future__ import annotations

import io
import sys

import pytest

pytest.importorskip("rich")
from rich.table import Table

from embstore.printing import print_table

WORD = "look-ups-of-a-table-in-three-tiers-and-of-what-they-bring-up-and-down"


@pytest.mark.parametrize("columns", [None, 40])
def test_no_word_and_no_number_of_a_table_is_cut(
    columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    table = Table("operation", "ids")
    table.add_row(WORD, "106,496")
    print_table(table)
    printed = capsys.readouterr().out
    assert "…" not in printed
    if columns is None:
        assert WORD in printed
        assert "106,496" in printed
    else:
        assert max(map(len, printed.splitlines())) <= columns
        cells = [line.split("│")[1:3] for line in printed.splitlines() if "│" in line]
        assert "".join(cell.strip() for cell, _ in cells) == WORD


def test_letters_that_the_output_cannot_encode_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    table = Table("operation", "µs")
    table.add_row("an update", "±3")
    print_table(table)
    sys.stdout.flush()
    assert "?s" in written.getvalue().decode()
    assert "?3" in written.getvalue().decode()


def test_the_error_handler_of_the_users_output_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    table = Table("operation")
    table.add_row("±3")
    print_table(table)
    sys.stdout.flush()
    assert "\\xb13" in written.getvalue().decode()
