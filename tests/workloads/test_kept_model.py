"""Checkpoints of Wide & Deep in durable pools, from which a killed run resumes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refusal_of

import embstore as es
from pmemlab.scenarios.document import Expectations, RowPlacement, Scenario, Workload
from pmemlab.scenarios.power_cuts import PowerCut
from pmemlab.scenarios.verdict import ExpectationError, judge
from pmemlab.topology import load_topology
from pmemlab.workloads import model_keeping, wdl
from pmemlab.workloads.keeping import ResumePoint, parse_resumed, parse_saved_step
from pmemlab.workloads.model_keeping import ModelCheckpoints
from pmemlab.workloads.wide_and_deep.numpy_network import NumpyNetwork

STEPS, EVERY = 24, 5
SMALL = [
    *("--steps", str(STEPS), "--batch-size", "64", "--embedding-dim", "8", "--hidden-units", "16"),
    *("--keys-per-column", "20000", "--held-out-rows", "200", "--keep-every", str(EVERY), "--json"),
    *("--dense", "numpy"),
]
SCENARIO = Scenario(
    path=Path("kept.yaml"),
    name="kept",
    summary="",
    topology=load_topology("fsdax"),
    storage_types=("DRAM_PMEM",),
    expect=Expectations(None, tiers=(RowPlacement(nodes=(0,)), RowPlacement(nodes=(0,)))),
    workload=Workload("wdl"),
)
ABOVE_SSD = replace(
    SCENARIO,
    storage_types=("DRAM_PMEM_SSDHASH",),
    expect=Expectations(None, tiers=(RowPlacement(nodes=(0,)),) * 3),
)


class Killed(BaseException):
    """Ends a run in the middle of a step, except that its tables are still closed."""


@dataclass(frozen=True)
class Part:
    """The output of one run of the command."""

    document: Mapping[str, Any] | None
    resumed: ResumePoint | None
    kept_step: int

    @classmethod
    def from_output(cls, stdout: str, stderr: str) -> Part:
        lines = stderr.splitlines()
        resumed = [found for found in map(parse_resumed, lines) if found]
        kept = [step for step in map(parse_saved_step, lines) if step]
        document = json.loads(stdout) if stdout else None
        return cls(document, resumed[0] if resumed else None, max(kept, default=0))


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Yields the path of a folder to be made in memory, where files are mapped as on PMem."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "kept"


@pytest.fixture
def kept_in() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def killed_run_folder() -> Iterator[Path]:
    """The folder of a killed run, with the checkpoint of step 5, for tests that don't change it."""
    with folder_in_memory() as folder:
        run_until_killed(folder, before_saving=8)
        yield folder


def arguments(kept_in: Path, *more: str, ssd: Path | None = None) -> list[str]:
    """Returns the command's arguments. ssd: folder of a tier below the pools, which then have room
    for about 60 rows of each table.
    """
    if ssd is None:
        storage = ["--storage-type", "DRAM_PMEM", "--storage-size", "2048", "2000000"]
    else:
        storage = ["--storage-type", "DRAM_PMEM_SSDHASH", "--storage-size", "2048", "1154496"]
        storage += ["--storage-path", "-", "-", str(ssd)]
    return [*SMALL, *storage, "--kept-in", str(kept_in), *more]


@pytest.fixture
def part(kept_in: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Part]:
    """Returns a function that runs the command in this process, to its end or until it is killed
    before the checkpoint of a step.
    """

    def run(killed_at: int | None = None) -> Part:
        if killed_at is not None:
            run_until_killed(kept_in, before_saving=killed_at)
            return Part.from_output("", capsys.readouterr().err)
        status = wdl.main(arguments(kept_in, "--reference", "DRAM"))
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return Part.from_output(captured.out, captured.err)

    return run


def run_until_killed(kept_in: Path, *, before_saving: int) -> None:
    save_if_due = ModelCheckpoints.save_if_due

    def save_unless_killed(self: ModelCheckpoints, *given: Any) -> bool:
        if given[-1] == before_saving:
            raise Killed
        return save_if_due(self, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ModelCheckpoints, "save_if_due", save_unless_killed)
        with pytest.raises(Killed):
            wdl.main(arguments(kept_in))


def complaint_of(*parts: Part, scenario: Scenario = SCENARIO) -> str | None:
    """Returns the scenario's complaint about a run whose power was cut after each part but the
    last; None if it has none.
    """
    *cut, last = parts
    assert last.document is not None
    cuts = [PowerCut(1.0, part.resumed, part.kept_step) for part in cut]
    try:
        judge(scenario, scenario.storage_types[0], last.document, cuts)
    except ExpectationError as error:
        return str(error)
    return None


@pytest.mark.long
def test_a_run_killed_at_random_ends_like_an_uninterrupted_one(kept_in: Path) -> None:
    drawn = random.Random(2)
    parts = [killed(kept_in, drawn.randint(EVERY + 1, EVERY + 4)) for _ in range(2)]
    done = subprocess.run(command(kept_in, "--reference", "DRAM"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert complaint_of(*parts, Part.from_output(done.stdout, done.stderr)) is None
    assert parts[1].resumed is not None


@pytest.mark.long
def test_a_run_with_rows_on_an_ssd_resumes_from_its_checkpoints(
    kept_in: Path, tmp_path: Path
) -> None:
    cut = killed(kept_in, EVERY + 3, ssd=tmp_path)
    done = subprocess.run(
        command(kept_in, "--reference", "DRAM", ssd=tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    last_part = Part.from_output(done.stdout, done.stderr)
    assert last_part.resumed is not None
    assert last_part.document is not None
    ssd_rows = [table["tiers"][2]["rows"] for table in last_part.document["run"]["tables"]]
    assert sum(ssd_rows) > 1000
    assert complaint_of(cut, last_part, scenario=ABOVE_SSD) is None


def command(kept_in: Path, *more: str, ssd: Path | None = None) -> list[str]:
    return [sys.executable, "-m", "pmemlab.workloads.wdl", *arguments(kept_in, *more, ssd=ssd)]


def killed(kept_in: Path, after_lines: int, ssd: Path | None = None) -> Part:
    """Runs the command, and kills it by SIGKILL after `after_lines` lines of trained steps."""
    with subprocess.Popen(
        command(kept_in, ssd=ssd), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if sum(written.startswith("trained: ") for written in lines) == after_lines:
                process.kill()
        assert process.wait() == -9, "".join(lines)
    return Part.from_output("", "".join(lines))


def test_rows_dense_part_and_step_are_those_of_the_checkpoint(part: Callable[..., Part]) -> None:
    parts = part(killed_at=8), part(killed_at=17), part()
    assert [p.kept_step for p in parts] == [5, 15, 20]
    assert [p.resumed and p.resumed.step for p in parts] == [None, 5, 15]
    assert complaint_of(*parts) is None
    assert parts[-1].document is not None
    trained, reference = parts[-1].document["run"], parts[-1].document["reference"]
    assert sorted(map(int, reference["checksums"])) == [5, 10, 15, 20, 24]
    assert sorted(map(int, trained["checksums"])) == [15, 24]
    assert trained["losses"] == reference["losses"][15:]
    assert all(table["tiers"][1]["name"] == "PMEM_POOL" for table in trained["tables"])


def test_a_run_killed_before_its_first_checkpoint_starts_over(part: Callable[..., Part]) -> None:
    parts = part(killed_at=3), part(killed_at=9), part()
    assert [p.resumed and p.resumed.step for p in parts] == [None, None, 5]
    assert complaint_of(*parts) is None


DIES = """
import os, signal, sys
import embstore as es
from embstore.checkpoint.persist.checkpoints import CheckpointDirectory
from pmemlab.workloads import wdl

moment, checkpoint, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
persist, publish, calls = es.persist, CheckpointDirectory.publish, []

def die_at(now):
    if now == moment and len(calls) == checkpoint:
        os.kill(os.getpid(), signal.SIGKILL)

def watched_persist(*given, **options):
    calls.append(given)
    die_at("before the rows")
    number = persist(*given, **options)
    die_at("before the last one goes")
    return number

def watched_publish(*given):
    die_at("before it is listed")
    publish(*given)

es.persist, CheckpointDirectory.publish = watched_persist, watched_publish
sys.exit(wdl.main(arguments))
"""


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", [1, 2])
@pytest.mark.parametrize(
    ("moment", "is_made"),
    [
        ("before the rows", False),
        ("before it is listed", False),  # although the pools have it
        ("before the last one goes", True),
    ],
)
def test_a_run_killed_during_a_checkpoint_keeps_a_whole_one(
    part: Callable[..., Part], kept_in: Path, moment: str, checkpoint: int, is_made: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES, moment, str(checkpoint), *arguments(kept_in)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -9, done.stderr
    first, last = Part.from_output("", done.stderr), part()
    assert first.kept_step == EVERY * (checkpoint - 1)
    made = checkpoint if is_made else checkpoint - 1
    assert (last.resumed.step if last.resumed else 0) == EVERY * made
    nothing_kept = "every run began anew: no power cut came after something was kept"
    assert complaint_of(first, last) == (None if made else nothing_kept)


def test_only_the_newest_checkpoints_dense_part_is_kept(
    part: Callable[..., Part], kept_in: Path
) -> None:
    part(killed_at=17)
    names = sorted(path.name for path in kept_in.iterdir())
    assert names == ["checkpoints", "dense-00000015.npz", "pools"]


# --- Broken engines and workloads that the scenario must detect


def broken_after_restoring(
    part: Callable[..., Part],
    monkeypatch: pytest.MonkeyPatch,
    target: object,
    name: str,
    replacement: Any,
) -> str:
    """Returns the scenario's complaint about a run whose last part has `name` of `target`
    replaced.
    """
    first = part(killed_at=8)
    monkeypatch.setattr(target, name, replacement)
    return str(complaint_of(first, part()))


WRONG_AT_5 = "after power cut 1 the checkpoint of step 5 was read back with checksum"


@pytest.mark.long
def test_a_dense_part_that_is_not_restored_is_found(
    part: Callable[..., Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    complaint = broken_after_restoring(
        part, monkeypatch, NumpyNetwork, "load_state", lambda *_: None
    )
    assert WRONG_AT_5 in complaint
    assert "step 6: the loss is" in complaint


@pytest.mark.long
def test_a_dense_optimizer_that_starts_over_is_found(
    part: Callable[..., Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = NumpyNetwork.load_state

    def without_sums(self: NumpyNetwork, state: Mapping[str, Any]) -> None:
        sums = {name: a for name, a in self.state().items() if name.startswith("sum")}
        load(self, {**state, **{name: array.copy() for name, array in sums.items()}})

    assert WRONG_AT_5 in broken_after_restoring(
        part, monkeypatch, NumpyNetwork, "load_state", without_sums
    )


@pytest.mark.long
def test_a_dense_part_of_another_step_is_found(
    part: Callable[..., Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = model_keeping.write_durably
    kept: dict[str, Any] = {}

    def write_the_first(path: Path, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            kept.setdefault(name, array.copy())
        write(path, kept)

    monkeypatch.setattr(model_keeping, "write_durably", write_the_first)
    complaint = str(complaint_of(part(killed_at=12), part()))
    assert WRONG_AT_5.replace("step 5", "step 10") in complaint


@pytest.mark.long
@pytest.mark.parametrize("damage", ["a weight", "a frequency", "a row more"])
def test_a_changed_row_is_found(
    part: Callable[..., Part], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    restore = es.restore_persisted

    def then_alter(variables: Sequence[es.EmbeddingVariable], path: Path) -> int:
        step: int = restore(variables, path)
        table = variables[40]
        keys = table.export()["keys"][:1]
        if damage == "a row more":
            keys = np.array([-7], np.int64)
        size = 1e-30 if damage == "a frequency" else 1e-3
        table.apply_gradients(keys, np.full((1, table.dim), size, np.float32))
        return step

    complaint = broken_after_restoring(part, monkeypatch, es, "restore_persisted", then_alter)
    assert WRONG_AT_5 in complaint


@pytest.mark.long
def test_a_run_that_skips_a_batch_after_restoring_is_found(
    part: Callable[..., Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = ModelCheckpoints.restore
    complaint = broken_after_restoring(
        part, monkeypatch, ModelCheckpoints, "restore", lambda *given: restore(*given) + 1
    )
    assert "went on from step 6, of which the reference has no checksum" in complaint


@pytest.mark.long
def test_a_run_that_starts_over_despite_a_checkpoint_is_found(
    part: Callable[..., Part], kept_in: Path
) -> None:
    first = part(killed_at=8)
    shutil.rmtree(kept_in)
    assert "went on from step 0, though it had kept step 5" in str(complaint_of(first, part()))


# --- Checkpoints that a run can't resume from


complaint = partial(refusal_of, wdl.main)


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "another step's"])
def test_a_checkpoint_without_its_dense_part_is_refused(
    killed_run_folder: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    dense = killed_run_folder / "dense-00000005.npz"
    content = dense.read_bytes()
    another = killed_run_folder / "dense-00000010.npz"
    if damage == "missing":
        dense.unlink()
    elif damage == "another step's":
        dense.rename(another)
    else:
        dense.write_bytes(content[: len(content) // 2] if damage == "torn" else b"")
    shown = complaint(capsys, *arguments(killed_run_folder))
    another.unlink(missing_ok=True)
    dense.write_bytes(content)
    assert f"wdl: {dense}: can't be read back" in shown


def test_a_checkpoint_of_another_model_is_refused(
    killed_run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = killed_run_folder
    shown = complaint(capsys, *arguments(kept, "--hidden-units", "24"))
    assert "dense-00000005.npz: can't be read back: parameter_" in shown
    shown = complaint(capsys, *arguments(kept, "--hidden-units", "16", "16"))
    assert "is in the model alone" in shown
    assert "dim" in complaint(capsys, *arguments(kept, "--embedding-dim", "4"))


def test_a_checkpoint_beyond_the_last_step_is_refused(
    killed_run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = killed_run_folder
    shown = complaint(capsys, *arguments(kept, "--steps", "5"))
    assert f"wdl: {kept}: holds a checkpoint of step 5, and only 5 are asked for" in shown


@pytest.mark.parametrize(
    ("storage_type", "reason"),
    [
        ("DRAM", "--kept-in: durability: DRAM has no tier of PMem below DRAM"),
        ("DRAM_SSDHASH", "--kept-in: durability: DRAM_SSDHASH has no tier of PMem below DRAM"),
        ("HBM_DRAM_PMEM", "--kept-in: HBM_DRAM_PMEM has a tier of HBM; give DRAM_PMEM or"),
        ("HBM_DRAM_PMEM_SSDHASH", "a tier of HBM; give DRAM_PMEM or DRAM_PMEM_SSDHASH"),
    ],
)
def test_storage_types_without_durable_pools_are_refused(
    capsys: pytest.CaptureFixture[str], kept_in: Path, storage_type: str, reason: str
) -> None:
    storage = ["--storage-type", storage_type, "--storage-path", "/tmp"]
    given = storage if storage_type != "DRAM" else storage[:2]
    assert reason in complaint(capsys, *SMALL, *given, "--kept-in", str(kept_in))
    assert not kept_in.exists()


def test_a_folder_that_can_not_be_made_is_named(
    capsys: pytest.CaptureFixture[str], kept_in: Path
) -> None:
    shown = complaint(capsys, *arguments(kept_in / "in" / "none"))
    assert shown == f"wdl: {kept_in / 'in' / 'none'}: can't be made: No such file or directory\n"
