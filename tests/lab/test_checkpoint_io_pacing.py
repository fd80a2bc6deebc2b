"""Media paced like a published device: which operations wait, and how the report shows it."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from checkpoints import make_format, uniform_checkpoint

from benchmarks.checkpoint_io import command
from benchmarks.checkpoint_io.errors import MediumError
from benchmarks.checkpoint_io.formats import FILE_FORMATS, FORMATS
from benchmarks.checkpoint_io.measure import ArmResult, formats_on, measure_arms
from benchmarks.checkpoint_io.medium import Medium, paced_medium, parse_medium
from benchmarks.checkpoint_io.pacing import PacedDevice
from benchmarks.checkpoint_io.report import Report, tables
from benchmarks.checkpoint_io.yardstick import measure_yardstick
from pmemlab.errors import NotPublishedError
from pmemlab.model.devices import load_device

SATA, PMEM = "sata-s4510", "optane-100-x6"
TINY_BYTES = 175_000  # approximate size of a checkpoint of the model `tiny`
# So slow that the device dominates even on a busy computer: 128 KiB take a quarter of a second.
SLOW_MB_PER_S = 0.5


@pytest.fixture
def memory() -> Iterator[Path]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm here")
    with TemporaryDirectory(dir="/dev/shm", prefix="pmemlab-test-") as folder:
        yield Path(folder)


def slow_medium(folder: Path, *, page_cache: bool) -> Medium:
    device = PacedDevice("slow", page_cache, SLOW_MB_PER_S, SLOW_MB_PER_S, SLOW_MB_PER_S)
    here = paced_medium(load_device(SATA if page_cache else PMEM), folder)
    return replace(here, name="slow", paced_as=device)


def measured(medium: Medium, name: str, *, background: bool = False) -> ArmResult:
    """Returns the result of one arm, which saves a uniform checkpoint to the medium."""
    make_format(name, medium.path)
    (arm,) = measure_arms(
        "model",
        uniform_checkpoint(1),
        [(medium, name)],
        repeats=1,
        eviction="posix_fadvise",
        background=background,
    )
    return arm


def min_seconds(arm: ArmResult, times: int = 1) -> float:
    """Returns the shortest time in which the slow device moves the file `times` times."""
    return times * arm.file_bytes / (SLOW_MB_PER_S * 1e6)


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_only_saves_and_cold_loads_wait_for_a_disk(name: str, memory: Path) -> None:
    arm = measured(slow_medium(memory, page_cache=True), name)
    assert arm.device == "slow"
    (save,), (cold,), (warm,) = arm.saves, arm.evicted_loads, arm.cached_loads
    assert save.seconds >= min_seconds(arm)
    assert cold.seconds >= min_seconds(arm)
    assert save.paced_seconds > 0
    assert cold.paced_seconds > 0
    assert warm.paced_seconds == 0
    assert arm.cold_bytes_per_s is not None
    assert arm.cold_bytes_per_s <= SLOW_MB_PER_S * 1e6
    assert list(memory.iterdir()) == []


def test_a_disk_starts_when_the_file_is_synced(memory: Path) -> None:
    (save,) = measured(slow_medium(memory, page_cache=True), "torch").saves
    # The disk starts only after the whole file is in the page cache.
    assert save.phases["sync"] >= save.paced_seconds
    assert save.seconds >= save.paced_seconds + save.phases["serialise"] + save.phases["write"]


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_memory_has_no_page_cache_so_that_every_load_waits(name: str, memory: Path) -> None:
    arm = measured(slow_medium(memory, page_cache=False), name)
    reads = FORMATS[name].reads_per_byte
    assert arm.saves[0].seconds >= min_seconds(arm)
    for load in [*arm.evicted_loads, *arm.cached_loads]:
        assert load.seconds >= min_seconds(arm, reads)
        assert load.resident_before == 0


def test_only_formats_that_verify_checksums_read_each_byte_twice() -> None:
    twice = {name for name, chosen in FORMATS.items() if chosen.reads_per_byte == 2}
    assert twice == {"embstore", "mapped"}


def test_training_waits_for_a_copy_while_the_background_save_waits_for_the_device(
    memory: Path,
) -> None:
    arm = measured(slow_medium(memory, page_cache=True), "torch", background=True)
    (save,) = arm.saves
    assert save.seconds >= min_seconds(arm)
    assert save.stall_seconds < save.seconds - save.paced_seconds / 2


def test_a_medium_that_is_not_paced_waits_for_nothing(tmp_path: Path) -> None:
    arm = measured(parse_medium(f"disk={tmp_path}"), "torch")
    (save,), loads = arm.saves, [*arm.evicted_loads, *arm.cached_loads]
    assert save.paced_seconds == 0
    assert [load.paced_seconds for load in loads] == [0, 0]
    assert arm.device is None


# --- Bandwidths of devices


def test_a_disk_has_its_published_sequential_bandwidth() -> None:
    sata = PacedDevice.from_model(load_device(SATA))
    assert sata.has_page_cache
    assert (sata.file_write_mb_per_s, sata.read_mb_per_s) == pytest.approx((510, 560))
    nvme = PacedDevice.from_model(load_device("nvme-p4510"))
    assert (nvme.file_write_mb_per_s, nvme.read_mb_per_s) == pytest.approx((2000, 3200))


def test_memory_has_the_bandwidth_of_one_thread() -> None:
    device = load_device(PMEM)
    pmem = PacedDevice.from_model(device)
    assert not pmem.has_page_cache
    one = device.bandwidth_mb_per_s("ntstore", "sequential", 1 << 20, 1)
    assert pmem.file_write_mb_per_s == pytest.approx(one)
    assert pmem.read_mb_per_s < device.bandwidth_mb_per_s("load", "random", 1 << 20, 8)


def test_a_device_with_only_peak_bandwidths_names_the_missing_figure(memory: Path) -> None:
    with pytest.raises(NotPublishedError, match="optane-200-x6: no sequential ntstore by size"):
        paced_medium(load_device("optane-200-x6"), memory)


def test_memory_mode_is_refused_as_a_medium(memory: Path) -> None:
    with pytest.raises(MediumError, match="memory mode, which forgets"):
        paced_medium(load_device(f"{PMEM}-memory-mode"), memory)


def test_the_folder_of_a_paced_medium_must_be_in_memory(tmp_path: Path) -> None:
    if parse_medium(f"disk={tmp_path}").facts.in_memory:
        pytest.skip("the temporary folder is in memory")
    with pytest.raises(MediumError, match="whose own time would count"):
        paced_medium(load_device(SATA), tmp_path)


def test_a_disk_has_no_mapped_format_and_memory_has_all(memory: Path) -> None:
    assert formats_on(paced_medium(load_device(SATA), memory)) == list(FILE_FORMATS)
    assert formats_on(paced_medium(load_device(PMEM), memory)) == list(FORMATS)


def test_the_yardstick_of_a_device_is_its_published_bandwidth(memory: Path) -> None:
    yardstick = measure_yardstick(paced_medium(load_device(SATA), memory), 1 << 20, 1)
    assert yardstick.write_bytes_per_s == pytest.approx(510e6)
    assert yardstick.read_bytes_per_s == pytest.approx(560e6)


# --- The command and its tables


def test_each_arm_names_the_kind_of_its_rates_and_its_device(
    monkeypatch: pytest.MonkeyPatch, memory: Path, tmp_path: Path
) -> None:
    printed = io.BytesIO()
    stdout = io.TextIOWrapper(printed, "ascii")  # can't encode the tables' letters
    monkeypatch.setattr(sys, "stdout", stdout)
    written = tmp_path / "checkpoints.json"
    common = ["--models", "tiny", "--repeats=1", "--formats", "torch", f"--json={written}"]
    media = [f"--medium=disk={tmp_path}", f"--device={SATA}", f"--device={PMEM}"]
    assert command.main([*common, *media, f"--paced-in={memory}"]) == 0
    document = json.loads(written.read_text())
    kinds = {(arm["medium"], arm["device"], arm["kind"]) for arm in document["arms"]}
    assert kinds == {
        ("disk", None, "measured"),
        (SATA, SATA, "modelled"),
        (PMEM, PMEM, "modelled"),
    }
    assert b"paced as sata-s4510" in printed.getvalue()
    assert list(memory.iterdir()) == []
    assert list(tmp_path.iterdir()) == [written]


def test_a_lack_of_memory_is_reported_before_anything_is_saved(
    capsys: pytest.CaptureFixture[str], memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch needs a file and its replacement, mapped a file of two slots: four sizes in all.
    free = SimpleNamespace(free=3.5 * TINY_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: free)
    arguments = [f"--device={PMEM}", f"--paced-in={memory}", "--models", "tiny"]
    assert command.main([*arguments, "--formats", "torch", "mapped"]) == 2
    assert "and 2 arms need 1; give another folder in memory" in capsys.readouterr().err
    assert list(memory.iterdir()) == []


def paced_report(memory: Path, tmp_path: Path) -> Report:
    media = [parse_medium(f"disk={tmp_path}"), slow_medium(memory, page_cache=False)]
    arms = [measured(medium, "torch") for medium in media]
    return Report("measured", media, [measure_yardstick(medium, 1, 1) for medium in media], arms)


def test_tables_say_which_rates_are_modelled(memory: Path, tmp_path: Path) -> None:
    report = paced_report(memory, tmp_path)
    text = tables(report, width=160)
    assert "rates are measured and modelled" in text
    assert "slow: this computer's memory, paced" in text
    assert "without a page cache" in text


def test_in_an_emulated_machine_a_paced_rate_is_functional_only_too(
    memory: Path, tmp_path: Path
) -> None:
    report = replace(paced_report(memory, tmp_path), kind="functional-only")
    assert {report.kind_of(arm) for arm in report.arms} == {"functional-only"}
