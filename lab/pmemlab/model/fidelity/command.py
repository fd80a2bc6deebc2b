"""The command `pmemlab model fidelity`: its options and its output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from pmemlab.errors import LabError
from pmemlab.model.fidelity.measured import (
    MEASURED_FILE,
    Comparison,
    measured_now,
    store_measurement,
)
from pmemlab.model.fidelity.page import markdown, print_sections
from pmemlab.model.fidelity.rows import Section
from pmemlab.model.fidelity.sections import make_sections
from pmemlab.progress_bar import progress_bar
from pmemlab.results import results_console
from pmemlab.whole_file import check_output, write_output

__all__ = ["add_options", "fidelity"]

_messages = Console(stderr=True, highlight=False)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--paced", action="store_true", help="run tiers that are paced by published devices first"
    )
    parser.add_argument(
        "--this-computer",
        type=Path,
        metavar="FOLDER",
        help="folder whose disk is measured and trained on first, which takes some minutes",
    )
    parser.add_argument(
        "--measured",
        type=Path,
        default=MEASURED_FILE,
        metavar="FILE",
        help="file that keeps the results of runs (default: %(default)s)",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="file for the page")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="file for the figures, which the report reads"
    )


def fidelity(arguments: argparse.Namespace) -> int:
    """Runs the command. Returns 0 whether aims were reached or not: the page shows that."""
    for option in ("measured", "write", "json"):
        check_output(f"--{option}", getattr(arguments, option))
    is_kept = arguments.measured == MEASURED_FILE or arguments.measured.exists()
    if not (is_kept or arguments.paced or arguments.this_computer):
        raise LabError(
            f"--measured {arguments.measured}: there is no such file; --paced and --this-computer "
            "make one"
        )
    if arguments.paced:
        store_measurement(arguments.measured, "paced", measured_now(*_run_paced()))
    if arguments.this_computer is not None:
        from pmemlab.model.fidelity.this_computer import Training, compare_this_computer

        compared = compare_this_computer(arguments.this_computer, Training(), _messages)
        store_measurement(arguments.measured, "this-computer", measured_now(*compared))
    with _messages.status("predicting") as status:
        sections = make_sections(on_step=status.update, measured=arguments.measured)
    print_sections(results_console(), sections)
    if arguments.write is not None:
        _write("--write", arguments.write, markdown(sections))
    if arguments.json is not None:
        _write("--json", arguments.json, _document(sections))
    return 0


def _run_paced() -> tuple[list[Comparison], list[str]]:
    from pmemlab.model.fidelity.paced_bandwidth import POINTS, MeasuringEffort, compare_paced

    with progress_bar("pacing", len(POINTS)) as show:
        return compare_paced(
            POINTS, MeasuringEffort(), on_point=lambda what: show(advance=1, description=what)
        )


def _document(sections: Sequence[Section]) -> str:
    """Returns the JSON that `pmemlab report` reads."""
    return json.dumps({"sections": [asdict(section) for section in sections]}, indent=1) + "\n"


def _write(option: str, target: Path, text: str) -> None:
    write_output(option, target, text)
    _messages.print(f"written: {target}", markup=False)
