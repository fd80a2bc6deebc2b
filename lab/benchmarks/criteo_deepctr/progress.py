"""How training gets on, on stderr where that is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from benchmarks.criteo_deepctr.training import State

__all__ = ["TrainingProgress"]


class TrainingProgress:
    """A context manager with a bar for an epoch after the other; `show` is told each step."""

    def __init__(self, label: str, rows_to_train: int, console: Console | None = None) -> None:
        """rows_to_train: in an epoch, as far as it is known."""
        self._label = label
        self._expected = rows_to_train
        self._epoch = self._rows = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} rows  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task(label, total=rows_to_train, figures="")

    def show(self, state: State) -> None:
        if state.epoch != self._epoch:
            if self._rows:  # an epoch has ended, so that it is known
                self._expected = self._rows
            self._epoch = state.epoch
        self._rows = state.rows
        auc = "" if state.auc is None else f"  AUC {state.auc:.4f}"
        figures = f"{state.samples_per_s:,.0f} samples/s  loss {state.loss:.4f}{auc}"
        self._progress.update(
            self._task,
            description=f"{self._label}, epoch {state.epoch + 1}",
            completed=state.rows,
            total=max(self._expected, state.rows),
            figures=figures,
        )

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            self._progress.update(self._task, total=self._rows)
        self._progress.stop()
