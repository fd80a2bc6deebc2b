"""`pmemlab fidelity`: its options, and what it prints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from pmemlab.errors import LabError
from pmemlab.fidelity.page import markdown, print_sections
from pmemlab.fidelity.rows import Section
from pmemlab.fidelity.sections import make_sections

__all__ = ["add_options", "fidelity"]

_LOG_WIDTH = 140  # a log has no width of its own
_messages = Console(stderr=True, highlight=False)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page in a file, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures, for the report")


def fidelity(arguments: argparse.Namespace) -> int:
    """Ends with 0 whether aims were reached or not: the page is there to say so."""
    for option in ("write", "json"):
        target: Path | None = getattr(arguments, option)
        if target is not None and not target.parent.is_dir():
            raise LabError(f"--{option} {target}: there is no folder {target.parent}")
    with _messages.status("predicting") as status:
        sections = make_sections(on_step=status.update)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_LOG_WIDTH)
    print_sections(console, sections)
    if arguments.write is not None:
        _write("--write", arguments.write, markdown(sections))
    if arguments.json is not None:
        _write("--json", arguments.json, _document(sections))
    return 0


def _document(sections: Sequence[Section]) -> str:
    """As `pmemlab report` reads it."""
    return json.dumps({"sections": [asdict(section) for section in sections]}, indent=1) + "\n"


def _write(option: str, target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LabError(f"{option} {target}: {error}") from error
    _messages.print(f"written: {target}", markup=False)
