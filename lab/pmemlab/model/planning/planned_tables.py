"""The tables that a plan is for: one by options, or a list of them in a YAML file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from embstore.optimizers import Optimizer
from embstore.table.making import MAX_DIM
from pmemlab.errors import PlanError
from pmemlab.model.planning.popularity import BoundedZipf, Popularity
from pmemlab.model.planning.popularity_files import popularity_of_ids, recorded_table
from pmemlab.model.planning.row_bytes import RowShape, optimizer_by_name
from pmemlab.schema import (
    AtLeast0,
    Count,
    Document,
    FieldError,
    File,
    OneOrMore,
    Parsed,
    Positive,
    Text,
)

__all__ = ["PlannedTable", "load_tables", "planned_table"]

_MAX_ROWS = 1 << 64


@dataclass(frozen=True)
class PlannedTable:
    """A table to plan. ids_a_sample: the table's ids per sample, which determine its share of
    look-ups.
    """

    name: str
    dim: int
    optimizer: Optimizer
    popularity: Popularity
    ids_a_sample: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= MAX_DIM:
            raise PlanError(f"--dim {self.dim}: must be from 1 to {MAX_DIM}")

    @property
    def rows(self) -> int:
        return self.popularity.rows

    @property
    def shape(self) -> RowShape:
        return RowShape(self.dim, len(self.optimizer.slots))


def planned_table(
    name: str,
    *,
    rows: int | None = None,
    dim: int | None = None,
    optimizer: str = "adagrad",
    skew: float | None = None,
    ids: Path | None = None,
    recorded: Path | None = None,
    ids_a_sample: float = 1.0,
) -> PlannedTable:
    """Makes a planned table from one source of its rows' popularity: `skew`, of a bounded Zipf
    distribution over `rows`; `ids`, an .npy file of ids; or `recorded`, a folder that
    `embstore.write_rows` wrote from a trained table, which also gives `dim`.

    rows: number of the finished table's rows; by default those that occur in `ids` or `recorded`.

    Raises PlanError, which names the command's option.
    """
    sources = {"--skew": skew, "--ids": ids, "--recorded": recorded}
    given = [option for option, value in sources.items() if value is not None]
    if len(given) != 1:
        raise PlanError(
            f"{name}: give one of --skew, --ids and --recorded, got {', '.join(given) or 'none'}"
        )
    if rows is not None and not 1 <= rows <= _MAX_ROWS:
        raise PlanError(f"--rows {rows:.4g}: must be 1 or more, and 2^64 at most, as ids are")
    popularity: Popularity
    if recorded is not None:
        table = recorded_table(recorded, rows)
        popularity = table.popularity
        if dim not in (None, table.dim):
            raise PlanError(f"--dim {dim}: rows of {recorded} have {table.dim} weights")
        dim = table.dim
    elif ids is not None:
        popularity = popularity_of_ids(ids, rows)
    else:
        assert skew is not None
        if not (math.isfinite(skew) and skew >= 0):
            raise PlanError(f"--skew {skew}: must be 0 or more")
        if rows is None:
            raise PlanError(f"{name}: --rows is missing, which --skew needs")
        popularity = BoundedZipf(rows, skew)
    if dim is None:
        raise PlanError(f"{name}: --dim is missing")
    return PlannedTable(name, dim, optimizer_by_name(optimizer), popularity, ids_a_sample)


def _rows(value: object) -> int:
    """Parses 2000000000 or 2e9."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (value >= 1 and value % 1 == 0)
    ):
        raise FieldError(f"must be a whole number above 0, for example 2e9, not {value!r}")
    return int(value)


def _relative_path(value: object, context: Any) -> Path:
    """Parses a path relative to the file's folder."""
    if not isinstance(value, str) or not value:
        raise FieldError(f"must be a path, not {value!r}")
    return Path(context["path"]).parent / value


_Rows = Annotated[int, Parsed(_rows)]
_Path = Annotated[Path, Parsed(_relative_path, with_context=True)]


@dataclass(frozen=True)
class _Entry(Document):
    """A table in the file; the fields are the parameters of `planned_table`."""

    name: Text
    rows: _Rows | None = None
    dim: Count | None = None
    optimizer: Text = "adagrad"
    skew: AtLeast0 | None = None
    ids: _Path | None = None
    recorded: _Path | None = None
    ids_a_sample: Positive = 1.0


@dataclass(frozen=True)
class _Tables(Document):
    tables: OneOrMore[_Entry]

    def check(self) -> None:
        names = [entry.name for entry in self.tables]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise FieldError(f"there is a table {name} already", f"tables[{index}].name")


def load_tables(path: Path) -> tuple[PlannedTable, ...]:
    """Reads a YAML file of tables. Raises PlanError, which names the file and the table."""
    found = File.from_yaml(path, PlanError).read(_Tables)
    tables = []
    for entry in found.tables:
        try:
            tables.append(planned_table(**vars(entry)))
        except PlanError as error:
            raise PlanError(f"{path}: table {entry.name}: {error}") from error
    return tuple(tables)
