"""Rows in Parquet and safetensors files, and in chunks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import open_variable, train
from engine_storage import STACKS, Stack
from exports import assert_same
from numpy.typing import NDArray
from programs import run_program
from reporting_lock import ReportingLock

import embstore as es
from embstore.errors import InUseError, InvalidArgumentError, MissingLibraryError, StorageError
from embstore.table.shard import LocalShard, Shard

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FORMATS = ("parquet", "safetensors")
LIBRARIES = {"parquet": "pyarrow", "safetensors": "safetensors"}

Columns = dict[str, NDArray[Any]]

SGD = es.optimizers.SGD(0.1)  # has no slots


@pytest.fixture(params=FORMATS)
def file_format(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(LIBRARIES[request.param])
    return str(request.param)


@pytest.fixture
def var() -> Iterator[es.EmbeddingVariable]:
    with open_variable() as made:
        train(made, seed=1)
        yield made


def concatenate_chunks(chunks: list[Columns]) -> Columns:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def columns_of(file: Path) -> Columns:
    """Reads a file's columns with the format's own library."""
    if file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        loaded: Columns = load_file(file)
        return loaded
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def write_columns(file: Path, columns: Columns) -> Path:
    """Writes columns as other programs do: in Parquet, lists may have any length."""
    if file.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(column) for name, column in columns.items()}, file)
        return file
    import pyarrow
    import pyarrow.parquet

    types = {1: pyarrow.float32(), 2: pyarrow.list_(pyarrow.float32())}
    table = {
        name: pyarrow.array(column)
        if column.dtype.kind in "iu"
        else pyarrow.array(column.tolist(), types[column.ndim])
        for name, column in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(table), file)
    return file


# --- Exports in chunks


@pytest.mark.parametrize("partition_num", [1, 3])
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_chunks_have_all_rows_once_in_the_order_of_keys(stack: Stack, partition_num: int) -> None:
    with open_variable(stack, partition_num=partition_num) as var:
        train(var, seed=1)
        count = len(var)
        for rows in (1, 7, count, 10 * count):
            chunks = list(var.export_in_chunks(rows))
            assert [len(chunk["keys"]) for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)
            assert_same(concatenate_chunks(chunks), var.export())


@pytest.mark.parametrize("partition_num", [1, 3])
def test_a_range_includes_both_its_ends(partition_num: int) -> None:
    keys = np.array([INT64_MIN, -5, -1, 0, 3, 4, 9, INT64_MAX])
    with open_variable(partition_num=partition_num) as var:
        var.apply_gradients(keys, np.ones((keys.size, 3), np.float32))
        for first, last in ((-5, 4), (-4, 8), (INT64_MIN, INT64_MIN), (9, INT64_MAX), (3, 3)):
            chunks = list(var.export_in_chunks(2, first_key=first, last_key=last))
            assert concatenate_chunks(chunks)["keys"].tolist() == [
                k for k in keys if first <= k <= last
            ]
        for first, last in ((5, 8), (4, 3)):
            assert list(var.export_in_chunks(first_key=first, last_key=last)) == []


def test_rows_that_are_removed_between_two_chunks_are_left_out(var: es.EmbeddingVariable) -> None:
    keys = var.export()["keys"]
    chunks = var.export_in_chunks(10)
    found = [next(chunks)]
    var.remove(keys[[12, 13, 5]])
    var.apply_gradients(keys[14:15], np.ones((1, 3), np.float32))
    found += list(chunks)
    assert concatenate_chunks(found)["keys"].tolist() == np.delete(keys, [12, 13]).tolist()
    np.testing.assert_array_equal(found[1]["values"][2], var.lookup(keys[14]))


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ("export", "export"),
        ("export_in_chunks", "keys"),
        ("export_in_chunks", "export"),
        ("write_rows", "export"),
    ],
)
def test_no_batch_comes_between_the_partitions_of_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, asked: str
) -> None:
    if how == "write_rows":
        pytest.importorskip("safetensors")
    ids = np.arange(40)
    with (
        open_variable(initializer=es.initializers.Ones(), optimizer=SGD, partition_num=2) as var,
        ThreadPoolExecutor(1) as thread,
    ):
        var.apply_gradients(ids, np.ones((40, 3), np.float32))
        lock = ReportingLock(var.internals.batch_lock)
        monkeypatch.setattr(var.internals, "batch_lock", lock)
        ask = getattr(Shard, asked)

        def trained_meanwhile(shard: Shard, *arguments: Any) -> Any:
            """Trains between the first partition's answer and the second's."""
            answer = ask(shard, *arguments)
            if shard is var.internals.shards[0]:
                more = np.arange(80)  # half of these are new
                grads = np.ones((80, 3), np.float32)
                lock.wait_for(thread.submit(var.apply_gradients, more, grads))
            return answer

        monkeypatch.setattr(LocalShard, asked, trained_meanwhile)
        if how == "export":
            columns = var.export()
        elif how == "export_in_chunks":
            (columns,) = var.export_in_chunks(1000)
        else:
            es.write_rows(tmp_path / "rows", var, file_format="safetensors")
            columns = columns_of(tmp_path / "rows" / "rows-00000.safetensors")
    if asked == "export":
        assert len(np.unique(columns["freqs"])) == 1
    else:  # the rows are of a later moment than the keys
        assert columns["keys"].tolist() == ids.tolist()


def test_the_table_may_be_trained_between_two_chunks() -> None:
    with open_variable(partition_num=2) as var:
        train(var, seed=1)
        for chunk in var.export_in_chunks(10):
            var.apply_gradients(chunk["keys"], np.ones(chunk["values"].shape, np.float32))
        assert len(var) == len(var.export()["keys"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"first_key": 0.5}, "first_key must be an integer"),
        ({"last_key": 2**63}, "last_key must be at most"),
        ({"on_damage": "ignore"}, "on_damage must be one of raise, skip"),
    ],
)
def test_bad_arguments_of_chunks_are_named_at_once(
    var: es.EmbeddingVariable, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        var.export_in_chunks(**arguments)


# --- Writing


def test_files_have_the_rows_as_the_formats_own_library_reads_them(
    var: es.EmbeddingVariable, file_format: str, tmp_path: Path
) -> None:
    wanted = var.export()
    rows = es.write_rows(tmp_path / "rows", var, file_format=file_format, rows_a_file=10)
    assert rows == len(var)
    files = sorted((tmp_path / "rows").iterdir())
    assert [file.name for file in files[:2]] == [f"rows-0000{n}.{file_format}" for n in (0, 1)]
    found = [columns_of(file) for file in files]
    assert [len(columns["keys"]) for columns in found[:-1]] == [10] * (len(found) - 1)
    together = concatenate_chunks(found)
    assert together.keys() == wanted.keys()
    for name, column in wanted.items():
        np.testing.assert_array_equal(together[name].astype(column.dtype), column, err_msg=name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows"]


def test_a_range_of_keys_is_written(
    var: es.EmbeddingVariable, file_format: str, tmp_path: Path
) -> None:
    keys = var.export()["keys"]
    first, last = int(keys[3]), int(keys[8])
    written = es.write_rows(
        tmp_path / "rows", var, file_format=file_format, first_key=first, last_key=last
    )
    assert written == 6
    (file,) = (tmp_path / "rows").iterdir()
    assert columns_of(file)["keys"].tolist() == keys[3:9].tolist()


@pytest.mark.parametrize("optimizer", [None, SGD, es.optimizers.Adam()])
def test_a_range_without_rows_is_written_as_a_file_of_none(
    file_format: str, optimizer: es.optimizers.Optimizer | None, tmp_path: Path
) -> None:
    with es.get_embedding_variable("var", 3, optimizer=optimizer) as var:
        assert es.write_rows(tmp_path / "empty", var, file_format=file_format) == 0
        if optimizer is not None:
            var.apply_gradients([1], np.ones((1, 3), np.float32))
        written = es.write_rows(tmp_path / "range", var, file_format=file_format, first_key=2)
        assert written == 0
        for folder in (tmp_path / "empty", tmp_path / "range"):
            (file,) = folder.iterdir()
            assert columns_of(file).keys() == var.export().keys()
            before = var.export()
            assert es.read_rows(folder, var) == 0
            assert_same(var.export(), before)


def test_a_failed_write_leaves_nothing(
    var: es.EmbeddingVariable,
    file_format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError, match="there exists already"):
        es.write_rows(tmp_path / "there", var, file_format=file_format)
    with pytest.raises(StorageError, match="nowhere doesn't exist"):
        es.write_rows(tmp_path / "nowhere" / "rows", var, file_format=file_format)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            es.write_rows(tmp_path / "rows", var, file_format=file_format)
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]
    es.write_rows(tmp_path / "rows", var, file_format=file_format)


def test_a_folder_that_is_being_written_is_refused_to_others(
    var: es.EmbeddingVariable,
    file_format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def late(descriptor: int) -> None:
        if not begun.is_set():
            begun.set()
            goes_on.wait(30)
        fsync(descriptor)

    def write() -> int:
        return es.write_rows(tmp_path / "rows", var, file_format=file_format, rows_a_file=10)

    monkeypatch.setattr("os.fsync", late)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(write)
        assert begun.wait(30)
        try:
            with pytest.raises(InUseError, match="rows is being written already"):
                write()
        finally:
            goes_on.set()
        assert first.result() == len(var)
    with open_variable() as copy:
        assert es.read_rows(tmp_path / "rows", copy) == len(var)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows"]


def test_the_unfinished_folder_of_a_killed_process_is_removed(
    var: es.EmbeddingVariable, file_format: str, tmp_path: Path
) -> None:
    call = f"import test_row_files as t; t.killed_as_it_writes({str(tmp_path)!r}, {file_format!r})"
    assert run_program(call).returncode == -9
    assert not (tmp_path / "rows").exists()
    es.write_rows(tmp_path / "rows", var, file_format=file_format)
    with open_variable() as copy:
        assert es.read_rows(tmp_path / "rows", copy) == len(var)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows"]


def killed_as_it_writes(place: str, file_format: str) -> None:
    with open_variable() as made:
        train(made, seed=1)
        chunks = made.export_in_chunks

        def killed_at_the_second(*arguments: Any, **named: Any) -> Iterator[Columns]:
            yield next(chunks(*arguments, **named))
            os.kill(os.getpid(), 9)

        made.export_in_chunks = killed_at_the_second  # type: ignore[method-assign]
        es.write_rows(Path(place) / "rows", made, file_format=file_format, rows_a_file=10)


def test_an_error_of_safetensors_in_a_write_is_reported(
    var: es.EmbeddingVariable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors = pytest.importorskip("safetensors")

    def full(*_: object, **__: object) -> None:
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(StorageError, match=r"00000\.safetensors: can't be written: No space left"):
        es.write_rows(tmp_path / "rows", var, file_format="safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_missing_library_is_named(
    var: es.EmbeddingVariable, file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[file_format], None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'embstore\[files\]'"):
        es.write_rows(tmp_path / "rows", var, file_format=file_format)
    assert not list(tmp_path.iterdir())
    (tmp_path / f"one.{file_format}").touch()
    with pytest.raises(MissingLibraryError, match=r"pip install 'embstore\[files\]'"):
        es.read_rows(tmp_path, var)


# --- Reading


@pytest.mark.parametrize("partition_num", [1, 3])
def test_a_table_that_is_read_trains_on_with_the_same_bits(
    var: es.EmbeddingVariable, file_format: str, partition_num: int, tmp_path: Path
) -> None:
    es.write_rows(tmp_path / "rows", var, file_format=file_format, rows_a_file=10)
    with open_variable(partition_num=partition_num, initializer=es.initializers.Zeros()) as copy:
        assert es.read_rows(tmp_path / "rows", copy) == len(var)
        assert_same(copy.export(), var.export())  # versions too
        keys = var.export()["keys"]
        for each in (var, copy):
            each.apply_gradients(keys, np.ones((keys.size, 3), np.float32), global_step=50)
        assert_same(copy.export(), var.export())


def test_weights_of_another_program_are_read(file_format: str, tmp_path: Path) -> None:
    keys = np.array([9, -4, 2**60])
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    file = write_columns(tmp_path / f"weights.{file_format}", {"keys": keys, "values": weights})
    with open_variable() as var:
        with pytest.raises(InvalidArgumentError, match=r"has nothing, but var keeps accumulator;"):
            es.read_rows(file, var)
        assert es.read_rows(file, var, slots=False) == 3
        np.testing.assert_array_equal(var.lookup(keys), weights)
        assert var.get_frequency(keys).tolist() == [1, 1, 1]
        assert var.get_version(keys).tolist() == [0, 0, 0]
    with es.get_embedding_variable("served", 3) as served:  # without an optimizer
        assert es.read_rows(tmp_path, served) == 3
        np.testing.assert_array_equal(served.lookup(keys), weights)


def test_a_key_that_occurred_more_often_than_a_put_takes_is_read(
    file_format: str, tmp_path: Path
) -> None:
    most = 2**32 - 1
    with open_variable() as var, open_variable() as copy:
        for _ in range(2):
            var.put([1, 2], np.ones((2, 3), np.float32), freqs=[most, 5])
        assert var.get_frequency([1, 2]).tolist() == [2 * most, 10]
        es.write_rows(tmp_path / "rows", var, file_format=file_format)
        assert es.read_rows(tmp_path / "rows", copy) == 2
        assert copy.get_frequency([1, 2]).tolist() == [most, 10]
        # The frequencies may have any integer type.
        few = {"freqs": np.array([100, 3], np.int8), "accumulator": column(np.float32, 2, 3)}
        rows = {"keys": np.array([3, 4]), "values": column(np.float32, 2, 3), **few}
        es.read_rows(write_columns(tmp_path / f"few.{file_format}", rows), copy)
        assert copy.get_frequency([3, 4]).tolist() == [100, 3]


def column(dtype: type[np.generic], *shape: int) -> NDArray[Any]:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"values": column(np.float32, 2, 3)}, "has no column keys, only values"),
        ({"keys": np.arange(2)}, "has no column values, only keys"),
        (
            {"keys": np.arange(2), "values": column(np.float32, 2, 4)},
            r"values has the shape \(4,\), and one of var has \(3,\)",
        ),
        ({"keys": np.arange(2), "values": column(np.float32, 2)}, "values has the shape"),
        (
            {"keys": np.array([5, 5]), "values": column(np.float32, 2, 3)},
            "5 is there more than once",
        ),
        (
            {"keys": column(np.float32, 2), "values": column(np.float32, 2, 3)},
            "ids must be int64, got float32",
        ),
        (
            {
                "keys": np.arange(2),
                "values": column(np.float32, 2, 3),
                "versions": np.array([0, -1]),
            },
            "versions must be at least 0",
        ),
    ],
)
def test_files_that_do_not_fit_are_named_with_what_is_wrong(
    file_format: str, columns: Columns, named: str, tmp_path: Path
) -> None:
    file = write_columns(tmp_path / f"rows.{file_format}", columns)
    refused = pytest.raises(InvalidArgumentError, match=rf"{file.name}: .*{named}")
    with open_variable(optimizer=SGD) as var, refused:
        es.read_rows(tmp_path, var)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_numbers_of_types_that_numpy_lacks_are_refused(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    rows = {"keys": torch.arange(2), "values": torch.ones(2, 3).to(getattr(torch, dtype))}
    safetensors.save_file(rows, tmp_path / "rows.safetensors")
    # NumPy has these types once a library such as ml_dtypes has registered them.
    told = r"rows\.safetensors: values (is B?F|must be float32, got ).*float32"
    refused = pytest.raises(InvalidArgumentError, match=told)
    with open_variable(optimizer=SGD) as var, refused:
        es.read_rows(tmp_path, var)


def test_no_row_is_put_if_another_has_an_impossible_version(
    file_format: str, tmp_path: Path
) -> None:
    rows = {"keys": np.arange(2), "values": column(np.float32, 2, 3)}
    versions = {"versions": np.array([3, 2**64 - 1], np.uint64)}
    write_columns(tmp_path / f"rows.{file_format}", rows | versions)
    with open_variable(optimizer=SGD) as var:
        with pytest.raises(InvalidArgumentError, match="versions must be at most"):
            es.read_rows(tmp_path, var)
        assert len(var) == 0


def test_no_row_is_put_if_a_later_file_does_not_fit(
    var: es.EmbeddingVariable, file_format: str, tmp_path: Path
) -> None:
    es.write_rows(tmp_path / "rows", var, file_format=file_format)
    write_columns(tmp_path / "rows" / f"z.{file_format}", {"keys": np.arange(2)})
    with open_variable() as empty:
        with pytest.raises(InvalidArgumentError, match="no column values"):
            es.read_rows(tmp_path / "rows", empty)
        assert len(empty) == 0


def damaged_by(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(change(file.read_bytes()))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "damage",
    [
        damaged_by(lambda whole: whole[:0]),
        damaged_by(lambda whole: whole[:30]),
        damaged_by(lambda whole: bytes(len(whole))),
    ],
    ids=["empty", "cut", "zeros"],
)
def test_files_that_can_not_be_read_are_named(
    var: es.EmbeddingVariable, file_format: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    es.write_rows(tmp_path / "rows", var, file_format=file_format)
    (file,) = (tmp_path / "rows").iterdir()
    damage(file)
    with (
        open_variable() as copy,
        pytest.raises(StorageError, match=f"{file.name}: can't be read as"),
    ):
        es.read_rows(tmp_path / "rows", copy)


def test_a_parquet_file_with_a_changed_byte_is_refused(
    var: es.EmbeddingVariable, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    es.write_rows(tmp_path / "rows", var)
    (file,) = (tmp_path / "rows").glob("*.parquet")
    written = file.read_bytes()
    at = written.index(var.export()["values"].tobytes()[:32]) + 8
    file.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
    with open_variable() as copy, pytest.raises(StorageError, match=r"can't be read as .*CRC"):
        es.read_rows(tmp_path / "rows", copy)


def test_lists_of_several_lengths_and_null_are_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    for lists, named in (
        ([[1.0, 2.0, 3.0], [1.0]], "lists of several lengths"),
        ([[1.0, 2.0, 3.0], None], "entries that are null"),
        ([[1.0, 2.0, 3.0], [1.0, None, 3.0]], "entries that are null"),
    ):
        values = arrow.array(lists, arrow.list_(arrow.float32()))
        table = arrow.table({"keys": arrow.array([1, 2]), "values": values})
        pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        with open_variable(optimizer=SGD) as var, pytest.raises(InvalidArgumentError, match=named):
            es.read_rows(tmp_path, var)


def test_a_file_without_rows_beside_others_is_read(tmp_path: Path) -> None:
    """Other programs write such a file for a partition of theirs that has no rows."""
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    for file, keys in (("part-0", []), ("part-1", [5, 6])):
        values = arrow.array([[1.0, 2.0, 3.0]] * len(keys), arrow.list_(arrow.float32()))
        table = arrow.table({"keys": arrow.array(keys, arrow.int64()), "values": values})
        pyarrow.parquet.write_table(table, tmp_path / f"{file}.parquet")
    with open_variable(optimizer=SGD) as var:
        assert es.read_rows(tmp_path, var) == 2
        np.testing.assert_array_equal(var.export()["keys"], [5, 6])


def test_columns_that_are_neither_numbers_nor_lists_or_come_twice_are_refused(
    tmp_path: Path,
) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    keys = arrow.array([1, 2])
    values = arrow.array([[1.0, 2.0, 3.0]] * 2, arrow.list_(arrow.float32()))
    pairs = arrow.array([{"a": 1}, {"a": 2}])
    for names, columns, named in (
        (["keys", "values"], [pairs, values], "an entry of keys is a struct"),
        (["keys", "keys", "values"], [keys, keys, values], "several columns of one name"),
    ):
        table = arrow.Table.from_arrays(columns, names=names)
        pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        with open_variable(optimizer=SGD) as var, pytest.raises(InvalidArgumentError, match=named):
            es.read_rows(tmp_path, var)


def test_a_path_that_is_no_file_of_rows_is_refused(
    var: es.EmbeddingVariable, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=r"has no file that ends with \.parquet"):
        es.read_rows(tmp_path, var)
    with pytest.raises(StorageError, match="there is no such file or folder"):
        es.read_rows(tmp_path / "nothing", var)
    (tmp_path / "rows.csv").touch()
    with pytest.raises(InvalidArgumentError, match=r"or a file that ends with \.parquet"):
        es.read_rows(tmp_path / "rows.csv", var)
    with pytest.raises(InvalidArgumentError, match="file_format must be one of parquet, safe"):
        es.write_rows(tmp_path / "rows", var, file_format="csv")
    for takes_a_variable in (es.write_rows, es.read_rows):
        with pytest.raises(InvalidArgumentError, match="variable must be an embstore"):
            takes_a_variable(tmp_path / "rows", [var])  # type: ignore[arg-type]
