"""`pmemlab fidelity`: its options, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from pmemlab.errors import LabError
from pmemlab.fidelity.page import markdown, print_sections
from pmemlab.fidelity.sections import make_sections

__all__ = ["add_options", "fidelity"]

_LOG_WIDTH = 140  # a log has no width of its own
_messages = Console(stderr=True, highlight=False)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page in a file, too")


def fidelity(arguments: argparse.Namespace) -> int:
    """Ends with 0 whether aims were reached or not: the page is there to say so."""
    target: Path | None = arguments.write
    if target is not None and not target.parent.is_dir():
        raise LabError(f"--write {target}: there is no folder {target.parent}")
    with _messages.status("predicting") as status:
        sections = make_sections(on_step=status.update)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_LOG_WIDTH)
    print_sections(console, sections)
    if target is not None:
        try:
            target.write_text(markdown(sections), encoding="utf-8")
        except OSError as error:
            raise LabError(f"--write {target}: {error}") from error
        _messages.print(f"written: {target}", markup=False)
    return 0
