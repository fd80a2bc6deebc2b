"""A progress bar for commands that take long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    title: str, total: float | None = None, column: str = "", **fields: Any
) -> Iterator[Callable[..., None]]:
    """Yields a function that changes the bar as `rich.progress.Progress.update` does: `completed`,
    `advance`, `total`, `description`, and `fields`. The bar is on stderr if stderr is a terminal.

    Otherwise nothing is shown, and rich, which takes seconds in an emulated machine, not imported.
    total: None if unknown. column: text after the bar, for example "loss {task.fields[loss]}".
    """
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        *("{task.description}", progress.BarColumn()),
        *([] if total is None else [progress.MofNCompleteColumn()]),
        *([column] if column else []),
        progress.TimeElapsedColumn() if total is None else progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=total, **fields)
        yield lambda **changed: shown.update(task, **changed)
