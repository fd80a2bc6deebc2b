"""Files that are damaged, saves that are killed, and disks that are full."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoint_variables import files_of, open_variable, train
from engine_storage import Stack
from exports import Export, assert_same
from programs import no_file_grows_beyond, run_program

import embstore as es
from embstore import _core
from embstore.checkpoint.checksummed import checksummed
from embstore.checkpoint.restore_plan import RestorePlan
from embstore.errors import (
    CheckpointError,
    EmbStoreError,
    InUseError,
    InvalidArgumentError,
    ShardLostError,
    StorageError,
)
from embstore.table.shard import LocalSave, LocalShard, RestoreRequest, SavedShard


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[es.EmbeddingVariable, Path, Path, Export]]:
    """Yields a small variable, its full save, the increment after it, and the variable's rows."""
    few = es.InitializerOption(default_value_dim=4)  # saved, too, and damaged byte by byte
    with open_variable(partition_num=2, filter=es.CounterFilter(2), init=few) as var:
        train(var, 1, batches=1, keys=6)
        es.save(tmp_path / "full", [var], 1)
        train(var, 2, batches=1, keys=8)
        es.save_incremental(tmp_path / "increment", [var], 2)
        yield var, tmp_path / "full", tmp_path / "increment", var.export()


def _damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    for i in range(len(content)):
        flipped = bytearray(content)
        flipped[i] ^= 1 << (i * 5 % 8)
        yield f"bit {i * 5 % 8} of byte {i} flipped", bytes(flipped)
    for size in range(0, len(content), 7):
        yield f"cut to {size} bytes", content[:size]
    yield "a byte more", content + b"\0"
    yield "twice", content * 2


def _overwrite(file: Path, content: bytes) -> None:
    """Overwrites in place: some file systems sync a file that is made anew, which takes long."""
    with file.open("r+b") as opened:
        opened.write(content)
        opened.truncate()


def _refusal(call: Callable[[], object]) -> StorageError | None:
    """Returns the StorageError that the call raises, or None."""
    try:
        call()
    except StorageError as error:
        return error
    return None


def test_every_damage_is_an_error_that_names_the_file_and_changes_nothing(
    saved: tuple[es.EmbeddingVariable, Path, Path, Export],
) -> None:
    var, full, increment, before = saved
    files = files_of(full) + files_of(increment)
    assert len(files) == 6
    for file in files:
        content = file.read_bytes()
        for what, damaged in _damages(content):
            _overwrite(file, damaged)
            refused = _refusal(lambda: es.restore(full, [var], incremental=[increment]))
            assert isinstance(refused, CheckpointError), f"{file}: {what}: was restored"
            assert str(file) in str(refused), what
        file.unlink()
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            es.restore(full, [var], incremental=[increment])
        file.write_bytes(content)
    assert_same(var.export(), before)
    es.restore(full, [var], incremental=[increment])
    assert_same(var.export(), before)


def _rename_in_manifest(manifest: Path, old: str, new: str) -> None:
    """Changes a name in the manifest and renews its checksum, as an attacker would."""
    fields = json.loads(manifest.read_text().replace(old, new))
    del fields["checksum"]
    manifest.write_bytes(checksummed(fields))


@pytest.mark.parametrize(
    "name", ["../elsewhere.rows", "{folder}/elsewhere.rows", "..", "", r"a\u0000b"]
)
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with open_variable() as var:
        train(var, 1)
        es.save(tmp_path / "save", [var], 1)
        before = var.export()
        rows, manifest = sorted(files_of(tmp_path / "save"), reverse=True)
        rows.rename(rows.parent.parent / "elsewhere.rows")
        _rename_in_manifest(manifest, rows.name, name.format(folder=rows.parent.parent))
        with pytest.raises(CheckpointError, match=re.escape(str(manifest)) + ".*not beside it"):
            es.restore(tmp_path / "save", [var])
        assert_same(var.export(), before)


@pytest.mark.timeout(20)  # an open that waits for a writer would wait for ever
@pytest.mark.parametrize("number", [0, 1])
def test_a_fifo_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, number: int) -> None:
    with open_variable() as var:
        train(var, 1)
        es.save(tmp_path / "save", [var], 1)
        file = sorted(files_of(tmp_path / "save"))[number]
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            es.restore(tmp_path / "save", [var])


def test_files_of_two_saves_cant_be_mixed(tmp_path: Path) -> None:
    with open_variable(partition_num=2) as var:
        train(var, 1)
        for name in ("a", "b"):
            es.save(tmp_path / name, [var], 1)
        before = var.export()
        a, b = files_of(tmp_path / "a"), files_of(tmp_path / "b")
        shutil.copy(a[1], b[1])
        with pytest.raises(CheckpointError, match=re.escape(str(b[1])) + ".*save_id"):
            es.restore(tmp_path / "b", [var])
        shutil.copy(a[1], a[2])
        with pytest.raises(CheckpointError, match=re.escape(str(a[2])) + ".*partition"):
            es.restore(tmp_path / "a", [var])
        assert_same(var.export(), before)


def _with_version(offset: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        header = bytearray(content[:64])
        header[offset] += 1
        header[60:] = _core.crc32c(bytes(header[:60])).to_bytes(4, "little")
        return bytes(header) + content[64:]

    return change


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("manifest.json", lambda text: text.replace(b'"version": 3', b'"version": 4'), "version 4"),
        ("var-0.0.rows", _with_version(8), "version 5"),
        ("var-0.0.rows", lambda _: b"something else entirely" * 10, "isn't a file of"),
    ],
)
def test_another_format_is_told_apart_from_damage(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], what: str
) -> None:
    with open_variable() as var:
        train(var, 1)
        es.save(tmp_path, [var], 1)
        (file,) = [file for file in files_of(tmp_path) if file.name == name]
        file.write_bytes(change(file.read_bytes()))
        with pytest.raises(CheckpointError, match=what):
            es.restore(tmp_path, [var])


def test_a_killed_save_leaves_the_last_one_good(tmp_path: Path) -> None:
    done = run_program(
        "import sys, killed_saves as k\nk.main(k.Path(sys.argv[1]), 25, 1)", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "25 kills" in done.stdout


def test_a_file_that_cant_be_written_leaves_the_last_save_good(tmp_path: Path) -> None:
    with open_variable(partition_num=2) as var, open_variable() as other:
        train(var, 1)
        es.save(tmp_path / "full", [var], 1)
        wanted = var.export()
        largest = max(file.stat().st_size for file in files_of(tmp_path / "full"))
        train(var, 2)
        for size in range(0, largest, 97):
            with no_file_grows_beyond(size):
                refused = _refusal(lambda: es.save(tmp_path / "full", [var], 2))
            assert str(tmp_path) in str(refused)
            assert os.strerror(errno.EFBIG) in str(refused)
            assert not list((tmp_path / "full").glob(".*.unfinished"))
        es.restore(tmp_path / "full", [other])
        assert_same(other.export(), wanted)
        # The next increment has everything that was to be saved.
        es.save_incremental(tmp_path / "increment", [var], 2)
        es.restore(tmp_path / "full", [other], incremental=[tmp_path / "increment"])
        assert_same(other.export(), var.export())


def test_a_full_disk_leaves_the_last_save_good(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only who may mount a file system can fill one")
    try:
        with open_variable(dim=16) as var, open_variable(dim=16) as other:
            train(var, 1)
            es.save(disk / "full", [var], 1)
            wanted = var.export()
            var.apply_gradients(np.arange(3000), np.ones((3000, 16), np.float32))
            with pytest.raises(StorageError, match="No space left on device"):
                es.save(disk / "full", [var], 2)
            assert es.restore(disk / "full", [other]) == 1
            assert_same(other.export(), wanted)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_saves_to_one_path_dont_mix(tmp_path: Path) -> None:
    with open_variable() as var:
        es.save(tmp_path, [var], 1)
        with (tmp_path / ".lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(InUseError, match="another save to it is under way"):
                es.save(tmp_path, [var], 2)
        es.save(tmp_path, [var], 3)
        assert es.restore(tmp_path, [var]) == 3


def test_a_closed_variable_can_neither_be_saved_nor_restored(tmp_path: Path) -> None:
    with open_variable() as var:
        es.save(tmp_path, [var], 1)
    for call in (lambda: es.save(tmp_path, [var], 2), lambda: es.restore(tmp_path, [var])):
        with pytest.raises(EmbStoreError, match="closed"):
            call()
    with open_variable() as var:
        assert es.restore(tmp_path, [var]) == 1


@pytest.mark.parametrize("kind", [es.StorageType.DRAM_SSDHASH, es.StorageType.DRAM_LEVELDB])
def test_a_restore_that_the_medium_refuses_leaves_an_empty_variable_that_works(
    tmp_path: Path, kind: es.StorageType
) -> None:
    rows = 60_000
    with (
        open_variable(dim=16, rows=rows) as var,
        open_variable(Stack(kind), dim=16, rows=rows) as other,
    ):
        var.apply_gradients(np.arange(rows), np.ones((rows, 16), np.float32))
        es.save(tmp_path / "full", [var], 1)
        es.save(tmp_path / "before", [other], 1)
        with (
            no_file_grows_beyond(1 << 16),
            pytest.raises(CheckpointError, match=f"{other.name} is left empty"),
        ):
            es.restore(tmp_path / "full", [other])
        assert other.total_count()[0] == 0
        # Its rows don't follow those of its last save.
        with pytest.raises(InvalidArgumentError, match="last restore failed"):
            es.save_incremental(tmp_path / "increment", [other], 2)
        es.restore(tmp_path / "full", [other])
        assert_same(other.export(), var.export())
        es.save_incremental(tmp_path / "increment", [other], 2)


def test_a_restore_is_whole_although_a_save_replaces_the_files_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = RestorePlan.carry_out

    def after_a_save(plan: RestorePlan) -> None:
        train(var, 2)
        es.save(tmp_path, [var], 2)
        carry_out(plan)

    with open_variable() as var, open_variable() as other:
        train(var, 1)
        wanted = var.export()
        es.save(tmp_path, [var], 1)
        monkeypatch.setattr(RestorePlan, "carry_out", after_a_save)
        assert es.restore(tmp_path, [other]) == 1
        assert_same(other.export(), wanted)
        monkeypatch.undo()
        assert es.restore(tmp_path, [other]) == 2
        es.save(tmp_path, [var], 3)
        assert len(list(tmp_path.glob("save-*"))) == 1


def test_ctrl_c_leaves_no_restore_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = LocalShard.restore

    def interrupted(shard: LocalShard, request: RestoreRequest) -> None:
        restore(shard, request)
        signal.raise_signal(signal.SIGINT)

    with (
        open_variable(name="users", partition_num=2) as users,
        open_variable(name="items", partition_num=2) as items,
    ):
        for each in (users, items):
            train(each, 1)
        saved = [each.export() for each in (users, items)]
        es.save(tmp_path, [users, items], 1)
        for each in (users, items):
            train(each, 2)
        monkeypatch.setattr(LocalShard, "restore", interrupted)
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            es.restore(tmp_path, [users, items])
        assert signal.getsignal(signal.SIGINT) is handler
        for each, wanted in zip((users, items), saved, strict=True):
            assert_same(each.export(), wanted)


@pytest.mark.timeout(60)  # the next save would wait for one that was left begun
def test_ctrl_c_again_and_again_leaves_the_save_before_and_nothing_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes interrupts that come while the save waits for its threads after the first one."""
    write, stop, main = LocalSave.write, LocalSave.stop, threading.main_thread().ident
    assert main is not None
    came = threading.Event()
    refused: list[str] = []

    def noted(save: LocalSave) -> None:
        stop(save)
        came.set()

    def interrupted(save: LocalSave, skip_damaged: bool) -> SavedShard:
        for _ in range(3):
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.02)
        assert came.wait(30)
        try:
            return write(save, skip_damaged)
        except StorageError as error:
            refused.append(str(error))
            raise

    with open_variable(partition_num=2) as var:
        train(var, 1)
        es.save(tmp_path, [var], 1)
        wanted = var.export()
        train(var, 2)
        handler = signal.getsignal(signal.SIGINT)
        with monkeypatch.context() as patch:
            patch.setattr(LocalSave, "write", interrupted)
            patch.setattr(LocalSave, "stop", noted)
            with pytest.raises(KeyboardInterrupt):
                es.save(tmp_path, [var], 2)
        assert "the save was given up" in refused
        assert signal.getsignal(signal.SIGINT) is handler
        es.save(tmp_path / "other", [var], 3)
        assert es.restore(tmp_path, [var]) == 1
        assert_same(var.export(), wanted)


@pytest.mark.timeout(60)
def test_a_program_s_own_handler_of_ctrl_c_stops_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, handled = LocalSave.begin, []

    def interrupted(save: LocalSave, waiting_keys: bool) -> None:
        begin(save, waiting_keys)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda *_: handled.append(list(tmp_path.glob("save-*"))))
    try:
        with open_variable(partition_num=2) as var:
            train(var, 1)
            monkeypatch.setattr(LocalSave, "begin", interrupted)
            es.save(tmp_path, [var], 1)
            assert len(handled) == 2
            assert es.restore(tmp_path, [var]) == 1
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_restore_that_is_stopped_leaves_no_part_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = LocalShard.restore

    def stopped(shard: LocalShard, request: RestoreRequest) -> None:
        if request.partition == 1:
            monkeypatch.undo()
            raise MemoryError
        restore(shard, request)

    with open_variable(partition_num=2) as var:
        train(var, 1)
        es.save(tmp_path, [var], 1)
        monkeypatch.setattr(LocalShard, "restore", stopped)
        with pytest.raises(MemoryError):
            es.restore(tmp_path, [var])
        assert var.total_count()[0] == 0


def test_a_save_that_has_its_name_has_succeeded_even_if_a_shard_is_lost_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise ShardLostError("gone")

    with open_variable() as var:
        train(var, 1)
        es.save(tmp_path / "full", [var], 1)
        train(var, 2)
        with monkeypatch.context() as patch:
            patch.setattr(LocalShard, "save_succeeded", lost)
            es.save_incremental(tmp_path / "first", [var], 2)
        train(var, 3)
        es.save_incremental(tmp_path / "second", [var], 3)
        trained = var.export()
    with open_variable() as var:
        increments = [tmp_path / "first", tmp_path / "second"]
        assert es.restore(tmp_path / "full", [var], incremental=increments) == 3
        assert_same(var.export(), trained)
