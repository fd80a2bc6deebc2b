"""A line of progress for benchmarks of several minutes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_line"]


@contextmanager
def progress_line(things: int | None = None) -> Iterator[Callable[[str], None]]:
    """Yields a function to be told each thing as it begins; shown on stderr if that is a terminal.

    Elsewhere it shows nothing and imports nothing: rich takes seconds in an emulated machine.
    things: how many there will be, where it is known.
    """
    if not sys.stderr.isatty():
        yield lambda _what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    count = () if things is None else (MofNCompleteColumn(),)
    columns = (BarColumn(), *count, TimeElapsedColumn(), "{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=things, completed=-1)
        yield lambda what: shown.update(task, description=what, advance=1)
