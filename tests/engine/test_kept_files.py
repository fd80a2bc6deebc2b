"""Files of the SSDHASH tier that outlive a variable, and how the tier reads them.

The kill test kills 12 times, or as often as EMBSTORE_KILLS says.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import train
from engine_storage import Stack, row_bytes, variable_with_options
from exports import Export, assert_same
from plain_partition import partitions_of
from programs import run_program

import embstore as es
from embstore.errors import DamagedRowsError, InvalidArgumentError, StorageError, StoreFullError

DRAM_SSDHASH = Stack(es.StorageType.DRAM_SSDHASH)
STACKS = [
    DRAM_SSDHASH,
    Stack(es.StorageType.DRAM_PMEM_SSDHASH),
    Stack(es.StorageType.HBM_DRAM_SSDHASH),
]
ADAGRAD = es.optimizers.Adagrad(0.1)
KEPT = es.SSDHashOption(keep_files=True)

Open = Callable[..., es.EmbeddingVariable]


@pytest.fixture
def open_variable(tmp_path: Path) -> Open:
    """Returns a function that opens a variable of this test, which keeps its files and whose upper
    tiers have 8 rows."""

    def open_it(
        stack: Stack = DRAM_SSDHASH,
        *,
        directory: str = "rows",
        ssdhash: es.SSDHashOption | None = KEPT,
        optimizer: es.optimizers.Optimizer = ADAGRAD,
        dim: int = 3,
        upper_rows: int = 8,
        ssd_rows: int | None = None,
        partition_num: int = 1,
        **options: Any,
    ) -> es.EmbeddingVariable:
        row = row_bytes(dim, optimizer)
        sizes = [upper_rows * row] * (stack.tiers - 1)
        if ssd_rows is not None:
            sizes.append(ssd_rows * row)
        (tmp_path / directory).mkdir(exist_ok=True)
        places = stack.option(tmp_path / directory, sizes)
        storage = es.StorageOption(
            places.storage_type, places.storage_path, sizes, ssdhash_option=ssdhash
        )
        return variable_with_options(
            "var",
            dim,
            storage,
            initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
            optimizer=optimizer,
            partition_num=partition_num,
            **options,
        )

    return open_it


def export_of(variable: es.EmbeddingVariable) -> Export:
    """Exports a variable and closes it."""
    with variable:
        return variable.export()


# --- Options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direct_io": 1}, r"direct_io must be True or False, got 1 \(int\)"),
        ({"keep_files": "yes"}, r"keep_files must be True or False, got 'yes' \(str\)"),
        ({"file_bytes": 65535}, "file_bytes must be at least 65536 bytes, got 65535"),
        ({"file_bytes": 2**40 + 1}, "file_bytes must be at most 1099511627776 bytes"),
        ({"file_bytes": 1e6}, r"file_bytes must be an integer \(bytes\), got 1000000.0"),
        ({"buffer_bytes": 131071}, "buffer_bytes must be at least 131072 bytes, got 131071"),
        ({"buffer_bytes": 2**30 + 1}, "buffer_bytes must be at most 1073741824 bytes"),
        ({"io_scheme": "aio"}, "io_scheme must be .*'auto', 'io_uring', 'pread', got 'aio'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.SSDHashOption(**arguments)


def test_a_scheme_is_known_by_its_name() -> None:
    assert es.SSDHashOption(io_scheme="pread").io_scheme is es.IoScheme.PREAD


@pytest.mark.parametrize(
    "storage_type", [es.StorageType.DRAM, es.StorageType.PMEM_LIBPMEM, es.StorageType.DRAM_LEVELDB]
)
def test_an_ssdhash_option_is_refused_without_an_ssdhash_tier(
    storage_type: es.StorageType, tmp_path: Path
) -> None:
    path = None if storage_type is es.StorageType.DRAM else tmp_path
    with pytest.raises(InvalidArgumentError, match=f"{storage_type.name} has no SSDHASH tier"):
        es.StorageOption(storage_type, path, ssdhash_option=es.SSDHashOption())


def test_another_object_is_refused_as_ssdhash_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"ssdhash_option must be an embstore.SSDHash"):
        es.StorageOption(es.StorageType.SSDHASH, tmp_path, ssdhash_option=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", es.IoScheme)
def test_every_scheme_reads_the_same_rows_or_says_why_it_cant(
    open_variable: Open, scheme: es.IoScheme
) -> None:
    try:
        variable = open_variable(ssdhash=es.SSDHashOption(io_scheme=scheme))
    except StorageError as error:
        assert scheme is es.IoScheme.IO_URING
        pytest.skip(str(error))
    with variable, open_variable(directory="others", ssdhash=None) as other:
        if scheme is not es.IoScheme.AUTO:
            assert variable.stats()["tiers"][1]["io_scheme"] == scheme.value
        for each in (variable, other):
            train(each, 1)
        assert_same(variable.export(), other.export())


def flags_of_open_files(directory: Path) -> list[int]:
    """Returns the flags with which this process has the directory's files of rows open."""
    flags = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except FileNotFoundError:
            continue
        if target.parent == directory and target.name.startswith("rows-"):
            info = Path("/proc/self/fdinfo", link.name).read_text()
            flags.append(int(re.findall(r"flags:\s*(\d+)", info)[0], 8))
    return flags


def has_direct_io(directory: Path) -> bool:
    probe = directory / "probe"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


@pytest.mark.parametrize("direct_io", [False, True])
def test_files_are_opened_for_direct_io_if_it_is_asked_for(
    open_variable: Open, tmp_path: Path, direct_io: bool
) -> None:
    if direct_io and not has_direct_io(tmp_path):
        pytest.skip(f"the file system of {tmp_path} has no O_DIRECT")
    with (
        open_variable(ssdhash=es.SSDHashOption(direct_io=direct_io)) as variable,
        open_variable(directory="others", ssdhash=None) as other,
    ):
        for each in (variable, other):
            train(each, 1)
            each.drain()  # so that rows have gone down to files
        flags = flags_of_open_files(tmp_path / "rows/var.ssdhash")
        assert flags
        assert all(bool(flag & os.O_DIRECT) is direct_io for flag in flags)
        assert_same(variable.export(), other.export())


def test_a_file_system_without_direct_io_is_an_error_when_the_variable_is_made() -> None:
    shared_memory = Path("/dev/shm")  # a tmpfs, which has O_DIRECT since Linux 6.6
    if not os.access(shared_memory, os.W_OK) or has_direct_io(shared_memory):
        pytest.skip("no file system without O_DIRECT is known here")
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH, shared_memory, ssdhash_option=es.SSDHashOption(direct_io=True)
    )
    with pytest.raises(StorageError, match="this file system has no O_DIRECT"):
        variable_with_options("var", 3, storage)


# --- Closing and opening


def test_keys_without_a_row_start_by_the_initializer_of_the_variable_that_is_opened(
    open_variable: Open,
) -> None:
    with open_variable() as variable:
        train(variable, 1)
        kept = variable.export()
    ones = es.InitializerOption(es.initializers.Ones())
    with open_variable(init=ones) as variable:
        assert_same(variable.export(), kept)
        np.testing.assert_array_equal(variable.lookup([10**9]), np.ones((1, 3)))


def test_rows_that_were_used_last_still_rank_higher_after_opening(open_variable: Open) -> None:
    old, new = np.arange(40), np.arange(100, 108)
    with open_variable() as variable:
        variable.apply_gradients(old, np.ones((40, 3), np.float32))
    with open_variable() as variable:
        variable.apply_gradients(new, np.ones((8, 3), np.float32))
        variable.apply_gradients(old[:4], np.ones((4, 3), np.float32))  # twice by now
        variable.drain()
        assert (variable.lookup_tier(old[:4]) == 0).all()
        assert (variable.lookup_tier(new[4:]) == 0).all()  # once, but later than the other old ones
        assert variable.lookup_tier(old[4:]).min() == 1


def test_a_limit_of_the_ssd_tier_is_kept_after_opening(open_variable: Open) -> None:
    stack = STACKS[1]
    with open_variable(stack, ssd_rows=40) as variable:  # 56 rows in all
        for key in range(56):
            variable.apply_gradients([key] * (key + 1), np.ones((key + 1, 3), np.float32))
        before = variable.export()
    with open_variable(stack, ssd_rows=40) as variable:
        assert_same(variable.export(), before)
        variable.drain()
        assert [tier["rows"] for tier in variable.stats()["tiers"]] == [8, 8, 40]
        wanted = [2] * 40 + [1] * 8 + [0] * 8  # ranked by frequency
        assert variable.lookup_tier(np.arange(56)).tolist() == wanted
        with pytest.raises(StoreFullError):
            variable.apply_gradients([99], np.ones((1, 3), np.float32))
    with pytest.raises(
        StoreFullError, match="no room for the rows of the checkpoint; they hold 55 rows"
    ):
        open_variable(stack, ssd_rows=39)
    assert_same(export_of(open_variable(stack, ssd_rows=41)), before)


# --- Refusals


def test_kept_rows_are_not_thrown_away_by_a_variable_that_keeps_none(open_variable: Open) -> None:
    with open_variable() as variable:
        train(variable, 1)
        before = variable.export()
    with pytest.raises(
        StorageError, match=r"var\.ssdhash: holds rows that may belong to checkpoints"
    ):
        open_variable(ssdhash=None)
    assert_same(export_of(open_variable()), before)


@pytest.mark.parametrize("header", [b"", bytes(40), bytes(4096)], ids=["empty", "short", "zeros"])
def test_remains_of_a_power_cut_are_removed_if_rows_are_not_kept(
    tmp_path: Path, header: bytes
) -> None:
    left = tmp_path / "table.ssdhash" / "rows-0000000013.ssdhash"
    left.parent.mkdir()
    left.write_bytes(header)  # its name reached the medium, and nothing else
    with variable_with_options(
        "table",
        4,
        es.StorageOption(storage_type=es.StorageType.DRAM_SSDHASH, storage_path=tmp_path),
    ):
        assert not left.exists()


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_another_number_of_partitions_is_refused(
    open_variable: Open, first: int, second: int
) -> None:
    with open_variable(partition_num=first) as variable:
        train(variable, 1)
        before = variable.export()
    with pytest.raises(InvalidArgumentError, match=r"partition_num"):
        open_variable(partition_num=second)
    assert_same(export_of(open_variable(partition_num=first)), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 4}, "dim 3 with 1 optimizer slots; the variable has dim 4"),
        ({"optimizer": es.optimizers.SGD(0.1)}, "the variable has dim 3 with 0"),
        (
            {"optimizer": es.optimizers.RMSprop(0.1)},
            "rows of the optimizer Adagrad, and the variable",
        ),
    ],
)
def test_rows_of_another_dim_or_optimizer_are_refused(
    open_variable: Open, arguments: dict[str, Any], message: str
) -> None:
    with open_variable() as variable:
        train(variable, 1)
        before = variable.export()
    with pytest.raises(InvalidArgumentError, match=message):
        open_variable(**arguments)
    assert_same(export_of(open_variable()), before)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_close_that_cant_write_loses_nothing_and_may_be_called_again(
    open_variable: Open, tmp_path: Path, partitions: int
) -> None:
    last = "var.ssdhash" if partitions == 1 else f"var.part{partitions - 1}.ssdhash"
    with open_variable(partition_num=partitions):
        pass  # so that rows were kept before
    with open_variable(upper_rows=4000, partition_num=partitions) as variable:
        variable.apply_gradients(np.arange(4000), np.ones((4000, 3), np.float32))
        before = variable.export()
        (tmp_path / "rows" / last).rename(tmp_path / "elsewhere")
        for _ in range(20):  # more often than a table may have checkpoints
            with pytest.raises(StorageError, match=re.escape(last)):
                variable.close()
        (tmp_path / "elsewhere").rename(tmp_path / "rows" / last)
    assert_same(export_of(open_variable(partition_num=partitions)), before)


# --- Kills


def damage(tmp_path: Path, values: Any) -> None:
    """Flips a bit of the one record that has these weights."""
    (file,) = (f for f in tmp_path.rglob("rows-*.ssdhash") if values.tobytes() in f.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(values.tobytes())] ^= 1
    file.write_bytes(content)


def test_a_damaged_row_stops_no_other_from_being_taken_over(
    open_variable: Open, tmp_path: Path
) -> None:
    with open_variable() as variable:
        train(variable, 1)
        before = variable.export()
    damaged = int(before["keys"][3])
    damage(tmp_path, before["values"][3])
    sound = np.delete(before["keys"], 3)
    with open_variable() as variable:
        assert variable.total_count()[0] == before["keys"].size
        np.testing.assert_array_equal(
            variable.lookup(sound, train=True), np.delete(before["values"], 3, axis=0)
        )
        with pytest.raises(DamagedRowsError, match=r"rows-.*\.ssdhash") as told:
            variable.lookup([damaged], train=True)
        assert told.value.keys == [damaged]
    with open_variable() as variable:  # the damage outlives a close and an opening
        assert variable.damaged_keys().tolist() == [damaged]
        assert variable.drop_damaged().tolist() == [damaged]
        assert variable.damaged_keys().size == 0
    with open_variable() as variable:
        np.testing.assert_array_equal(variable.export()["keys"], sound)


def test_a_damaged_row_stops_no_other_from_coming_up_after_opening(
    open_variable: Open, tmp_path: Path
) -> None:
    ids = np.arange(40)
    with open_variable(ssd_rows=40, upper_rows=16) as variable:
        for key in range(40):
            times = 41 - key
            variable.apply_gradients([key] * times, np.ones((times, 3), np.float32))
        before = variable.export()
    damage(tmp_path, before["values"][0])
    with open_variable(ssd_rows=30, upper_rows=16) as variable:
        variable.drain()
        assert variable.damaged_keys().tolist() == [0]
        assert variable.lookup_tier([0]).tolist() == [1]
        assert (variable.lookup_tier(ids) == 0).sum() >= 10
        np.testing.assert_array_equal(variable.lookup(ids[1:], train=True), before["values"][1:])


def test_a_killed_variable_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    kills = os.environ.get("EMBSTORE_KILLS", "12")
    done = run_program(
        "import sys, killed_variables as k\nk.main(k.Path(sys.argv[1]), int(sys.argv[2]), 1)",
        tmp_path,
        kills,
        timeout=30 + 3 * int(kills),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{kills} kills")


def test_partitions_of_a_close_that_was_interrupted_go_on_from_the_same_checkpoint(
    open_variable: Open, tmp_path: Path
) -> None:
    with open_variable(partition_num=3) as variable:
        train(variable, 1)
        before = variable.export()
    kept = tmp_path / "rows"
    assert len(list(kept.glob("*.checkpoint-*"))) == 3
    saved = tmp_path / "saved"
    shutil.copytree(kept, saved)
    with open_variable(partition_num=3) as variable:
        train(variable, 2)
    # As if the process had ended before the last partition had its new checkpoint: the others have
    # both.
    remove_files("part2", kept)
    for part in ("part0", "part1", "part2"):
        put_back(part, saved, kept)
    assert_same(export_of(open_variable(partition_num=3)), before)


def test_an_opening_that_fails_in_one_partition_loses_no_row(open_variable: Open) -> None:
    partitions = partitions_of(ids := np.arange(400), 2)
    few, many = ids[partitions == 0][:5], ids[partitions == 1][:60]
    with open_variable(partition_num=2) as variable:
        for some in (few, many):
            variable.apply_gradients(some, np.ones((some.size, 3), np.float32))
        before = variable.export()
    for _ in range(3):
        with pytest.raises(StoreFullError, match=r"part1 of 2: .* no room for the rows"):
            open_variable(partition_num=2, ssd_rows=40)
    assert_same(export_of(open_variable(partition_num=2)), before)


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_of_a_variable_that_was_not_closed_are_kept(
    open_variable: Open, partitions: int
) -> None:
    for seed in range(3):
        variable = open_variable(partition_num=partitions)
        train(variable, seed)
        before = variable.export()
        del variable
        gc.collect()
        with open_variable(partition_num=partitions) as again:
            assert_same(again.export(), before)


def put_back(of: str, copies: Path, rows: Path) -> None:
    """Puts a partition's missing files back, from their copies."""
    for copy in copies.rglob("*"):
        path = rows / copy.relative_to(copies)
        if of in str(path.relative_to(rows)) and copy.is_file() and not path.exists():
            path.parent.mkdir(exist_ok=True)
            shutil.copy(copy, path)


def remove_files(of: str, folder: Path) -> None:
    for path in folder.glob(f"*{of}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_missing_files_of_a_partition_are_reported(open_variable: Open, tmp_path: Path) -> None:
    with open_variable(partition_num=3) as variable:
        train(variable, 1)
        before = variable.export()
    rows, whole = tmp_path / "rows", tmp_path / "whole"
    shutil.copytree(rows, whole)
    remove_files("part1", rows)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"var: no rows are kept of part1, .* put the files"):
            open_variable(partition_num=3)
    put_back("part1", whole, rows)
    assert_same(export_of(open_variable(partition_num=3)), before)


@pytest.mark.parametrize(("opened", "closed"), [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)])
def test_a_variable_that_was_never_closed_as_a_whole_begins_without_rows(
    open_variable: Open, tmp_path: Path, opened: int, closed: int
) -> None:
    """As if the first process had ended when it had opened `opened` of three partitions, or closed
    `closed` of them."""
    rows, new = tmp_path / "rows", tmp_path / "new"
    with open_variable(partition_num=3) as variable:
        shutil.copytree(rows, new)
        train(variable, 1)
    for number in range(3):
        if number >= closed:
            remove_files(f"part{number}", rows)
        if number < opened:
            put_back(f"part{number}", new, rows)
    with open_variable(partition_num=3) as variable:
        assert variable.total_count()[0] == 0
        train(variable, 2)
        before = variable.export()
    assert_same(export_of(open_variable(partition_num=3)), before)


def files_in(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("partitions", [1, 2])
def test_rows_without_a_checkpoint_beside_them_are_refused_and_stay(
    open_variable: Open, tmp_path: Path, partitions: int
) -> None:
    rows, away = tmp_path / "rows", tmp_path / "away"
    with open_variable(partition_num=partitions) as variable:
        train(variable, 1)
        before = variable.export()
    away.mkdir()
    for manifest in list(rows.glob("*.checkpoint-*")):  # a backup may leave these out
        manifest.rename(away / manifest.name)
    left = files_in(rows)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"var: .*var.*\.ssdhash has rows, .* to begin with"):
            open_variable(partition_num=partitions)
        assert files_in(rows) == left
    for manifest in list(away.iterdir()):
        manifest.rename(rows / manifest.name)
    assert_same(export_of(open_variable(partition_num=partitions)), before)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_variable_that_was_killed_before_its_first_close_begins_without_rows(
    open_variable: Open, tmp_path: Path, partitions: int
) -> None:
    with open_variable(directory="running", partition_num=partitions) as variable:
        train(variable, 1, keys=400)
        variable.drain()
        shutil.copytree(tmp_path / "running", tmp_path / "rows")
    assert list((tmp_path / "rows").rglob("rows-*"))
    with open_variable(partition_num=partitions) as variable:
        assert variable.total_count()[0] == 0
        train(variable, 2)
        before = variable.export()
    assert_same(export_of(open_variable(partition_num=partitions)), before)


def test_files_of_an_earlier_version_that_was_never_closed_may_be_removed(
    open_variable: Open, tmp_path: Path
) -> None:
    """Earlier versions wrote no checkpoint before the first close."""
    rows = tmp_path / "rows"
    with open_variable(directory="running") as variable:
        train(variable, 1, keys=400)
        variable.drain()
        shutil.copytree(tmp_path / "running", rows)
    for manifest in rows.glob("*.checkpoint-*"):
        manifest.unlink()
    with pytest.raises(StorageError, match=r"remove .*var\.ssdhash to begin with no rows"):
        open_variable()
    shutil.rmtree(rows / "var.ssdhash")
    with open_variable() as variable:
        assert variable.total_count()[0] == 0
        train(variable, 2)
        before = variable.export()
    assert_same(export_of(open_variable()), before)


def test_files_of_a_killed_variable_that_kept_no_rows_are_removed(
    open_variable: Open, tmp_path: Path
) -> None:
    with open_variable(directory="running", ssdhash=None) as variable:
        train(variable, 1, keys=400)
        variable.drain()
        shutil.copytree(tmp_path / "running", tmp_path / "rows")
    (left,) = (tmp_path / "rows").rglob("rows-*")
    (left.parent / "rows-0000000013.ssdhash").write_bytes(bytes(40))
    with open_variable() as variable:
        assert variable.total_count()[0] == 0
        assert not list((tmp_path / "rows").rglob("rows-0*"))


def test_files_of_different_closes_are_refused_and_stay(
    open_variable: Open, tmp_path: Path
) -> None:
    rows, older = tmp_path / "rows", tmp_path / "older"
    for seed in range(2):
        with open_variable(partition_num=2) as variable:
            train(variable, seed)
            before = variable.export()
        if seed == 0:
            shutil.copytree(rows, older)
    shutil.copytree(rows, tmp_path / "newer")
    # A backup of one partition is older than the other.
    remove_files("part1", rows)
    put_back("part1", older, rows)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"var: .* not of one close\(\); put the files"):
            open_variable(partition_num=2)
    shutil.rmtree(rows)
    (tmp_path / "newer").rename(rows)
    assert_same(export_of(open_variable(partition_num=2)), before)
