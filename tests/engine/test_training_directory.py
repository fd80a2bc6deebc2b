"""The folder in which a job keeps its checkpoints."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from embstore.checkpoint.training.directory import TrainingCheckpoint, TrainingDirectory
from embstore.errors import CheckpointError, StorageError


@pytest.fixture
def checkpoints(tmp_path: Path) -> TrainingDirectory:
    directory = TrainingDirectory(tmp_path)
    directory.take_over()
    return directory


def publish(checkpoints: TrainingDirectory, step: int) -> None:
    begun = checkpoints.begin()
    checkpoints.finish(begun, step)
    checkpoints.publish(begun.folder, step)


def test_the_newest_is_the_one_of_the_latest_step_however_many_digits_that_has(
    checkpoints: TrainingDirectory,
) -> None:
    for step in (5, 10**12 - 1, 10**12, 10**12 + 1, 2**63 - 1):
        publish(checkpoints, step)
        newest = checkpoints.newest()
        assert newest is not None
        assert newest.step == step
        newest.check()
    assert len(list(checkpoints.folder.glob("step-*"))) == checkpoints.keep


def test_a_checkpoint_counts_although_an_older_one_cant_be_removed(
    checkpoints: TrainingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cant(folder: Path, ignore_errors: bool = False, **_: Any) -> None:
        if not ignore_errors:
            raise PermissionError(1, "not permitted", str(folder))

    for step in (1, 2):
        publish(checkpoints, step)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cant)
        publish(checkpoints, 3)
    assert len(list(checkpoints.folder.glob("step-*"))) == 3
    publish(checkpoints, 4)
    assert [path.name[-1] for path in sorted(checkpoints.folder.glob("step-*"))] == ["3", "4"]


def test_a_checkpoint_that_is_read_is_removed_by_a_later_one(
    checkpoints: TrainingDirectory,
) -> None:
    publish(checkpoints, 1)
    with checkpoints.reading_newest() as read:
        assert read is not None
        for step in (2, 3):
            publish(checkpoints, step)
        read.check()
    publish(checkpoints, 4)
    assert [path.name[-1] for path in sorted(checkpoints.folder.glob("step-*"))] == ["3", "4"]


def test_a_checkpoint_that_is_removed_before_it_is_read_is_not_the_newest(
    checkpoints: TrainingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpoints.reading_newest() as read:
        assert read is None
    publish(checkpoints, 1)
    newest = checkpoints.newest

    def goes_at_once() -> TrainingCheckpoint | None:
        found = newest()
        monkeypatch.undo()
        for step in (2, 3):
            publish(checkpoints, step)
        return found

    monkeypatch.setattr(checkpoints, "newest", goes_at_once)
    with checkpoints.reading_newest() as read:
        assert read is not None
        assert read.step == 3


def test_files_are_checked_by_their_sha_256_on_every_python(
    checkpoints: TrainingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(hashlib, "file_digest", raising=False)  # Python 3.10 has none
    begun = checkpoints.begin()
    content = os.urandom((1 << 18) + 7)
    (begun.path / "dense").write_bytes(content)
    checkpoints.finish(begun, 1)
    checkpoints.publish(begun.folder, 1)
    newest = checkpoints.newest()
    assert newest is not None
    newest.check()
    assert hashlib.sha256(content).hexdigest() in (newest.folder / "checkpoint.json").read_text()
    (newest.path / "dense").write_bytes(content[:-1] + b"?")
    with pytest.raises(CheckpointError, match="dense: isn't as it was written"):
        newest.check()


@pytest.mark.timeout(20)  # a wrong engine would look for it again and again
def test_a_link_to_a_checkpoint_that_leads_nowhere_is_refused(
    checkpoints: TrainingDirectory,
) -> None:
    (checkpoints.folder / "step-000000000001").symlink_to("elsewhere")
    with checkpoints.reading_newest() as read:
        assert read is not None
        with pytest.raises(CheckpointError, match=r"checkpoint\.json: is missing; remove "):
            read.check()


def test_a_file_in_the_place_of_a_checkpoint_is_refused(checkpoints: TrainingDirectory) -> None:
    (checkpoints.folder / "step-000000000001").write_text("")
    with (
        pytest.raises(CheckpointError, match="step-000000000001: is a file"),
        checkpoints.reading_newest(),
    ):
        raise AssertionError("it is read")


@pytest.mark.timeout(20)  # an open that waits for a writer would wait for ever
def test_a_fifo_in_the_place_of_the_manifest_is_refused_at_once(
    checkpoints: TrainingDirectory,
) -> None:
    publish(checkpoints, 1)
    newest = checkpoints.newest()
    assert newest is not None
    (newest.folder / "checkpoint.json").unlink()
    os.mkfifo(newest.folder / "checkpoint.json")
    with pytest.raises(CheckpointError, match=r"checkpoint\.json: is not a file"):
        newest.check()


@pytest.mark.parametrize("left", [0, 0.5])
def test_a_torn_copy_says_which_folder_to_remove(
    checkpoints: TrainingDirectory, left: float
) -> None:
    publish(checkpoints, 1)
    newest = checkpoints.newest()
    assert newest is not None
    manifest = newest.folder / "checkpoint.json"
    os.truncate(manifest, int(manifest.stat().st_size * left))
    why = re.escape(f"{manifest}: is truncated or damaged; remove {newest.folder} to go back")
    with pytest.raises(CheckpointError, match=why):
        newest.check()


def test_a_file_that_cant_be_read_is_named(checkpoints: TrainingDirectory) -> None:
    publish(checkpoints, 1)
    newest = checkpoints.newest()
    assert newest is not None
    unreadable = newest.path / "dense"
    unreadable.symlink_to("/proc/self/mem")  # can be opened, and gives no byte
    with pytest.raises(StorageError, match=f"{re.escape(str(unreadable))}: can't be read: "):
        newest.check()


def test_a_folder_that_cant_be_read_is_named(checkpoints: TrainingDirectory) -> None:
    folder = checkpoints.folder / "loop"
    folder.symlink_to(folder)
    with pytest.raises(StorageError, match=f"{re.escape(str(folder))}: can't be read: "):
        TrainingDirectory(folder).newest()


def test_a_checkpoint_whose_name_isnt_durable_doesnt_count(
    checkpoints: TrainingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(checkpoints, 1)
    sync = os.fsync

    def refuses_folders(descriptor: int) -> None:
        if (checkpoints.folder / "step-000000000002").exists():
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuses_folders)
    with pytest.raises(StorageError, match="Input/output error"):
        publish(checkpoints, 2)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 1


@pytest.mark.parametrize(
    ("folder", "why"), [("none/there", "none doesn't exist"), ("file", "file is a file")]
)
def test_a_folder_that_cant_be_made_says_why(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"checkpoints: .*{why}"):
        TrainingDirectory(tmp_path / folder).take_over()


def test_the_name_of_a_new_folder_is_durable_once_it_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    TrainingDirectory(tmp_path / "checkpoints").take_over()
    assert tmp_path in synced
