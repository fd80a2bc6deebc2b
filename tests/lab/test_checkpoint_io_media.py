"""Media of the checkpoint benchmark: their facts, how caches are dropped, and their yardsticks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from checkpoints import need_libpmem

from benchmarks.checkpoint_io import medium as media
from benchmarks.checkpoint_io import run_environment, yardstick
from benchmarks.checkpoint_io.errors import MediumError
from benchmarks.checkpoint_io.medium import parse_medium
from benchmarks.checkpoint_io.page_cache import FilePart, evict, resident_fraction
from benchmarks.checkpoint_io.yardstick import YardstickError, measure_yardstick, parse_fio
from pmemlab.mounts import Mount

MEMORY = Path("/dev/shm")


def test_a_medium_s_facts_come_from_the_kernel_and_not_from_its_name(tmp_path: Path) -> None:
    if not MEMORY.is_dir():
        pytest.skip("there is no /dev/shm here")
    medium = parse_medium(f"sata={MEMORY}")
    assert (medium.name, medium.kind) == ("sata", "file")
    assert medium.facts.filesystem == "tmpfs"
    assert medium.facts.device is None
    assert medium.facts.summary == "tmpfs on memory"
    assert medium.as_json()["kernel"]["summary"] == "tmpfs on memory"
    assert parse_medium(f"a={tmp_path}:mapped").kind == "mapped"


def test_a_disk_is_named_with_its_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "devices" / "pci0" / "nvme" / "nvme0" / "nvme0n1"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "rotational").write_text("0\n")
    (disk / "nvme0n1p2").mkdir()
    (disk / "nvme0n1p2" / "partition").write_text("2\n")
    block = tmp_path / "block"
    block.mkdir()
    (block / "8:1").symlink_to(disk / "nvme0n1p2")
    monkeypatch.setattr(media, "_SYS_BLOCK", block)
    mount = Mount("8:1", "/", "rw", "ext4", "/dev/whatever")
    monkeypatch.setattr(media, "mount_of", lambda _path: mount)
    facts = media.read_facts(tmp_path)
    assert (facts.device, facts.bus, facts.rotates) == ("nvme0n1", "nvme", False)
    assert facts.summary == "ext4 on nvme0n1 (nvme)"


@pytest.mark.parametrize(
    ("place", "bus"),
    [
        ("/sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda", "sata"),
        ("/sys/devices/pci0000:00/0000:00:03.0/virtio1/block/vda", "virtio"),
        ("/sys/devices/LNXSYSTM:00/ACPI0012:00/ndbus0/region0/pfn0.1/block/pmem0", "nvdimm"),
        ("/sys/devices/virtual/block/zram0", None),
    ],
)
def test_a_disk_s_bus_is_read_from_its_path_in_sysfs(place: str, bus: str | None) -> None:
    assert media._bus(Path(place)) == bus


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("disk", "NAME=PATH"),
        ("=/tmp", "NAME=PATH"),
        ("disk=/no/such/folder", "disk: /no/such/folder is no folder"),
        ("disk=/dev/null", "is no folder"),
        ("disk=/tmp:tape", "is no folder"),
        ("disk=/proc", "nothing can be written there"),
    ],
)
def test_a_medium_that_can_not_be_used_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(MediumError, match=complaint):
        parse_medium(text)


def test_a_folder_that_is_no_dax_mount_is_refused_as_one(tmp_path: Path) -> None:
    if media.read_facts(tmp_path).map_sync:
        pytest.skip("the temporary folder is on a dax mount")
    with pytest.raises(MediumError, match=r"no dax mount; give it as pmem=.*:file"):
        parse_medium(f"pmem={tmp_path}:dax")


def test_eviction_empties_the_page_cache_of_a_file_and_resident_fraction_shows_it(
    tmp_path: Path,
) -> None:
    if media.read_facts(tmp_path).device is None:
        pytest.skip("the temporary folder isn't on a disk")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty").touch()
    file, empty = FilePart.whole(path), FilePart.whole(tmp_path / "empty")
    assert resident_fraction([file, empty]) == 1.0
    evict([file, empty], "posix_fadvise")
    assert resident_fraction([file]) == 0.0
    with path.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        os.pread(opened.fileno(), 4096, 8192)
    assert 0.0 < resident_fraction([file]) < 1.0
    assert resident_fraction([FilePart(path, 8192, 4096)]) == 1.0
    assert resident_fraction([FilePart(path, 512 << 10, 512 << 10)]) == 0.0
    assert resident_fraction([empty]) == 0.0


def test_mapped_pages_survive_eviction_and_resident_fraction_shows_it(tmp_path: Path) -> None:
    import mmap

    if media.read_facts(tmp_path).device is None:
        pytest.skip("the temporary folder isn't on a disk")
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as held:
        assert held[5000] == 0
        evict([FilePart.whole(file)], "posix_fadvise")
        assert resident_fraction([FilePart.whole(file)]) > 0.0


def test_rates_of_a_guest_are_functional_only(tmp_path: Path) -> None:
    assert not run_environment.in_lab_guest(tmp_path)
    (tmp_path / "vport0p1").mkdir()
    (tmp_path / "vport0p1" / "name").write_text("pmemlab.agent\n")
    assert run_environment.in_lab_guest(tmp_path)
    assert run_environment.rates_kind(guest=True) == "functional-only"
    assert run_environment.rates_kind(guest=False) == "measured"


def test_this_computer_s_caches_are_not_dropped() -> None:
    assert run_environment.default_eviction(guest=False) == "posix_fadvise"


# --- Yardsticks


def test_without_fio_the_benchmark_s_own_loop_measures_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    rates = measure_yardstick(parse_medium(f"disk={tmp_path}"), size=1, repeats=1)
    assert rates.by.startswith("own loop, ")
    assert rates.bytes == 8 << 20
    assert rates.write_bytes_per_s > 0
    assert rates.read_bytes_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_the_yardstick_of_a_mapped_medium_copies_into_a_mapping(tmp_path: Path) -> None:
    need_libpmem()
    rates = measure_yardstick(parse_medium(f"pmem={tmp_path}:mapped"), size=1, repeats=1)
    assert "mapping" in rates.by
    assert rates.write_bytes_per_s > 0


def fake_fio(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    fio = folder / "fio"
    fio.write_text(f"#!/bin/sh\n{script}\n")
    fio.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_fio_measures_if_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps(
        {
            "jobs": [
                {
                    "job_runtime": 2000,
                    "write": {"io_bytes": 8 << 20},
                    "read": {"io_bytes": 16 << 20},
                }
            ]
        }
    )
    script = f"echo \"$@\" >> {tmp_path}/asked\necho 'fio: a note'\necho '{answer}'"
    fake_fio(tmp_path / "bin", script, monkeypatch)
    folder = tmp_path / "medium"
    folder.mkdir()
    rates = measure_yardstick(parse_medium(f"disk={folder}"), size=9 << 20, repeats=1)
    assert rates.by.startswith("fio, ")
    assert rates.write_bytes_per_s == 4 << 20
    assert rates.read_bytes_per_s == 8 << 20
    write, read = (tmp_path / "asked").read_text().splitlines()
    assert "--rw=write" in write
    assert "--end_fsync=1" in write
    assert f"--size={9 << 20}" in write
    assert "--rw=read" in read


def test_a_failing_fio_is_an_error_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_fio(tmp_path / "bin", "echo no such engine >&2; exit 1", monkeypatch)
    with pytest.raises(YardstickError, match="no such engine"):
        measure_yardstick(parse_medium(f"disk={tmp_path}"), size=1, repeats=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": []}', '{"jobs": [{"job_runtime": 0}]}'])
def test_incomplete_output_of_fio_is_an_error(text: str) -> None:
    with pytest.raises(YardstickError, match="isn't understood"):
        parse_fio(text, "write")


def test_the_yardstick_says_if_a_file_system_has_no_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(yardstick, "_allows_direct_io", lambda _file: False)
    rates = measure_yardstick(parse_medium(f"disk={tmp_path}"), size=1, repeats=1)
    assert "through the page cache" in rates.by
