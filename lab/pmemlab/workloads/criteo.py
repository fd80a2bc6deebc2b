"""Criteo's display-advertising rows, from a file.

Two forms are read, told apart by the file's first line:

- *raw*, as Criteo publishes it: label, I1..I13, C1..C26, tab- or comma-separated, with or without a
  header. Any value but the label may be missing. A missing number is 0 before scaling, as in
  DeepRec's modelzoo; numbers are scaled by the range that the modelzoo measured on Kaggle's set.
  Strings become keys by FNV-1a (see `hashing`), the missing one too.
- *label-encoded*: a leading index column, then the same columns, where I1..I13 are scaled and
  C1..C26 are integers already. Its header begins with an empty name. Nothing may be missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pmemlab.workloads.batches import CATEGORICAL_COLUMNS, DENSE_COLUMNS, Batch, DataError
from pmemlab.workloads.hashing import fnv1a_64

Form = Literal["raw", "label-encoded"]
_Check = Callable[[str], bool]

COLUMNS: Final = ("label", *DENSE_COLUMNS, *CATEGORICAL_COLUMNS)

# Smallest value and range of I1..I13, from DeepRec's modelzoo/wide_and_deep/train.py.
MINIMA = np.array([0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], dtype=np.float64)
RANGES = np.array(
    [1539, 22069, 65535, 561, 2655388, 233523, 26297, 5106, 24376, 9, 181, 1807, 6879],
    dtype=np.float64,
)


_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class CriteoSource:
    """The rows of one file, read as a stream: a file needs no more memory than a batch.

    The last of every `held_out_every` rows is held out, whatever the batch size. The other rows are
    trained on, and again from the start after the file's end.

    Raises DataError, which names the file and the line: at once if the first line is wrong, else
    when the row is reached.
    """

    path: Path
    held_out_every: int = 10

    def __post_init__(self) -> None:
        if self.held_out_every < 2:
            raise DataError(
                f"held_out_every is {self.held_out_every}; it must be 2 or more, "
                "so that rows are left to train on"
            )
        if self.path.is_fifo() or self.path.is_char_device():
            raise DataError(
                f"{self.path}: is a FIFO or a device, and rows are read more than once; give a file"
            )
        self._layout()

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        lines = self._split(held_out=False)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{self.path}: no row to train on")
        layout = self._layout()
        endless = itertools.chain([first], lines, self._split_again())
        while True:
            yield layout.parse(self.path, list(itertools.islice(endless, batch_size)))

    def held_out_batches(self, batch_size: int) -> Iterator[Batch]:
        layout = self._layout()
        lines = self._split(held_out=True)
        while chunk := list(itertools.islice(lines, batch_size)):
            yield layout.parse(self.path, chunk)

    def training_lines(self) -> Iterator[Line]:
        """Yield the lines that are trained on, each once, in the file's order."""
        return self._split(held_out=False)

    def parse(self, lines: Sequence[Line]) -> Batch:
        """Parses lines of this file."""
        return self._layout().parse(self.path, lines)

    def _split_again(self) -> Iterator[Line]:
        while True:
            yield from self._split(held_out=False)

    def _split(self, *, held_out: bool) -> Iterator[Line]:
        rows = 0
        for number, text in self._lines(skip=1 if self._layout().has_header else 0):
            if not text:
                continue
            if (rows % self.held_out_every == self.held_out_every - 1) == held_out:
                yield Line(number, text)
            rows += 1

    def _lines(self, skip: int) -> Iterator[tuple[int, str]]:
        """Yield line numbers, from 1, and lines without their end."""
        number = 0
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                for number, text in enumerate(file, start=1):
                    if number > skip:
                        yield number, text.rstrip("\r\n")
        except OSError as error:
            raise DataError(f"{self.path}: can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: not text after line {number}: {error.reason}") from error

    def _layout(self) -> _Layout:
        first = next(self._lines(skip=0), None)
        if first is None:
            raise DataError(f"{self.path}: the file is empty")
        return _Layout.from_first_line(self.path, first[1])


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its number, from 1, and its text without the end."""

    number: int
    text: str


@dataclass(frozen=True)
class _Layout:
    separator: str
    form: Form
    has_header: bool

    @staticmethod
    def from_first_line(path: Path, first_line: str) -> _Layout:
        separator = "\t" if "\t" in first_line else ","
        fields = first_line.split(separator)
        has_header = "label" in (fields[0], *fields[1:2])
        names = tuple(fields) if has_header else ()
        if names == ("", *COLUMNS) or (not has_header and len(fields) == len(COLUMNS) + 1):
            return _Layout(separator, "label-encoded", has_header)
        if names == COLUMNS or (not has_header and len(fields) == len(COLUMNS)):
            return _Layout(separator, "raw", has_header)
        if has_header:
            raise DataError(
                f"{path}:1: the header names other columns than label, I1..I13, C1..C26 "
                "(after an unnamed index column where the file is label-encoded)"
            )
        raise DataError(
            f"{path}:1: {len(fields)} columns; expected {len(COLUMNS)} separated by tabs or commas "
            f"(raw), or {len(COLUMNS) + 1} with a leading index (label-encoded)"
        )

    def parse(self, path: Path, lines: Sequence[Line]) -> Batch:
        rows = [self._fields(path, line) for line in lines]
        labels = [self._label(path, line, row[0]) for line, row in zip(lines, rows, strict=True)]
        split = 1 + len(DENSE_COLUMNS)
        dense = self._numbers(path, lines, [row[1:split] for row in rows])
        categories = [row[split:] for row in rows]
        if self.form == "raw":
            dense = (dense - MINIMA) / RANGES
            flat = [category.encode() for row in categories for category in row]
            keys = fnv1a_64(flat).reshape(len(rows), len(CATEGORICAL_COLUMNS))
        else:
            keys = self._integers(path, lines, categories)
        return Batch(np.array(labels, dtype=np.float32), dense.astype(np.float32), keys)

    def _fields(self, path: Path, line: Line) -> list[str]:
        fields = line.text.split(self.separator)
        index_columns = 1 if self.form == "label-encoded" else 0
        if len(fields) != len(COLUMNS) + index_columns:
            raise DataError(
                f"{path}:{line.number}: {len(fields)} columns, expected "
                f"{len(COLUMNS) + index_columns} ({self.form})"
            )
        return fields[index_columns:]

    def _label(self, path: Path, line: Line, text: str) -> float:
        if text not in ("0", "1"):
            raise DataError(f"{path}:{line.number}: label is {text!r}; it must be 0 or 1")
        return float(text)

    def _numbers(
        self, path: Path, lines: Sequence[Line], rows: Iterable[Sequence[str]]
    ) -> NDArray[np.float64]:
        missing = "0" if self.form == "raw" else ""
        texts = [[text or missing for text in row] for row in rows]
        try:
            numbers = np.array(texts).astype(np.float64)
            usable = bool((np.abs(numbers) <= _LARGEST).all())
        except ValueError:
            usable = False
        if not usable:
            raise self._first_unusable(path, lines, texts, DENSE_COLUMNS, _is_float32, "a number")
        return numbers

    def _integers(
        self, path: Path, lines: Sequence[Line], rows: Sequence[Sequence[str]]
    ) -> NDArray[np.int64]:
        try:
            return np.array([[int(text) for text in row] for row in rows], dtype=np.int64)
        except (ValueError, OverflowError):
            raise self._first_unusable(
                path, lines, rows, CATEGORICAL_COLUMNS, _is_int64, "a 64-bit integer"
            ) from None

    def _first_unusable(
        self,
        path: Path,
        lines: Sequence[Line],
        rows: Sequence[Sequence[str]],
        columns: Sequence[str],
        usable: _Check,
        expected: str,
    ) -> DataError:
        for line, row in zip(lines, rows, strict=True):
            for column, text in zip(columns, row, strict=True):
                if not usable(text):
                    return DataError(
                        f"{path}:{line.number}: {column} is {text!r}; expected {expected}"
                    )
        raise AssertionError("a batch was refused, but each of its values is usable")


def _is_float32(text: str) -> bool:
    try:
        return abs(float(text)) <= _LARGEST  # false for NaN
    except ValueError:
        return False


def _is_int64(text: str) -> bool:
    try:
        return -(2**63) <= int(text) < 2**63
    except ValueError:
        return False
