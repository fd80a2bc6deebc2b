"""A progress bar for tries, on the terminal that errors go to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(messages: Console, title: str, total: int) -> Iterator[Callable[[bool], None]]:
    """Yields a function to call after each try, with whether the try failed."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[bad]}"),
    )
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task(title, total=total, bad="")
        bad_ones = 0

        def advance(is_bad: bool) -> None:
            nonlocal bad_ones
            bad_ones += is_bad
            bad = f"[red]{bad_ones} failed" if bad_ones else ""
            progress.update(task, advance=1, bad=bad)

        yield advance
