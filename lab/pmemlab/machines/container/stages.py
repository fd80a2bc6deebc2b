"""Progress of work in stages, some of them at the same time."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["Stage", "Stages"]

_DETAIL_COLUMNS = 80


class Stages:
    """A context manager that shows, on a terminal, a line for each stage with its current detail.

    A stage that has ended leaves one line, on a terminal or not.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}", markup=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def announce(self, line: str) -> None:
        """Prints a line that stays."""
        self._progress.console.print(line, highlight=False, markup=False)

    def begin(self, name: str) -> Stage:
        return Stage(self, self._progress, self._progress.add_task(name, total=None, detail=""))


class Stage:
    """A stage, from its beginning to `end`."""

    def __init__(self, stages: Stages, progress: Progress, task: TaskID) -> None:
        self._stages = stages
        self._progress = progress
        self._task = task
        self._began = time.monotonic()

    def report(self, detail: str) -> None:
        """Shows what the stage is doing now."""
        from rich.markup import escape

        self._progress.update(self._task, detail=escape(detail[:_DETAIL_COLUMNS]))

    def end(self, outcome: str) -> float:
        """Ends the stage and prints a line with its outcome. Returns its duration in seconds."""
        seconds = time.monotonic() - self._began
        name = next(t.description for t in self._progress.tasks if t.id == self._task)
        self._progress.remove_task(self._task)
        self._stages.announce(f"{name}: {outcome} ({seconds:.1f} s)")
        return seconds
