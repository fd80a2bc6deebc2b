"""A table of several runs' results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.criteo_deepctr.training import Result

__all__ = ["as_table"]

_HEADS: Final = ("model", "dim", "tables", "workers", "samples/s", "loss", "AUC", "rows of a table")


def as_table(results: Sequence[Result]) -> str:
    """Returns a Markdown table with a line for each result."""
    lines = [_HEADS, ("---",) * len(_HEADS), *map(_cells, results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(result: Result) -> tuple[str, ...]:
    where = "here" if result.shards is None else f"{result.shards} shards"
    return (
        result.model,
        str(result.embedding_dim),
        f"{result.storage_type}, {where}",
        str(result.workers),
        f"{result.samples_per_s:,.0f}",
        f"{result.loss:.4f}",
        "one class only" if result.auc is None else f"{result.auc:.4f}",
        f"{result.table_rows:,}",
    )
