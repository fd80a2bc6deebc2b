"""Rules for every checkpoint format: return the same bits, and never lose the last save."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoints import every_format, flip_bit, make_format, step_of, uniform_checkpoint
from checkpoints import varied_checkpoint as varied

from benchmarks.checkpoint_io.checkpoint import Checkpoint, check_same_bits
from benchmarks.checkpoint_io.errors import (
    CheckpointInUseError,
    DamagedCheckpointError,
    DifferentBytesError,
    NoCheckpointError,
)
from benchmarks.checkpoint_io.formats import Format, safetensors_file
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.publishing import replacing, unfinished_file
from embstore.errors import EmbStoreError
from pmemlab.errors import MissingRequirementError


def saved(chosen: Format, checkpoint: Checkpoint) -> Checkpoint:
    content = chosen.content_of(checkpoint)
    chosen.save(content, PhaseClock())
    return content


@every_format
def test_a_loaded_checkpoint_has_the_bits_that_were_saved(name: str, tmp_path: Path) -> None:
    chosen = make_format(name, tmp_path)
    content = saved(chosen, varied())
    check_same_bits(chosen.load(PhaseClock()), content)
    chosen.close()


@every_format
def test_a_newer_save_replaces_an_older_one(name: str, tmp_path: Path) -> None:
    chosen = make_format(name, tmp_path)
    for step in range(1, 5):
        content = saved(chosen, uniform_checkpoint(step))
        assert step_of(chosen.load(PhaseClock())) == step
        check_same_bits(chosen.load(PhaseClock()), content)
    chosen.close()


@every_format
def test_the_engine_saves_as_many_bytes_as_the_others(name: str, tmp_path: Path) -> None:
    chosen = make_format(name, tmp_path)
    checkpoint = uniform_checkpoint(3)
    content = chosen.content_of(checkpoint)
    payload = sum(t.nbytes for part, t in content.tensors.items() if part != "keys")
    assert payload == checkpoint.tensor_bytes
    chosen.close()


@every_format
def test_without_a_save_there_is_no_checkpoint(name: str, tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match=str(tmp_path)):
        make_format(name, tmp_path).load(PhaseClock())


@every_format
def test_a_truncated_file_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    chosen = make_format(name, tmp_path)
    saved(chosen, varied())
    chosen.close()
    file = max(chosen.parts(), key=lambda part: part.length).path
    content_bytes = file.read_bytes()
    for part in (0.0, 0.01, 0.5, 0.9):
        file.write_bytes(content_bytes[: int(len(content_bytes) * part)])
        with pytest.raises(DamagedCheckpointError, match=str(file)):
            chosen.load(PhaseClock())
    file.write_bytes(content_bytes[:-1])
    with pytest.raises(DamagedCheckpointError, match=str(file)):
        chosen.load(PhaseClock())


@every_format
def test_flipped_bits_are_noticed_if_the_format_promises_it(name: str, tmp_path: Path) -> None:
    """If a format promises to notice flipped bits, each flip raises an error or changes nothing. If
    it doesn't promise that, some flip goes unnoticed and changes a tensor."""
    chosen = make_format(name, tmp_path)
    content = saved(chosen, uniform_checkpoint(3, tensors=2, floats=1024))
    chosen.close()
    moments = random.Random(11)
    files = [part.path for part in chosen.parts() if part.length]
    unseen, errors = 0, []
    for _ in range(150):
        file = moments.choice(files)
        content_bytes = file.read_bytes()
        flip_bit(file, moments.randrange(len(content_bytes)), moments.randrange(8))
        try:
            check_same_bits(chosen.load(PhaseClock()), content)
        except DamagedCheckpointError as error:
            errors.append(str(error))
        except DifferentBytesError:
            unseen += 1
        file.write_bytes(content_bytes)
    assert (unseen == 0) == chosen.notices_flipped_bits
    assert all(str(tmp_path) in error for error in errors)
    if chosen.notices_flipped_bits:
        assert errors


@pytest.mark.parametrize("name", ["torch-mmap", "safetensors", "mapped"])
def test_a_loaded_checkpoint_survives_later_saves(name: str, tmp_path: Path) -> None:
    chosen = make_format(name, tmp_path)
    saved(chosen, uniform_checkpoint(1))
    loaded = chosen.load(PhaseClock())
    saved(chosen, uniform_checkpoint(2))
    assert step_of(loaded) == 1
    if name == "mapped":  # the third save would need the first save's slot
        with pytest.raises(CheckpointInUseError, match="slot 0 are still in use"):
            saved(chosen, uniform_checkpoint(3))
        assert step_of(loaded) == 1
        assert step_of(chosen.load(PhaseClock())) == 2
        del loaded
    saved(chosen, uniform_checkpoint(3))
    assert step_of(chosen.load(PhaseClock())) == 3


@every_format
def test_writing_to_a_loaded_tensor_does_not_change_the_file(name: str, tmp_path: Path) -> None:
    chosen = make_format(name, tmp_path)
    content = saved(chosen, uniform_checkpoint(1))
    for tensor in chosen.load(PhaseClock()).tensors.values():
        tensor.fill_(9)
    check_same_bits(chosen.load(PhaseClock()), content)
    chosen.close()


def test_a_file_and_its_folder_are_synced_in_the_order_that_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fsync(descriptor: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def rename(self: Path, target: Path) -> None:
        calls.append(f"rename to {target.name}")
        os.rename(self, target)  # noqa: PTH104  # Path.rename is patched

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    with replacing(tmp_path / "kept", PhaseClock()) as file:
        file.write(b"content")
    assert calls == ["sync kept.unfinished", "rename to kept", f"sync {tmp_path.name}"]


def test_a_save_that_fails_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")

    def failing_save() -> None:
        with replacing(path, PhaseClock()) as file:
            file.write(b"new")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        failing_save()
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert path.read_bytes() == b"old"


@every_format
def test_a_full_medium_is_an_error_that_names_the_file_and_loses_nothing(
    name: str, tmp_path: Path
) -> None:
    chosen = make_format(name, tmp_path)
    content = saved(chosen, uniform_checkpoint(1, tensors=2))
    larger = chosen.content_of(uniform_checkpoint(2, tensors=60))
    with no_larger_files(100_000), pytest.raises((OSError, EmbStoreError), match=str(tmp_path)):
        chosen.save(larger, PhaseClock())
    check_same_bits(chosen.load(PhaseClock()), content)
    assert not [entry for entry in tmp_path.iterdir() if "unfinished" in entry.name]
    chosen.close()


@contextmanager
def no_larger_files(length: int) -> Iterator[None]:
    """Makes writes beyond `length` bytes of a file fail, as on a full medium."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_two_saves_of_one_checkpoint_at_once_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with (
        unfinished_file(path),
        pytest.raises(CheckpointInUseError, match="another save"),
        unfinished_file(path),
    ):
        pass


def test_seconds_of_a_nested_phase_count_once() -> None:
    clock = PhaseClock()
    with clock("serialise"):
        with clock("write"):
            sum(range(200_000))
        assert clock.seconds["write"] > 0
        within = clock.seconds["serialise"]
    assert clock.seconds["serialise"] < within + clock.seconds["write"]


def test_a_missing_library_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingRequirementError, match=r"pip install 'pmemlab\[benchmarks\]'"):
        safetensors_file.SafetensorsFile(tmp_path)


def test_bits_that_compare_equal_as_numbers_are_told_apart() -> None:
    zero, minus = torch.zeros(1), -torch.zeros(1)
    with pytest.raises(DifferentBytesError, match="x has other bits"):
        check_same_bits(Checkpoint({"x": zero}), Checkpoint({"x": minus}))
    nan = torch.tensor([float("nan")])
    check_same_bits(Checkpoint({"x": nan}), Checkpoint({"x": nan.clone()}))
    with pytest.raises(DifferentBytesError, match="other tensors"):
        check_same_bits(Checkpoint({}), Checkpoint({"x": zero}))
    with pytest.raises(DifferentBytesError, match=r"x is torch\.float32"):
        check_same_bits(Checkpoint({"x": zero}), Checkpoint({"x": zero.int()}))
