"""`pmemlab report`: writes the page of a folder of results."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.quantities import count_text
from pmemlab.report.documents import Results, read_folder
from pmemlab.report.page import Page, render_page
from pmemlab.report.sections import SECTIONS
from pmemlab.whole_file import check_output, write_whole

__all__ = ["PAGE_NAME", "report", "write_page"]

PAGE_NAME = "report.html"
_PACKAGES: Final = {
    "jinja2": "fills the report's templates",
    "matplotlib": "draws the report's figures",
}


def report(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status. Raises LabError."""
    check_output("-o", arguments.output)
    path = arguments.output or arguments.folder / PAGE_NAME
    for name in write_page(arguments.folder, path).left_out:
        print(f"{name}: is no document that a report knows, left out", file=sys.stderr)
    print(f"written: {path}")
    return 0


def write_page(folder: Path, path: Path) -> Results:
    """Writes the page of all results in a folder, whole or not at all, and returns the results.

    Raises ResultsError if a result can't be read, MissingRequirementError if a package of the extra
    `report` isn't installed, LabError if the page can't be written.
    """
    results = read_folder(folder)
    for package, use in _PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            raise MissingRequirementError(
                f"{package}, which {use}, isn't installed", "pip install 'pmemlab[report]'"
            )
    text = render_page(_page(results))
    try:
        write_whole(path, text)
    except OSError as error:
        raise LabError(f"{path}: the report can't be written: {error}") from error
    return results


def _page(results: Results) -> Page:
    sections = [section(results) for section in SECTIONS]
    return Page(
        title="Embedding tables by storage type and device",
        summary=_summary(results),
        sections=sections,
        remarks=[
            f"`{name}` is no document that a report knows, or was cut off."
            for name in results.left_out
        ],
    )


def _summary(results: Results) -> Sequence[str]:
    kinds = [row.kind for row in results.rows]
    sentences = [
        "If a result appears twice, the report uses the newest. Filled bars are measured, hatched "
        "ones modelled; each figure has its numbers in a table below it."
    ]
    if results.rows:
        counts = [
            f"{kinds.count('measured')} measured",
            f"{kinds.count('modelled')} modelled from devices' published figures",
            f"{kinds.count('functional-only')} that say only that something works",
        ]
        sentences.insert(0, f"{count_text(len(kinds), 'run')}: {', '.join(counts)}.")
        times = sorted(row.time for row in results.rows)
        commits = sorted({row.commit for row in results.rows})
        sentences.append(
            f"Taken from {_minute(times[0])} to {_minute(times[-1])} UTC with the code of "
            f"{', '.join(f'`{commit}`' for commit in commits)}."
        )
    return sentences


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")
