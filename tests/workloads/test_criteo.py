"""Rows read from Criteo files, raw and label-encoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from pmemlab.workloads.batches import Batch, DataError
from pmemlab.workloads.criteo import COLUMNS, CriteoSource
from pmemlab.workloads.hashing import fnv1a_64

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"

RAW_ROW = ["1", "2", "-3", *["4"] * 11, *[f"{column:08x}" for column in range(26)]]


def write(path: Path, rows: list[list[str]], separator: str = "\t", header: str = "") -> Path:
    lines = ([header] if header else []) + [separator.join(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def row(**changed: str) -> list[str]:
    return [changed.get(name, value) for name, value in zip(COLUMNS, RAW_ROW, strict=True)]


def rows_of(batches: Iterator[Batch]) -> int:
    return sum(len(batch) for batch in batches)


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("with_header", [True, False])
def test_tabs_and_commas_read_the_same_with_a_header_or_without(
    tmp_path: Path, separator: str, with_header: bool
) -> None:
    header = separator.join(COLUMNS) if with_header else ""
    path = write(tmp_path / "rows", [RAW_ROW] * 3, separator, header)
    batch = next(CriteoSource(path).train_batches(3))
    assert batch.labels.tolist() == [1, 1, 1]
    assert batch.dense[0, 0] == np.float32(2 / 1539)
    assert batch.dense[0, 1] == 0.0  # -3 is the smallest value there is
    assert batch.keys[0].tolist() == fnv1a_64([text.encode() for text in RAW_ROW[14:]]).tolist()


def test_a_missing_number_is_zero_before_scaling(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", [row(I1="", I2="")])
    batch = next(CriteoSource(path).train_batches(1))
    assert batch.dense[0, :2].tolist() == [0.0, np.float32(3 / 22069)]


def test_a_missing_category_is_a_category_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", [row(C1="", C26=""), row()])
    keys = next(CriteoSource(path).train_batches(2)).keys
    assert keys[0, 0] == keys[0, 25] == fnv1a_64([b""])[0]
    assert keys[0, 0] not in keys[1]


def test_training_rows_repeat_and_held_out_rows_do_not(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", [row(I1=str(number)) for number in range(25)])
    source = CriteoSource(path, held_out_every=5)
    held_out = np.concatenate([batch.dense[:, 0] for batch in source.held_out_batches(2)])
    trained = np.concatenate([b.dense[:, 0] for b in islice(source.train_batches(8), 5)])
    assert np.rint(held_out * 1539).tolist() == [4, 9, 14, 19, 24]
    expected = [number for number in range(25) if number % 5 != 4]
    assert np.rint(trained * 1539).tolist() == expected * 2


def test_the_first_batch_may_be_larger_than_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", [RAW_ROW] * 3)
    assert len(next(CriteoSource(path).train_batches(100))) == 100


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row(), row(label="2")], ":2: label is '2'; it must be 0 or 1"),
        ([row(), row(), row(I13="many")], ":3: I13 is 'many'; expected a number"),
        ([row(), row(I1="nan")], ":2: I1 is 'nan'; expected a number"),
        ([row(), row(I1="1e39")], ":2: I1 is '1e39'; expected a number"),
        ([row(), row()[:-1]], r":2: 39 columns, expected 40 \(raw\)"),
        ([["1", "2"]], ":1: 2 columns; expected 40 separated by tabs or commas"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(
    tmp_path: Path, rows: list[list[str]], complaint: str
) -> None:
    path = write(tmp_path / "bad.tsv", rows)
    with pytest.raises(DataError, match=f"bad.tsv{complaint}"):
        next(CriteoSource(path).train_batches(4))


def test_a_bad_label_encoded_key_is_named_by_file_and_line(tmp_path: Path) -> None:
    good = ["0", "1", *["0.5"] * 13, *["7"] * 26]
    path = write(tmp_path / "encoded.csv", [good, [*good[:-1], "12.5"]], ",")
    with pytest.raises(DataError, match=r"encoded.csv:2: C26 is '12.5'; expected a 64-bit integer"):
        next(CriteoSource(path).train_batches(4))


def test_a_label_encoded_number_must_not_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "encoded.csv", [["0", "1", *[""] * 13, *["7"] * 26]], ",")
    with pytest.raises(DataError, match=r"encoded.csv:1: I1 is ''; expected a number"):
        next(CriteoSource(path).train_batches(1))


def test_a_header_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", [RAW_ROW], header="\t".join(["label", *COLUMNS[1:-1], "C27"]))
    with pytest.raises(DataError, match="the header names other columns"):
        CriteoSource(path)


@pytest.mark.timeout(20)  # an open that waits for a writer would wait for ever
def test_files_that_hold_no_rows_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for endless in (tmp_path / "fifo", Path("/dev/null")):  # or /dev/zero, whose line never ends
        with pytest.raises(DataError, match="is a FIFO or a device, and rows are read more than"):
            CriteoSource(endless)
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="the file is empty"):
        CriteoSource(tmp_path / "empty")
    headed = write(tmp_path / "headed", [], header="\t".join(COLUMNS))
    with pytest.raises(DataError, match="no row to train on"):
        next(CriteoSource(headed).train_batches(1))
    with pytest.raises(DataError, match="can't be read: No such file"):
        CriteoSource(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not text"):
        CriteoSource(tmp_path / "binary")


def test_published_raw_rows_read_whole() -> None:
    source = CriteoSource(shared("criteo_raw_200.csv"))
    assert rows_of(source.held_out_batches(7)) == 20
    batch = next(source.train_batches(180))
    assert batch.dense.min() >= -1e-3
    assert 0 < batch.labels.mean() < 1


def test_published_label_encoded_rows_read_whole() -> None:
    source = CriteoSource(shared("criteo_encoded_100.csv"))
    assert rows_of(source.held_out_batches(7)) == 10
    batch = next(source.train_batches(2))
    assert batch.keys[0, :3].tolist() == [629, 553, 4409722]
    assert batch.dense[0, 9] == np.float32(0.09090909090909091)


def shared(name: str) -> Path:
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path
