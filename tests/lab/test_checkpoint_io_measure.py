"""The arms of the checkpoint benchmark: what each measures and checks, and the result's tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import every_format, make_format, need_libpmem, uniform_checkpoint

from benchmarks.checkpoint_io import command, formats
from benchmarks.checkpoint_io.background import BackgroundSaver
from benchmarks.checkpoint_io.checkpoint import Checkpoint, touch
from benchmarks.checkpoint_io.errors import DifferentBytesError
from benchmarks.checkpoint_io.formats.torch_file import TorchFile
from benchmarks.checkpoint_io.measure import ArmResult, LoadTiming, measure_arms
from benchmarks.checkpoint_io.medium import MediumKind, parse_medium
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.report import Report, tables
from benchmarks.checkpoint_io.yardstick import Yardstick


def measured(
    folder: Path,
    names: Sequence[str],
    kind: MediumKind = "file",
    repeats: int = 1,
    background: bool = False,
) -> list[ArmResult]:
    """Returns the results of arms that save a uniform checkpoint in each format."""
    medium = parse_medium(f"disk={folder}:{kind}")
    return measure_arms(
        "model",
        uniform_checkpoint(1),
        [(medium, name) for name in names],
        repeats=repeats,
        eviction="posix_fadvise",
        background=background,
    )


@pytest.mark.long
def test_every_arm_saves_and_loads_the_same_bytes_and_leaves_nothing(tmp_path: Path) -> None:
    make_format("safetensors", tmp_path)
    arms = measured(tmp_path, ["torch", "torch-mmap", "safetensors", "embstore"], repeats=2)
    assert {arm.tensor_bytes for arm in arms} == {8 * 4096 * 4}
    for arm in arms:
        assert arm.file_bytes >= arm.tensor_bytes
        assert len(arm.saves) == len(arm.evicted_loads) == len(arm.cached_loads) == 2
        assert arm.save_bytes_per_s > 0
        assert arm.warm_bytes_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_the_phases_of_a_save_add_up_to_no_more_than_the_save(tmp_path: Path) -> None:
    need_libpmem()
    (saved,) = measured(tmp_path, ["torch"])[0].saves
    assert set(saved.phases) == {"serialise", "write", "sync"}
    (mapped,) = measured(tmp_path, ["mapped"], kind="mapped")[0].saves
    assert set(mapped.phases) == {"serialise", "copy", "sync"}
    for save in (saved, mapped):
        assert sum(save.phases.values()) <= save.seconds
        assert save.stall_seconds == save.seconds


class Dropping(TorchFile):
    """A format that returns an empty checkpoint from every load."""

    def load(self, clock: PhaseClock) -> Checkpoint:
        super().load(clock)
        return Checkpoint({})


class Approximate(TorchFile):
    def load(self, clock: PhaseClock) -> Checkpoint:
        loaded = super().load(clock)
        return Checkpoint(
            {name: tensor.half().float() + 1e-7 for name, tensor in loaded.tensors.items()},
            loaded.scalars,
        )


class WithoutScalars(TorchFile):
    def load(self, clock: PhaseClock) -> Checkpoint:
        loaded = super().load(clock)
        return Checkpoint(loaded.tensors, {})


@pytest.mark.parametrize("broken", [Dropping, Approximate, WithoutScalars])
def test_an_arm_that_does_not_return_the_saved_bits_fails(
    broken: type[TorchFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(formats.FORMATS, "torch", broken)
    with pytest.raises(DifferentBytesError, match="model, torch on disk"):
        measured(tmp_path, ["torch"])
    assert list(tmp_path.iterdir()) == []


def test_touching_reads_every_byte() -> None:
    tensors = {"a": torch.arange(37, dtype=torch.uint8), "b": torch.tensor(3.5)}
    before = touch(Checkpoint(tensors))
    for position in range(37):
        changed = tensors["a"].clone()
        changed[position] ^= 4
        assert touch(Checkpoint({**tensors, "a": changed})) != before


def test_a_load_is_cold_only_if_no_page_was_in_the_cache() -> None:
    cold = LoadTiming(2.0, {"read": 2.0}, resident_before=0.0)
    arm = ArmResult("model", "disk", "torch", tensor_bytes=100)
    arm.cached_loads = [LoadTiming(0.5, {"read": 0.5}, resident_before=1.0)]
    arm.evicted_loads = [cold, cold, cold]
    assert arm.cold_bytes_per_s == 50
    assert arm.warm_bytes_per_s == 200
    arm.evicted_loads = [cold, replace(cold, resident_before=0.001), cold]
    assert arm.cold_bytes_per_s is None


@pytest.mark.long
@every_format
def test_on_a_disk_every_format_has_cold_loads(name: str, tmp_path: Path) -> None:
    if parse_medium(f"disk={tmp_path}").facts.device is None:
        pytest.skip("the temporary folder isn't on a disk")
    make_format(name, tmp_path)
    kind: MediumKind = "mapped" if name == "mapped" else "file"
    (arm,) = measured(tmp_path, [name], kind=kind, repeats=3)
    assert arm.cold_bytes_per_s is not None
    # The kernel may evict a page at any time, so a cached load isn't always fully resident.
    assert all(load.resident_before > 0.5 for load in arm.cached_loads)


def test_files_in_memory_have_no_cold_loads() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("there is no /dev/shm here")
    (arm,) = measured(memory, ["torch"])
    assert arm.cold_bytes_per_s is None


def test_a_save_in_the_background_stalls_training_for_a_copy_only() -> None:
    may_end = threading.Event()
    saved: list[float] = []

    def slow_save(checkpoint: Checkpoint) -> None:
        assert may_end.wait(timeout=60)
        saved.append(float(checkpoint.tensors["weights"][0]))

    weights = torch.ones(3)
    saver = BackgroundSaver(slow_save)
    saver.save(Checkpoint({"weights": weights}))  # returns before the save ends
    assert saved == []
    weights.fill_(2)  # training goes on
    may_end.set()
    saver.save(Checkpoint({"weights": weights}))  # waits for the first save's end
    assert saved[0] == 1.0
    weights.fill_(3)
    saver.wait()
    assert saved == [1.0, 2.0]


def test_an_error_in_the_background_is_not_lost() -> None:
    def failing_save(_checkpoint: Checkpoint) -> None:
        raise OSError("disk full")

    saver = BackgroundSaver(failing_save)
    saver.save(Checkpoint({}))
    with pytest.raises(OSError, match="disk full"):
        saver.wait()
    saver.wait()  # the error is raised once


def test_stalls_are_shorter_than_saves_in_the_background(tmp_path: Path) -> None:
    arms = measured(tmp_path, ["torch", "embstore"], background=True)
    torch_save, table_save = (arm.saves[0] for arm in arms)
    assert torch_save.stall_seconds < torch_save.seconds
    assert table_save.stall_seconds == table_save.seconds  # a table's updates wait for a save


# --- The command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    common = ["--models", "tiny", "--repeats", "1", "--formats", "torch", "--json"]
    status = command.main([*common, *arguments])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


def test_the_result_names_model_medium_format_and_method(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = run(capsys, f"--medium=disk={tmp_path}", "--steps=1")
    assert found["kind"] == "measured"
    assert found["caches_dropped_by"] == "posix_fadvise"
    assert found["models"][0]["parameters"] == 20_722
    assert found["media"][0]["kernel"]["filesystem"]
    assert found["yardsticks"][0]["medium"] == "disk"
    (arm,) = found["arms"]
    assert (arm["model"], arm["medium"], arm["format"]) == ("tiny", "disk", "torch")
    assert arm["tensor_bytes"] == found["models"][0]["tensor_bytes"]
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_has_the_losses_of_one_that_was_not_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    medium = f"--medium=disk={tmp_path}"
    straight = run(capsys, medium, "--steps=4")["models"][0]["losses"]
    run(capsys, medium, "--steps=2", "--keep")
    resumed = run(capsys, medium, "--steps=2", "--resume", "--seed=2021")["models"][0]["losses"]
    assert resumed == straight
    assert len(set(straight)) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--medium=disk=/no/folder"], "disk: /no/folder is no folder"),
        (["--medium=disk={}", "--models", "resnet"], "--models: 'resnet' is unknown"),
        (["--medium=disk={}", "--formats", "zip"], "--formats: 'zip' is unknown"),
        (["--medium=disk={}:mapped", "--formats", "torch"], "none of torch is for medium disk"),
        (["--medium=disk={}", "--medium=disk=/tmp"], "two of them are named disk"),
        (["--medium=disk={}", "--models", "tiny", "--resume"], "no checkpoint has been saved"),
        (["--medium=disk={}", "--formats", "embstore", "--keep"], "embstore saves a table"),
        (
            ["--medium=disk={}", "--models", "tiny", f"--batch-size={1 << 47}"],
            f"--batch-size {1 << 47}: a step doesn't fit this computer's memory; give fewer",
        ),
        (["--medium=disk={}", "--cifar", "/no/file"], "/no/file: not one of CIFAR-10's"),
        ([], "--medium, --device: where to"),
        (["--device=sata-s4511"], "did you mean sata-s4510?"),
        (["--device=optane-200-x6"], "no sequential ntstore by size and threads was published"),
        (["--device=a100-80"], "--device a100-80: is a GPU, whose memory forgets all"),
        (["--device=sata-s4510", "--formats", "mapped"], "none of mapped is for medium sata-s4510"),
        (["--device=sata-s4510", "--device=sata-s4510"], "two of them are named sata-s4510"),
        (["--device=sata-s4510", "--paced-in=/no/folder"], "--paced-in: /no/folder is no folder"),
        (["--device=sata-s4510", "--json=/no/folder/x.json"], "there is no folder /no/folder"),
        (["--device=sata-s4510", "--json=/tmp"], "--json /tmp: is a folder; give a file"),
        (["--seed=-5"], "--seed: -5 is not between 0 and 4294967295"),
        (["--seed", "9" * 20], f"--seed: {'9' * 20} is not between 0 and 4294967295"),
    ],
)
def test_bad_input_is_named_and_nothing_is_left(
    arguments: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert command.main([argument.format(tmp_path) for argument in arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- Tables


@pytest.fixture
def report(tmp_path: Path) -> Report:
    medium = parse_medium(f"disk={tmp_path}")
    arms = measured(tmp_path, ["torch", "torch-mmap"])
    yardstick = Yardstick("disk", "fio, direct I/O", 100, 3e9, 4e9)
    return Report("measured", [medium], [yardstick], arms)


def test_checksums_have_a_phase_of_their_own_in_a_load(tmp_path: Path) -> None:
    need_libpmem()
    (arm,) = measured(tmp_path, ["mapped"], kind="mapped")
    assert arm.phase_seconds("verify") is not None
    assert arm.phase_seconds("write") is None


def test_tables_have_a_line_per_arm_and_the_kernel_s_facts_of_the_medium(report: Report) -> None:
    text = tables(report, width=160)
    assert sum(line.startswith("model") for line in text.splitlines()) == 3  # heading and two arms
    assert report.media[0].facts.summary in text
    assert "3.00" in text
    assert "rates are measured" in text


def test_names_are_not_cut_in_a_terminal_of_a_hundred_columns(report: Report) -> None:
    for arm in report.arms:
        arm.model, arm.medium, arm.format = "simpledla", "disk-mapped", "safetensors"
    lines = tables(report, width=100).splitlines()
    assert max(map(len, lines[:4])) <= 100
    assert sum("simpledla disk-mapped safetensors" in " ".join(line.split()) for line in lines) == 2
    assert "serialise" in "".join(lines)


def test_functional_only_rates_are_shown_without_digits(report: Report) -> None:
    emulated = replace(report, kind="functional-only")
    lines = tables(emulated, width=160).splitlines()
    (line,) = [line for line in lines if " torch-mmap " in line]
    model, medium, name, megabytes, *cells = line.split()
    assert (model, medium, name, megabytes) == ("model", "disk", "torch-mmap", "0.1")
    assert set(cells) <= {"works", "-"}
    assert "works" in cells
    assert not any("3.00" in line for line in lines)
